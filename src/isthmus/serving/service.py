"""What a server does, whatever asks for it: searches, documents, changes, and newer indexes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from isthmus.errors import IsthmusError
from isthmus.indexes.filters import Filter
from isthmus.indexes.writer import Update
from isthmus.progress import notice
from isthmus.records import Document, Passage, Ranking
from isthmus.retrieval.change import Writer, open_writer
from isthmus.retrieval.many_queries import can_be_read
from isthmus.retrieval.searcher import Retriever
from isthmus.retrieval.snippets import snippets
from isthmus.serving.batches import Batches
from isthmus.serving.errors import RefusalError
from isthmus.serving.judgements import JudgementFolder
from isthmus.serving.messages import Show
from isthmus.serving.retrievers import Opening, Retrievers, ServedRetriever, Stamp
from isthmus.serving.settings import ServeSettings
from isthmus.serving.timing import Measurements

T = TypeVar("T")
_SEARCHED = 100_000  # characters of a document that are searched for a snippet
_LONGEST = 20_000  # characters of a hit's text that are sent
_METADATA = 4_000  # characters of a hit's metadata that are sent
_NO_TEXT: dict[str, Any] = {
    "title": "",
    "snippet": [],
    "heading": None,
    "place": None,
    "text": "",
    "metadata": {},
}


class Service:
    """The retrievers of a server, with the threads that search and change them.

    What takes long (explaining, changing, opening a newer index) is done in one thread, after
    each other: modules of transformers, imported when they are first needed, bear no second one.
    """

    def __init__(
        self,
        index: str | Path,
        settings: ServeSettings,
        read_write: bool = False,
        judgements: str | Path | None = None,
    ) -> None:
        """Opens all that is served; `watch` looks for newer indexes."""
        self.settings = settings
        self.read_write = read_write
        self.measurements = Measurements()
        self._opening = Opening(index, settings)
        self.current = self._opening.open()
        self.measurements.documents.set(len(self.current.index))
        self._failed: Stamp = None  # what could not be opened
        self._writer: Writer | None = None
        self.judgements: JudgementFolder | None = None
        with ExitStack() as resources:
            if judgements is not None:
                self.judgements = JudgementFolder(Path(judgements).absolute())
                resources.callback(self.judgements.close)
                self.judgements.add_corpus(self.current.every(), len(self.current.index))
            resources.callback(self._give_up_writing)
            if read_write:
                self._writer = open_writer(self._opening.folder, settings.model)
            self._searching, self._reranking = (
                Batches(name, settings.batch)
                for name in ("searching", "re-ranking")  # which takes long: others do not wait
            )
            resources.callback(self._searching.close)
            resources.callback(self._reranking.close)
            self._quick, self._slow = (
                resources.enter_context(ThreadPoolExecutor(1, name)) for name in ("quick", "slow")
            )
            self._resources = resources.pop_all()

    async def watch(self) -> None:
        """Looks for newer indexes again and again."""
        while self.settings.check_seconds:
            await asyncio.sleep(self.settings.check_seconds)
            await _within(self._slow, self.refresh)

    def close(self) -> None:
        """Ends its threads, after what they were given, and lets others write."""
        self._resources.close()

    async def search(
        self,
        served: ServedRetriever,
        query: str,
        k: int,
        show: Show = "texts",
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> dict[str, Any]:
        """The hits of a query as JSON has them, and the milliseconds of every stage."""
        begun = perf_counter()
        batches = self._reranking if served.type == "reranked" else self._searching
        shown = partial(_shown, served.retriever, query, show, filter is not None)
        found = await batches.search(served.retriever, query, k, shown, filter)
        seconds = {**found.seconds, "total": perf_counter() - begun}
        for stage, value in seconds.items():
            self.measurements.stages.labels(served.name, stage).observe(value)
        spent = {stage: round(1000 * value, 3) for stage, value in seconds.items()}
        answer = {"query": query, "retriever": served.name, "milliseconds": spent}
        return {**answer, **found.shown}

    async def explain(self, work: Callable[[], T]) -> T:
        """The result of explaining, in its turn."""
        return await _within(self._slow, work)

    async def document(self, now: Retrievers, document_id: str) -> Document | None:
        """A whole document, which does not wait for what takes long."""
        return await _within(self._quick, lambda: now.index.document(document_id))

    async def add(self, documents: Sequence[Document]) -> Update:
        """What adding documents changed, for good; those of the same ids are replaced."""
        return await self._changed(lambda writer: writer.add(documents))

    async def delete(self, ids: Sequence[str]) -> Update:
        """What deleting documents changed, for good."""
        return await self._changed(lambda writer: writer.delete(ids))

    async def judge(
        self, query: str, document_id: str, grade: int | None, document: Document | None
    ) -> dict[str, int]:
        """The grades of a query after one was given, or taken back (None), for good.

        A document that was added since is then in the corpus next to the judgements too.
        """
        judgements = self.judgements
        assert judgements is not None

        def judge() -> dict[str, int]:
            if document is not None and self.read_write:
                judgements.keep(document)
            return judgements.judge(query, document_id, grade)

        return await _within(self._quick, judge)

    async def _changed(self, work: Callable[[Writer], None]) -> Update:
        """What a change came to; afterwards segments are merged, where there are many."""
        update = await _within(self._slow, lambda: self._change(work))
        self._slow.submit(self._merge)
        return update

    def _change(self, work: Callable[[Writer], None]) -> Update:
        """Commits a change, and opens the index with it."""
        with self._writing() as writer:
            work(writer)
            update = writer.commit()
        self.refresh()
        return update

    def _merge(self) -> None:
        try:
            with self._writing() as writer:
                writer.merge()
        except Exception as error:  # the index is what it was; the next change tries again
            notice(f"segments were not merged: {getattr(error, 'what', error)}")
        self.refresh()

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """The writer; work that fails leaves nothing behind."""
        try:
            yield self._held_writer()
        except BaseException:
            self._give_up_writing()
            raise

    def _held_writer(self) -> Writer:
        """The writer of the index that is there now, which may have replaced another."""
        if self._writer is not None and not self._writer.is_held:
            self._give_up_writing()
        if self._writer is None:
            try:
                self._writer = open_writer(self._opening.folder, self.settings.model)
            except (IsthmusError, OSError) as error:
                notice(f"the index cannot be changed: {getattr(error, 'what', error)}")
                raise RefusalError(
                    503,
                    "the index cannot be changed now",
                    "try again (nothing was changed); the server's own output says more",
                ) from None
        return self._writer

    def _give_up_writing(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def refresh(self) -> Retrievers:
        """What is open, which is what is on the disk, as far as that can be opened.

        Requests under way keep what they began with.
        """
        stamp: Stamp = None
        try:
            stamp = self._opening.stamp()
            if stamp in (self.current.stamp, self._failed):
                return self.current
            self.current, self._failed = self._opening.open(), None
            self.measurements.openings.labels("opened").inc()
            self.measurements.documents.set(len(self.current.index))
        except Exception as error:  # whatever it is, what is open goes on being served
            what = getattr(error, "what", str(error))
            notice(f"the index changed, and that of before is served: {what}")
            self.measurements.openings.labels("failed").inc()
            self._failed = stamp
        return self.current


async def _within(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def fitting(metadata: Mapping[str, Any], most: int) -> dict[str, Any]:
    """What of metadata can be sent, and fits into so many characters."""
    found = {}
    for name, value in metadata.items():
        with suppress(ValueError, RecursionError):  # of an index that was made to do harm
            text = json.dumps({name: value}, ensure_ascii=False, allow_nan=False)
            most -= len(text.encode())
            if most >= 0:
                found[name] = value
    return found


def _shown(
    retriever: Retriever, query: str, show: Show, filtered: bool, ranking: Ranking
) -> dict[str, Any]:
    """Hits with as much of their texts as is wanted, and a note where there are none."""
    if not len(ranking):
        note = "no document holds a term of the query"
        if not can_be_read(retriever, query):
            note = "no words to search for"
        elif filtered:
            note = "no document that the filter lets through was found"
        return {"hits": [], "note": note}
    hits: list[dict[str, Any]] = [
        {"id": i, "rank": rank, "score": score, **_NO_TEXT}
        for rank, (i, score) in enumerate(ranking, start=1)
    ]
    if show != "ids":
        documents = retriever.documents(ranking.document_ids, query)
        matched = retriever.matched(query, documents)
        found = snippets([document.text[:_SEARCHED] for document in documents], query, matched)
        for hit, document, snippet in zip(hits, documents, found, strict=True):
            parts = [{"text": part, "match": match} for part, match in snippet.parts]
            hit |= {"title": document.title, "snippet": parts}
            hit["metadata"] = fitting(document.metadata, _METADATA)
            if show == "texts":
                hit["text"] = document.text[:_LONGEST]
            if isinstance(document, Passage) and (document.heading or document.number > 1):
                place = f"passage {document.number}, characters {document.start:,}–{document.end:,}"
                hit |= {"heading": document.heading or None, "place": place}
    return {"hits": hits, "note": None}
