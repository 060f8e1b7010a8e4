"""The verbs of search, one file each."""
