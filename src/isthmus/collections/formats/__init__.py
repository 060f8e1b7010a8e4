"""One reader per format: the file's name is the scheme in `scheme:location`."""
