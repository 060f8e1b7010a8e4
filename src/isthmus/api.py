"""Every command once, as a typed function or a method of `Index`, with what its help says.

The command line is made from signatures and docstrings here (`isthmus.cli.build`). A body imports
what it needs, so that reading this module costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from isthmus.collections.in_memory import Documents
    from isthmus.encoders import DenseEncoder, SparseEncoder
    from isthmus.indexes.segments.writer import Update
    from isthmus.records import Document
    from isthmus.retrieval.hits import Hits
    from isthmus.retrieval.hybrid import Retriever
    from isthmus.retrieval.verbs.sync import Sync
    from isthmus.retrieval.verbs.tune import Tuning

    Model = str | DenseEncoder | SparseEncoder
    Settings = Mapping[str, Any] | Sequence[str] | None
    StrPath = str | Path


_T = TypeVar("_T")


def index(
    documents: Documents,
    output: StrPath,
    models: Model | Sequence[Model] = ("bm25",),
    *,
    language: str | None = None,
    overwrite: bool = False,
    settings: Settings = None,
) -> Index:
    """Build an index: BM25, dense, sparse, or several in one folder.

    Several models are searched together, and their results fused. Long documents of a folder are
    cut into passages that the model reads in full.

    Args:
        documents: Documents to search: a folder of texts, a .jsonl file, a BEIR folder, irds:ID,
            hf:NAME; in Python also a list of texts, of mappings or of Document.
        output: Folder to write. The same command again resumes in it.
        models: Retriever to build: bm25, or a model folder, hub name or package:NAME. Repeatable.
        language: Language of the documents for BM25 stemming, such as german or de, or none.
            [default: detected]
        overwrite: Replace another index in OUTPUT as soon as the new one is complete.
        settings: Values of settings by dotted path.

    Returns:
        The index, ready to search.

    Examples:
        isthmus index notes/ -o notes.idx
        isthmus index docs.jsonl -m bm25 -m sentence-transformers/all-MiniLM-L6-v2 -o docs.idx
        >>> isthmus.index([{"id": "1", "text": "Bees make honey."}], "idx").search("honey")

    """
    from isthmus.collections.in_memory import documents_spec
    from isthmus.retrieval.verbs.index import index as build

    return Index(
        build(
            documents_spec(documents),
            output,
            models,
            language=language,
            overwrite=overwrite,
            settings=settings,
        )
    )


def open_index(folder: StrPath) -> Index:
    """The index in a folder, or in the output of `adapt`."""
    opened = Index(folder)
    opened.names  # noqa: B018 (a folder without an index is refused here)
    return opened


def search(
    index: StrPath,
    query: str | None = None,
    *,
    k: int | None = None,
    queries: str | None = None,
    split: str | None = None,
    output: StrPath | None = None,
    use: str | None = None,
    rerank: str | None = None,
    settings: Settings = None,
) -> Hits | Path | Iterator[Hits]:
    """Search an index: one query, one per line, or a file of queries.

    Without QUERY and --queries, each line of standard input is a query. A line that fails has its
    reason on standard error, or in its line of JSON, and the exit code is then 1.

    Args:
        index: Folder of an index, or output of adapt.
        query: Text to search for.
        k: Maximum number of documents per query. [default: 10; 1000 for a run file]
        queries: File of queries (.jsonl or .tsv) or a collection, to write a run file of.
        split: Split of the collection whose judged queries are searched. [default: test]
        output: TREC run file to write, with --queries.
        use: Name of the one retriever of the index that answers. [default: all, fused]
        rerank: Cross-encoder that scores the first documents again.
        settings: Values of settings by dotted path.

    Returns:
        The hits of one query, the run file, or the hits of each line.

    Examples:
        isthmus search notes.idx "how do I renew a certificate"
        isthmus search docs.idx "a query" -k 5 --use bm25
        isthmus search docs.idx --queries data/scifact -o runs/scifact.trec

    """
    from isthmus.errors import InputError
    from isthmus.retrieval.verbs import search as searching

    how: Any = {"k": k, "use": use, "rerank": rerank, "settings": settings}
    if query is not None and (queries, output, split) != (None, None, None):
        raise InputError(
            "--queries, --split and -o are for a run file, and one query is given",
            "leave out the query to write a run file, or these options to see hits",
        )
    if query is not None:
        return searching.search(index, query, **how)
    if queries is None and output is None and split is None:
        return searching.answers_to(index, _typed_lines(), **how)
    if queries is None or output is None:
        raise InputError(
            "a run file needs --queries, whose answers it holds, and -o, where it is written",
            f"isthmus search {index} --queries QUERIES -o RUN.trec",
        )
    return searching.search_file(index, queries, output, split=split, **how)


def _typed_lines() -> Iterator[str]:
    """The lines of standard input; on a terminal, with a prompt."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 (the prompt edits lines and remembers them)

        sys.stderr.write("a query per line; Ctrl-D ends\n")
        while True:
            try:
                yield input("query> ").strip()
            except EOFError:
                return
    # Bytes that are no UTF-8 become half surrogates, which a search refuses by name.
    for raw in sys.stdin.buffer:
        yield raw.decode(errors="surrogateescape").strip()


def export(
    source: str,
    output: StrPath,
    *,
    model: str | None = None,
    as_: Literal["documents", "queries"] = "documents",
    settings: Settings = None,
) -> Path:
    """Write vectors to .npy, .parquet or Milvus.

    Args:
        source: Folder of an index whose vectors are written; with --model, texts to encode.
        output: File that ends in .npy (a matrix; ids in .ids.jsonl) or .parquet (ids and vectors),
            or a Milvus: a path that ends in .db, or an address.
        model: Encoder of the texts.
        as_: What the texts are to the encoder.
        settings: Values of settings by dotted path.

    Returns:
        Where the vectors are.

    Examples:
        isthmus export docs.idx -o milvus.db
        isthmus export docs.jsonl -m sentence-transformers/all-MiniLM-L6-v2 -o docs.parquet
        isthmus export queries.jsonl -m runs/dense --as queries -o queries.npy

    """
    from isthmus.retrieval.verbs.export import export as write

    return write(source, output, model=model, as_=as_, settings=settings)


class Index:
    """An index that is open: search it, change it, or ask it for its documents.

    Nothing is loaded before the first search, and then once.
    """

    def __init__(self, folder: StrPath) -> None:
        from isthmus.retrieval.hybrid_folder import index_folder

        self.folder = index_folder(folder)
        self._retrievers: dict[tuple[str | None, str | None], Retriever] = {}

    @cached_property
    def names(self) -> list[str]:
        """The names of its retrievers, as `use` takes them."""
        from isthmus.retrieval.verbs.search import retriever_names

        return retriever_names(self.folder)

    def search(
        self, query: str, k: int = 10, *, use: str | None = None, rerank: str | None = None
    ) -> Hits:
        """The hits of one query, best first, with the texts of their passages.

        Args:
            query: Text to search for.
            k: Maximum number of hits.
            use: Name of the one retriever that answers; None for all, fused.
            rerank: Cross-encoder that scores the first documents again.

        Returns:
            A list of `Hit(id, score, title, text, snippet, passage)`.

        """
        from isthmus.retrieval.verbs.search import SearchSettings, answer

        return answer(self._retriever(use, rerank), query, SearchSettings(k=k))

    def search_many(
        self,
        queries: Mapping[str, str],
        k: int = 1000,
        *,
        use: str | None = None,
        rerank: str | None = None,
    ) -> dict[str, dict[str, float]]:
        """The scores of the best documents of many queries, by query id and document id.

        Args:
            queries: Texts by query id.
            k: Maximum number of documents per query.
            use: Name of the one retriever that answers; None for all, fused.
            rerank: Cross-encoder that scores the first documents again.

        Returns:
            A run, as ir_measures, ranx, pytrec_eval and `isthmus.evaluate` take it.

        """
        from isthmus.records import Query

        asked = [Query(name, text) for name, text in queries.items()]
        found = self._retriever(use, rerank).search(asked, k)
        return {ranking.query_id: dict(ranking) for ranking in found}

    def add(self, documents: Documents, *, settings: Settings = None) -> Update:
        """Add or replace documents in an index.

        All of them can be found once the command has ended, none before.

        Args:
            self: Folder of an index, or output of adapt.
            documents: Documents to add: whatever index reads. Those whose ids are in the index are
                replaced.
            settings: Values of settings by dotted path.

        Returns:
            How many documents were added and replaced, and how many there are now.

        Examples:
            isthmus add docs.idx more.jsonl

        """
        from isthmus.collections.in_memory import documents_spec
        from isthmus.retrieval.verbs.update import add

        spec = documents_spec(documents, numbered=False)
        return self._changed(add(self.folder, spec, settings=settings))

    def delete(self, ids: Sequence[str], *, settings: Settings = None) -> Update:
        """Delete documents from an index.

        All that are named are deleted, or none if one of them is not in the index.

        Args:
            self: Folder of an index, or output of adapt.
            ids: Ids of documents; - reads them from standard input, one per line.
            settings: Values of settings by dotted path.

        Returns:
            How many documents were deleted, and how many there are now.

        Examples:
            isthmus delete docs.idx d17 d18
            isthmus delete docs.idx - -s problems=skip < withdrawn.txt

        """
        from isthmus.retrieval.verbs.update import delete

        named: Iterable[str] = [ids] if isinstance(ids, str) else ids
        if list(named) == ["-"]:
            named = filter(None, map(str.strip, sys.stdin))
        return self._changed(delete(self.folder, named, settings=settings))

    def sync(
        self,
        documents: Documents,
        *,
        dry_run: bool = False,
        compact: bool = False,
        settings: Settings = None,
    ) -> Sync:
        """Update an index to match a folder: new, changed and deleted documents.

        Only new and changed documents are encoded. All changes become visible together, at the
        end. The exit code is 1 if some documents could not be read; those stay in the index.

        Args:
            self: Folder of an index, or output of adapt.
            documents: The documents as they are now: whatever index reads.
            dry_run: Print what would change, and change nothing.
            compact: Also merge the index into one segment.
            settings: Values of settings by dotted path.

        Returns:
            The ids of new, changed and deleted documents.

        Examples:
            isthmus sync notes.idx notes/ --dry-run
            isthmus sync notes.idx notes/

        """
        from isthmus.collections.in_memory import documents_spec
        from isthmus.retrieval.verbs.sync import sync

        spec = documents_spec(documents, numbered=False)
        return self._changed(
            sync(self.folder, spec, dry_run=dry_run, compact=compact, settings=settings)
        )

    def tune(
        self,
        collection: str,
        *,
        split: str = "dev",
        measure: str = "nDCG@10",
        settings: Settings = None,
    ) -> Tuning:
        """Choose the weights of a hybrid index on judged queries.

        The weights are stored in the index, and every search uses them from then on.

        Args:
            self: Folder of an index with several retrievers.
            collection: Collection whose judged queries the weights are chosen on.
            split: Split of these queries.
            measure: Measure to maximise.
            settings: Values of settings by dotted path.

        Returns:
            The weights, and what they measure on queries that did not choose them.

        Examples:
            isthmus tune docs.idx data/scifact --split train

        """
        from isthmus.retrieval.verbs.tune import tune

        return self._changed(
            tune(self.folder, collection, split=split, measure=measure, settings=settings)
        )

    def export(
        self,
        output: StrPath,
        as_: Literal["documents", "queries"] = "documents",
        *,
        settings: Settings = None,
    ) -> Path:
        """Where the vectors of the index are now: a .npy or .parquet file, or a Milvus.

        Args:
            output: File that ends in .npy or .parquet, or a Milvus: a path that ends in .db, or
                an address.
            as_: What the texts are to the encoder.
            settings: Values of settings by dotted path.

        """
        return export(str(self.folder), output, as_=as_, settings=settings)

    def refresh(self) -> None:
        """Lets the next search see what another process has changed."""
        for name in ("names", "_documents"):
            self.__dict__.pop(name, None)
        self._retrievers.clear()

    def _retriever(self, use: str | None, rerank: str | None) -> Retriever:
        """What answers a query, opened at its first one."""
        from isthmus.retrieval.verbs.search import SearchSettings, open_retriever

        if (use, rerank) not in self._retrievers:
            chosen = SearchSettings.given(None, {"use": use, "rerank.model": rerank})
            self._retrievers[use, rerank] = open_retriever(self.folder, chosen)
        return self._retrievers[use, rerank]

    @cached_property
    def _documents(self) -> Any:
        """The documents, from the first of the retrievers."""
        from isthmus.retrieval.hybrid_folder import is_hybrid, read_hybrid
        from isthmus.retrieval.searcher import open_documents

        folder = self.folder
        if is_hybrid(folder):
            folder = read_hybrid(folder).folders(folder)[0]
        return open_documents(folder)

    def _whole(self, document_id: str) -> Document | None:
        from isthmus.retrieval.searcher import whole_document

        return whole_document(self._documents, document_id)

    def _changed(self, done: _T) -> _T:
        """What a change came to; the next search sees it."""
        self.refresh()
        return done

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and self._whole(document_id) is not None

    def __getitem__(self, document_id: str) -> Document:
        found = self._whole(document_id)
        if found is None:
            raise KeyError(document_id)
        return found

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {' + '.join(self.names)})"
