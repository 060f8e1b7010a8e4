"""The verb `isthmus index`: a corpus and a model in, a searchable folder out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.config import Settings
from isthmus.errors import MismatchError
from isthmus.indexes.building import DenseBuilder, already_built
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import (
    Bm25Settings,
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
)
from isthmus.progress import Bar, notice, track

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder
    from isthmus.indexes.inverting import InvertedBuilder

BM25 = "bm25"


class IndexSettings(Settings):
    """How an index is filled and what it keeps."""

    titles: bool | None = Field(None, description="titles too; null: as the encoder was trained")
    texts: bool = Field(True, description="keep titles and texts in the index, to show results")
    dtype: Literal["float32", "float16"] = "float32"
    block_size: int = Field(1024, ge=1, description="documents between two recorded steps")
    problems: Literal["refuse", "skip"] = "refuse"
    inverted: InvertedSettings = InvertedSettings()
    bm25: Bm25Settings = Bm25Settings()


def index(
    corpus: str,
    output: str | Path,
    model: str | None = None,
    settings: IndexSettings | None = None,
) -> Path:
    """The folder of the finished index; without a model (or with "bm25") a BM25 index.

    Interrupted and run again, it goes on where it stopped; an index of the same corpus, encoder
    and settings is reused.
    """
    settings = settings or IndexSettings()
    output = Path(output)
    problems = Problems(settings.problems)
    source = open_corpus(corpus, problems)
    origin = CorpusOrigin(spec=corpus, fingerprint=source.fingerprint())
    encoder = _load(model)
    description = _describe(origin, encoder, settings)
    if already_built(output, description):
        notice(f"{output} already holds this index; nothing to do")
        return output
    request = {
        "corpus": corpus,
        "model": model or BM25,
        "settings": settings.model_dump(),
        "fingerprints": {
            "corpus": origin.fingerprint,
            "encoder": encoder.fingerprint if encoder is not None else None,
        },
    }
    if encoder is None:
        _fill_bm25(source, output, description, request)
    else:
        _fill(source, encoder, output, description, request, settings.block_size)
    if problems.counts:
        notice(problems.summary())
    return output


def _load(model: str | None) -> DenseEncoder | SparseEncoder | None:
    if model in (None, BM25):
        return None
    from isthmus.encoders import load_encoder  # brings torch, which BM25 does without

    return load_encoder(model)


def _describe(
    corpus: CorpusOrigin, encoder: DenseEncoder | SparseEncoder | None, settings: IndexSettings
) -> Description:
    if encoder is None:
        titles = settings.titles is not False
        return Description(
            kind="bm25", corpus=corpus, titles=titles, texts=settings.texts, bm25=settings.bm25
        )
    if settings.titles not in (None, encoder.settings.titles):
        raise MismatchError(
            f"titles = {settings.titles}, but the encoder {encoder.name!r} was made with "
            f"titles = {encoder.settings.titles}",
            where="titles",
            allowed=f"{encoder.settings.titles}, or nothing: the encoder knows",
            remedy="leave titles out, or choose an encoder trained the other way",
        )
    # A path is recorded in full, so that the index finds its encoder from any folder.
    name = str(Path(encoder.name).resolve()) if Path(encoder.name).exists() else encoder.name
    sparse = encoder.kind == "sparse"
    return Description(
        kind="inverted" if sparse else "dense",
        corpus=corpus,
        titles=encoder.settings.titles,
        texts=settings.texts,
        encoder=EncoderOrigin(name=name, fingerprint=encoder.fingerprint),
        dimension=encoder.dimension,
        dtype=None if sparse else settings.dtype,
        inverted=settings.inverted if sparse else None,
    )


def _builder(output: Path, description: Description) -> DenseBuilder | InvertedBuilder:
    if description.kind == "dense":
        return DenseBuilder(output, description)
    from isthmus.indexes.inverting import InvertedBuilder  # brings numba

    return InvertedBuilder(output, description)


def _fill_bm25(
    source: Corpus, output: Path, description: Description, request: Mapping[str, Any]
) -> None:
    from isthmus.indexes.bm25 import Bm25Index

    documents = track(
        source.documents(), f"indexing {description.corpus.spec}", source.count(), "documents"
    )
    Bm25Index.build(documents, output, description, request)


def _fill(
    source: Corpus,
    encoder: DenseEncoder | SparseEncoder,
    output: Path,
    description: Description,
    request: Mapping[str, Any],
    block_size: int,
) -> None:
    with _builder(output, description) as builder:
        done, total = builder.rows, source.count()
        if done:
            notice(f"resuming after {done:,} documents")
        remaining = islice(source.documents(), done, None)
        left = None if total is None else total - done
        with Bar(f"indexing {description.corpus.spec}", left, "documents") as bar:
            for block in blocks(remaining, block_size):
                vectors: Any = encoder.encode_documents(block)
                builder.add(block, vectors)
                bar.advance(len(block))
        builder.finish(request)
