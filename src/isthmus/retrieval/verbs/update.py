"""The verbs `isthmus add`, `isthmus delete` and `isthmus merge`: an index that changes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from isthmus.collections import Problems, open_corpus
from isthmus.collections.files import lines
from isthmus.collections.settings import ReadingSettings
from isthmus.config import Overrides, Settings
from isthmus.errors import InputError
from isthmus.indexes.approximation import ApproximationSettings
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import stated_manifest
from isthmus.indexes.segments.writer import IndexWriter, Update
from isthmus.progress import Bar, notice
from isthmus.records import Document
from isthmus.retrieval.approximation_check import add_approximation, check_approximation
from isthmus.retrieval.searcher import check_encoder, encoder_name

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

_BLOCK = 1024
_NAMED = 5  # of the ids that are not in the index


class AddSettings(ReadingSettings):
    """How documents are added."""

    verb = "add"

    model: str | None = Field(
        None, description="the encoder, if it moved, or if it was not used here yet"
    )
    block_size: int = Field(_BLOCK, ge=1, description="documents between two recorded steps")


class DeleteSettings(ReadingSettings):
    """How ids that no document has are treated."""

    verb = "delete"

    problems: Literal["refuse", "skip"] = Field(
        "refuse", description="what to do when some ids are not in the index"
    )


class MergeSettings(Settings):
    """Which approximation is built beside the index once it is whole."""

    verb = "merge"

    model: str | None = Field(
        None, description="the encoder, if it moved, or if it was not used here yet"
    )
    approximate: ApproximationSettings | None = Field(
        None, description="hnsw, ivf or seismic, built or built again; null: none anew"
    )


def add(
    index: str | Path,
    corpus: str,
    *,
    model: str | None = None,
    settings: AddSettings | Overrides = None,
) -> Update:
    """Adds a corpus and says what changed; documents whose ids were there are replaced.

    All of it counts at once, at the end. Interrupted and run again, it goes on where it stopped.
    """
    settings = AddSettings.given(settings, {"model": model})
    problems = settings.account()
    source = open_corpus(corpus, problems)
    with IndexWriter(Path(index), job=source.fingerprint()) as writer:
        encoder = _encoder(writer, settings.model)
        documents, total = source.documents(), source.count()
        done = writer.resume(documents)
        if done:
            notice(f"resuming after {done:,} documents")
        with Bar(f"adding {corpus}", total, "documents", done) as bar:
            for block in blocks(documents, settings.block_size):
                writer.add(block, _vectors(encoder, block))
                bar.advance(len(block))
        update = writer.commit()
    if problems.counts:
        notice(problems.summary())
    return update


def delete(
    index: str | Path,
    documents: Iterable[str] = (),
    ids: str | Path | None = None,
    *,
    settings: DeleteSettings | Overrides = None,
) -> Update:
    """What deleting documents changed: those of these ids, and of a file `ids` with one a line.

    Where one of them is not in the index, nothing is deleted, unless such ids are to be skipped.
    """
    settings = DeleteSettings.given(settings)
    unwanted = dict.fromkeys(documents)  # in the order in which they were given
    if ids is not None:
        found = (
            line.strip() for _, line in lines(Path(ids), Problems(line_limit=settings.line_limit))
        )
        unwanted |= dict.fromkeys(line for line in found if line)
    if not unwanted:
        raise InputError(
            "there is no id of a document to delete",
            where=str(ids or "isthmus delete"),
            allowed="ids of documents, or --ids FILE with one in each line",
            remedy="say which documents should go",
        )
    with IndexWriter(Path(index)) as writer:
        if missing := writer.missing(unwanted):
            named = ", ".join(map(repr, missing[:_NAMED])) + ", …" * (len(missing) > _NAMED)
            unknown = f"{len(missing):,} of {len(unwanted):,} ids are not in the index: {named}"
            if settings.problems == "refuse":
                raise InputError(
                    unknown,
                    where=str(index),
                    allowed="ids of documents in the index",
                    remedy="nothing was deleted: correct the ids; or leave such cases out: --set "
                    "problems=skip",
                )
            notice(unknown)
        writer.delete(unwanted)
        return writer.commit()


def merge(
    index: str | Path,
    *,
    model: str | None = None,
    settings: MergeSettings | Overrides = None,
) -> Update:
    """The index made whole, as if it had been built anew from the documents that are in it.

    An approximation can be built beside it, which an index in segments has no place for.
    """
    settings = MergeSettings.given(settings, {"model": model})
    if settings.approximate is not None:
        check_approximation(settings.approximate, stated_manifest(Path(index)).kind)
    with IndexWriter(Path(index)) as writer:
        update = writer.merge()
    if settings.approximate is not None:
        about = add_approximation(Path(index), settings.model, settings.approximate)
        notice(about.summary())
    return update


def open_writer(index: str | Path, model: str | None = None) -> Writer:
    """The writer of an index, to be closed or used in a `with` block; a second one is refused."""
    return Writer(IndexWriter(Path(index)), model)


class Writer:
    """The one writer of an index, together with the encoder that filled it.

    Nothing counts before `commit`; leaving the `with` block without it changes nothing.
    """

    def __init__(self, index: IndexWriter, model: str | None = None) -> None:
        self.index = index
        self._model = model

    @cached_property
    def encoder(self) -> DenseEncoder | SparseEncoder | None:
        """The encoder of the index, loaded when the first document is added; None for BM25."""
        return _encoder(self.index, self._model)

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; those whose ids are there already are replaced."""
        for block in blocks(documents, _BLOCK):
            self.index.add(block, _vectors(self.encoder, block))

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        self.index.delete(ids)

    def commit(self) -> Update:
        """Makes all that was done since the last commit count, at once and for good."""
        return self.index.commit()

    def merge(self) -> Update:
        """Commits, and makes the index whole: as if built anew from its living documents."""
        return self.index.merge()

    def close(self, wait: bool = True) -> None:
        """Lets others write; merging under way comes to its end first, or is given up."""
        self.index.close(wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(wait=kind is None)


def _vectors(encoder: DenseEncoder | SparseEncoder | None, documents: list[Document]) -> Any:
    return None if encoder is None else encoder.encode_documents(documents)


def _encoder(index: IndexWriter, model: str | None) -> DenseEncoder | SparseEncoder | None:
    origin = index.manifest.encoder
    if origin is None:
        return None
    # They bring torch, which deleting does without.
    from isthmus.encoders import load_encoder, load_int8_encoder

    name = encoder_name(index.folder, origin, model)
    if origin.backend == "onnx-int8":
        encoder = load_int8_encoder(name)
    else:
        encoder = load_encoder(name, exact=origin.backend == "torch-float32")
    check_encoder(index.manifest, encoder, where="--model")
    return encoder
