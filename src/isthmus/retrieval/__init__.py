"""Searcher = encoder + index; fusion of several; re-ranking; the verbs of search in `verbs/`."""
