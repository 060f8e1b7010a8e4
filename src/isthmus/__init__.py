"""isthmus: turns a pile of documents into a retriever that knows them."""

__version__ = "0.1.0"
