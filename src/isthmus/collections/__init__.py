"""Documents, queries and judgements from whatever users keep them in.

`open_corpus` and `open_collection` understand `beir:PATH`, `docstrings:PACKAGES`, `dpr:PATH`,
`folder:PATH`, `hf:ORG/NAME`, `irds:ID`, `jsonl:PATH`, `msmarco:PATH` and plain paths.
"""

from isthmus.collections.collection import Collection, Corpus
from isthmus.collections.judged import Judged, open_judged, open_queries
from isthmus.collections.problems import Problems
from isthmus.collections.query_files import read_queries
from isthmus.collections.spec import open_collection, open_corpus
from isthmus.collections.trec import read_judgements, read_run, write_run

__all__ = [
    "Collection",
    "Corpus",
    "Judged",
    "Problems",
    "open_collection",
    "open_corpus",
    "open_judged",
    "open_queries",
    "read_judgements",
    "read_queries",
    "read_run",
    "write_run",
]
