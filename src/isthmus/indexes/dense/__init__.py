"""Dense vectors: exact search, scanned in eight bits or approximated if so set."""
