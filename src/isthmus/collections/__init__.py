"""Documents, queries and judgements from whatever users keep them in.

`open_corpus` and `open_collection` understand `beir:PATH`, `docstrings:PACKAGES`, `folder:PATH`,
`hf:ORG/NAME`, `irds:ID`, `jsonl:PATH`, `msmarco:PATH` and plain paths.
"""

from isthmus.collections.collection import Collection, Corpus
from isthmus.collections.problems import Problems
from isthmus.collections.query_files import read_queries
from isthmus.collections.spec import open_collection, open_corpus
from isthmus.collections.trec import read_judgements, read_run, write_run

__all__ = [
    "Collection",
    "Corpus",
    "Problems",
    "open_collection",
    "open_corpus",
    "read_judgements",
    "read_queries",
    "read_run",
    "write_run",
]
