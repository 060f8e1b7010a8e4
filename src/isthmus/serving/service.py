"""What a server does, whatever asks for it: searches, documents, changes, and newer indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, perf_counter
from typing import Any, TypeVar

from isthmus.errors import IsthmusError, SettingsError
from isthmus.indexes.segments.writer import Update
from isthmus.progress import notice
from isthmus.records import Document, Passage, Ranking
from isthmus.retrieval.hybrid import Retriever
from isthmus.retrieval.hybrid_folder import is_hybrid, is_living
from isthmus.retrieval.many_queries import can_be_read
from isthmus.retrieval.snippets import marked, snippets
from isthmus.retrieval.verbs.update import HybridWriter, Writer, open_writer
from isthmus.serving.judgements import JudgementFolder
from isthmus.serving.measurements import Measurements
from isthmus.serving.query_batches import Batches
from isthmus.serving.refusals import RefusalError, busy
from isthmus.serving.retrievers import Offer, Opening, Retrievers, Stamp
from isthmus.serving.settings import ServeSettings

T = TypeVar("T")
_SHOWN = 100_000  # characters of a document that are looked at for a snippet
_NO_TEXT: dict[str, Any] = {"title": "", "snippet": [], "heading": None, "place": None}
_AGAIN = 30.0  # seconds until indexes that could not be opened are tried again

_IMPORTING = Lock()


def import_models() -> None:
    """Imports transformers and what is built on it, where that has not been done yet.

    Its modules import each other when they are first needed: a second thread can find them half
    made.
    """
    with _IMPORTING:
        import transformers

        import isthmus.encoders
        import isthmus.encoders.cross
        import isthmus.encoders.light_dense  # noqa: F401 (imported for others)

        for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer"):
            getattr(transformers, name)  # which imports its module


class Service:
    """The retrievers of a server, with the threads that search and change them."""

    def __init__(self, folders: Sequence[str | Path], settings: ServeSettings) -> None:
        """Opens all that is served; `start` begins to look for newer indexes."""
        self.settings = settings
        self.measurements = Measurements()
        self._opening = Opening([*folders, *settings.hybrid], settings)
        if settings.writable:
            _check_writable(self._opening.folders)
        self.current = self._opening.open()
        self.measurements.documents.set(self.current.documents)
        self._renewing, self._changing = Lock(), Lock()
        self._failed: Stamp | None = None  # what could not be opened, and when to try again
        self._retry_at = 0.0
        self._writer: Writer | HybridWriter | None = None
        self.judgements: JudgementFolder | None = None
        self._stopped = Event()
        self._waiting = 0
        with ExitStack() as resources:
            if settings.judgements is not None:
                self.judgements = JudgementFolder(Path(settings.judgements).absolute())
                resources.callback(self.judgements.close)
                if self.current.keeps_texts:
                    self.judgements.add_corpus(self.current.every(), self.current.documents)
            resources.callback(self._give_up_writing)
            if settings.writable:
                self._writer = open_writer(self._opening.folders[0])
            self._searching, self._reranking = (
                Batches(name, settings.batch, settings.limits.waiting, self.measurements)
                for name in ("searching", "re-ranking")  # which takes long: others do not wait
            )
            resources.callback(self._searching.close)
            resources.callback(self._reranking.close)
            self._others, self._looking_up, self._writing = (
                resources.enter_context(ThreadPoolExecutor(1, name))
                for name in ("others", "looking up", "writing")
            )
            self._resources = resources.pop_all()

    def start(self) -> None:
        """Begins to look for newer indexes."""
        if self.settings.check_seconds:
            Thread(target=self._watch, name="watching", daemon=True).start()

    def close(self) -> None:
        """Ends its threads, after what they were given, and lets others write."""
        self._stopped.set()
        self._resources.close()

    async def search(
        self, offer: Offer, query: str, depth: int, texts: bool = True
    ) -> dict[str, Any]:
        """The hits of a query as JSON has them, and the milliseconds of every stage."""
        begun = perf_counter()
        batches = self._reranking if offer.kind == "reranked" else self._searching
        show = partial(_show, offer.retriever, query, texts)
        found = await batches.search(offer.retriever, query, depth, show)
        seconds = {**found.seconds, "total": perf_counter() - begun}
        for stage, value in seconds.items():
            self.measurements.stages.labels(offer.name, stage).observe(value)
        spent = {stage: round(1000 * value, 3) for stage, value in seconds.items()}
        answer = {"query": query, "retriever": offer.name, "milliseconds": spent}
        return {**answer, **found.shown}

    async def other(self, work: Callable[[], T]) -> T:
        """The result of work that takes long (explaining), in its turn."""
        return await self._in_turn(self._others, work)

    async def document(self, now: Retrievers, document_id: str) -> Document | None:
        """A whole document, which does not wait for what takes long."""
        return await self._in_turn(self._looking_up, lambda: now.document(document_id))

    async def add(self, documents: Sequence[Document]) -> Update:
        """What adding documents changed, for good; those of the same ids are replaced."""

        def add(writer: Writer | HybridWriter) -> None:
            if self.current.encoders:
                import_models()
            writer.add(documents)

        return await self._in_turn(self._writing, lambda: self._change(add))

    async def delete(self, ids: Sequence[str]) -> Update:
        """What taking documents away changed, for good."""
        return await self._in_turn(
            self._writing, lambda: self._change(lambda writer: writer.delete(ids))
        )

    async def judge(
        self, query: str, document_id: str, grade: int | None, document: Document | None
    ) -> dict[str, int]:
        """The grades of a query after one was given, or taken back (None), for good.

        A document that was added since is then in the corpus beside the judgements too.
        """
        judgements = self.judgements
        assert judgements is not None

        def judge() -> dict[str, int]:
            if document is not None and self.settings.writable and self.current.keeps_texts:
                judgements.keep(document)
            return judgements.judge(query, document_id, grade)

        return await self._in_turn(self._writing, judge)

    async def _in_turn(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._waiting >= self.settings.limits.waiting:
            raise busy(f"{self.settings.limits.waiting:,} at a time")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._waiting -= 1

    def _change(self, work: Callable[[Writer | HybridWriter], None]) -> Update:
        """Commits a change and opens the indexes with it; one that fails leaves nothing behind."""
        with self._changing:
            try:
                writer = self._held_writer()
                work(writer)
                update = writer.commit()
            except BaseException:
                self._give_up_writing(wait=False)
                raise
        self.refresh()
        return update

    def _held_writer(self) -> Writer | HybridWriter:
        """The writer of the index that is there now, which may have replaced another."""
        if self._writer is not None and not self._writer.is_held:
            self._give_up_writing(wait=False)
        if self._writer is None:
            try:
                self._writer = open_writer(self._opening.folders[0])
            except (IsthmusError, OSError) as error:
                notice(f"the index cannot be changed: {getattr(error, 'what', error)}")
                raise RefusalError(
                    503,
                    "the index cannot be changed now",
                    "try again (nothing was changed); the server's own output says more",
                ) from None
        return self._writer

    def _give_up_writing(self, wait: bool = True) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(wait)

    def refresh(self) -> Retrievers:
        """What is open, which is what is on the disk, as far as that can be opened.

        Requests under way keep what they began with.
        """
        with self._renewing:
            stamp = self._opening.stamp()
            known = stamp == self._failed
            if stamp == self.current.stamp or (known and monotonic() < self._retry_at):
                return self.current
            try:
                self.current, self._failed = self._opening.open(), None
            except Exception as error:  # whatever it is, what is open goes on being served
                if not known:
                    what = getattr(error, "what", str(error))
                    notice(f"the indexes changed, and those of before are served: {what}")
                self._failed, self._retry_at = stamp, monotonic() + _AGAIN
            outcome = "opened" if self._failed is None else "failed"
            self.measurements.openings.labels(outcome).inc()
            self.measurements.documents.set(self.current.documents)
            return self.current

    def _watch(self) -> None:
        while not self._stopped.wait(self.settings.check_seconds):
            with suppress(IsthmusError, OSError):  # a folder that is being replaced
                self.refresh()


def _show(retriever: Retriever, query: str, texts: bool, ranking: Ranking) -> dict[str, Any]:
    """Hits with titles and marked snippets, if wanted, and a note where there are none."""
    if not len(ranking):
        readable = can_be_read(retriever, query)
        note = "no document holds a term of the query" if readable else "no words to search for"
        return {"hits": [], "note": note}
    hits = [
        {"id": i, "rank": rank, "score": score, **_NO_TEXT}
        for rank, (i, score) in enumerate(ranking, start=1)
    ]
    if texts:
        documents = retriever.documents(ranking.document_ids, query)
        shown = snippets([document.text[:_SHOWN] for document in documents], query)
        for hit, document, snippet in zip(hits, documents, shown, strict=True):
            parts = [{"text": part, "match": match} for part, match in marked(snippet, query)]
            hit |= {"title": document.title, "snippet": parts}
            if isinstance(document, Passage):
                place = f"passage {document.number}, characters {document.start:,}–{document.end:,}"
                hit |= {"heading": document.heading or None, "place": place}
    return {"hits": hits, "note": None}


def _check_writable(folders: Sequence[Path]) -> None:
    """Refuses several indexes that do not change together, and hybrids of indexes elsewhere."""
    if len(folders) > 1 or (is_hybrid(folders[0]) and not is_living(folders[0])):
        raise SettingsError(
            "--writable: these indexes cannot be changed together",
            "build them together: isthmus index --with bm25,MODEL",
        )
