"""The registry of formats: a name is the scheme in `scheme:location`."""

from isthmus.registry import Registry

FORMATS = Registry("isthmus.collections.formats", "collection_format", "collection format")
collection_format = FORMATS.register
