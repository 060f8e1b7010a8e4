"""Dense vectors: exact search, scanned in eight bits where told, approximate by choice."""
