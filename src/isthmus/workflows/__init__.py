"""Jobs of several verbs: the quickstart, and the repetition of what made a folder."""
