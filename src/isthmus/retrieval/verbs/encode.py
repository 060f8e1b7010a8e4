"""The verb `isthmus encode`: texts in, their vectors as a file out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from isthmus.collections import open_corpus, read_queries
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.output import reserved, where_it_leads, writing
from isthmus.config.settings import check_arguments
from isthmus.errors import OutputError, SettingsError
from isthmus.indexes.arrays import GrowingArray
from isthmus.indexes.documents import blocks
from isthmus.progress import Bar, notice, waiting
from isthmus.records import Document, Query

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

_FORMATS = (".npy", ".parquet")
Part = tuple[Sequence[Document | Query], Any]


class EncodeSettings(ReadingSettings, EncodingChoice):
    """How texts become vectors in a file."""

    verb = "encode"

    exact: bool = Field(False, description="in float32, whatever would be fastest here")
    block_size: int = Field(1024, ge=1, description="texts that are written at a time")


def encode(
    texts: str,
    output: str | Path,
    model: str,
    *,
    queries: bool = False,
    settings: EncodeSettings | Overrides = None,
) -> Path:
    """The file of the vectors: a matrix (.npy, with the ids in a .ids.jsonl), or ids and vectors.

    `texts` is a corpus or, for `queries`, a file of these. Vectors of a sparse encoder are lists of
    tokens and weights, which only .parquet holds.
    """
    settings = EncodeSettings.given(settings, {})
    check_arguments("encode", {"texts": texts, "output": output, "model": model})
    output = Path(output)
    _check_output(output)
    with waiting(f"loading the encoder {model}"):
        from isthmus.encoders import load_encoder

        encoder = load_encoder(model, settings.chosen(), settings.exact)
    if encoder.kind == "sparse" and output.suffix == ".npy":
        raise SettingsError(
            f"--output {output}: {model!r} is sparse, and a matrix of its vectors would be nearly "
            "all zeros",
            f"--output {output.with_suffix('.parquet')}",
        )
    problems = settings.account()
    with reserved(output), writing(output):
        file, ids = map(_part, _files(output))
        write = _write_matrix if output.suffix == ".npy" else _write_table
        parts = _queries if queries else _documents
        try:
            write(file, ids, encoder, parts(texts, encoder, settings, problems))
            for part, whole in zip((ids, file), reversed(_files(output)), strict=True):
                if part.exists():
                    part.replace(whole)
        finally:
            for part in (file, ids):
                part.unlink(missing_ok=True)
    if problems.counts:
        notice(problems.summary())
    return output


def _files(output: Path) -> tuple[Path, Path]:
    """Where vectors are written, and their ids where these lie apart."""
    return output, output.with_suffix(".ids.jsonl")


def _part(file: Path) -> Path:
    """Where a file is written until it is whole."""
    return where_it_leads(file).with_name(f".{file.name}.part")


def _check_output(output: Path) -> None:
    if output.suffix not in _FORMATS:
        raise SettingsError(
            f"--output {str(output)!r} does not say in which format to write vectors",
            "choose .npy (a matrix) or .parquet (ids and vectors)",
            ", ".join(str(output.with_suffix(ending)) for ending in _FORMATS),
        )
    there = [file for file in _files(output)[: 1 + (output.suffix == ".npy")] if file.exists()]
    # A command that was killed between the two renames left the matrix under its first name.
    killed = output not in there and _part(output).exists()
    for file in () if killed else there:
        raise OutputError(
            f"--output {str(file)!r} exists already",
            "choose another --output, or remove the file",
        )


def _documents(
    texts: str, encoder: DenseEncoder | SparseEncoder, settings: EncodeSettings, problems: Any
) -> Iterator[Part]:
    source = open_corpus(texts, problems)
    with Bar(f"encoding {texts}", source.count(), "documents") as bar:
        parts = blocks(source.documents(), settings.block_size)
        yield from encoder.encode_blocks(parts, bar.advance)


def _queries(
    texts: str, encoder: DenseEncoder | SparseEncoder, settings: EncodeSettings, problems: Any
) -> Iterator[Part]:
    found = read_queries(texts, problems)
    with Bar(f"encoding {texts}", len(found), "queries") as bar:
        for first in range(0, len(found), settings.block_size):
            part = found[first : first + settings.block_size]
            yield part, encoder.encode_queries([query.text for query in part])
            bar.advance(len(part))


def _write_matrix(
    file: Path, names: Path, encoder: DenseEncoder | SparseEncoder, parts: Iterator[Part]
) -> None:
    with (
        GrowingArray(file, np.float32, encoder.dimension) as vectors,
        names.open("w", encoding="utf-8") as ids,
    ):
        for texts, found in parts:
            vectors.append(np.asarray(found, dtype="<f4"))
            ids.writelines(f"{json.dumps(text.id)}\n" for text in texts)


def _write_table(
    file: Path, names: Path, encoder: DenseEncoder | SparseEncoder, parts: Iterator[Part]
) -> None:
    import pyarrow.parquet as pq

    columns = partial(_sparse, encoder) if encoder.kind == "sparse" else _dense
    with ExitStack() as stack:
        writer: Any = None
        for texts, found in parts:
            ids = pa.array([text.id for text in texts], pa.string())
            batch = pa.record_batch({"id": ids, **columns(found)})
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, batch.schema))
            writer.write_batch(batch)
        if writer is None:
            raise SettingsError(
                "there are no texts to encode",
                "give a corpus with documents, or a file of queries",
            )


def _dense(vectors: Any) -> dict[str, pa.Array]:
    flat = pa.array(np.asarray(vectors, dtype=np.float32).ravel())
    return {"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}


def _sparse(encoder: Any, matrix: Any) -> dict[str, pa.Array]:
    rows = [encoder.terms(matrix[row]) for row in range(matrix.shape[0])]
    tokens = [[token for token, _ in row] for row in rows]
    weights = [[weight for _, weight in row] for row in rows]
    return {
        "terms": pa.array(tokens, pa.list_(pa.string())),
        "weights": pa.array(weights, pa.list_(pa.float32())),
    }
