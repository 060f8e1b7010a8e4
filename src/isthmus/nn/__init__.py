"""Neural building blocks: the backbone adapter, its heads, and sizes to start from nothing."""
