"""Vectors written for other tools: of an index or of texts, as a file or into Milvus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from isthmus.collections import open_corpus, read_queries
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.output import reserved, where_it_leads, writing
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.indexes.arrays import GrowingArray
from isthmus.indexes.documents import blocks
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import index_folder, is_index
from isthmus.indexes.milvus import Milvus
from isthmus.progress import Bar, notice, waiting
from isthmus.records import Document, Query

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

_FORMATS = (".npy", ".parquet")
Part = tuple[Sequence[Document | Query], Any]


class ExportSettings(ReadingSettings, EncodingChoice):
    """How texts become vectors, and how Milvus keeps them."""

    verb = "export"

    use: str | None = Field(
        None, description="name of the field of an index; null: the only one of its type"
    )
    exact: bool = Field(False, description="encode in float32, whatever would be fastest here")
    block_size: int = Field(1024, ge=1, description="texts that are written at a time")
    name: str = Field(
        "isthmus",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="name of the collection in Milvus: lower-case letters, digits, _",
    )
    hnsw: bool = Field(False, description="whether Milvus gets a graph: fast, and no longer exact")


def export(
    source: str,
    output: str | Path,
    *,
    model: str | None = None,
    as_: Literal["documents", "queries"] = "documents",
    settings: ExportSettings | Overrides = None,
) -> Path:
    """Where the vectors are now: of an index or, with a model, of texts.

    A `.npy` file is a matrix (its ids in `.ids.jsonl`), a `.parquet` file has ids and vectors; a
    path that ends in `.db`, or an address, is a Milvus. Vectors of a sparse encoder are lists of
    tokens and weights, which `.npy` does not hold.
    """
    settings = ExportSettings.given(settings)
    check_arguments("export", {"source": source, "output": output}, {"model": model})
    to_milvus = "://" in str(output) or Path(output).suffix == ".db"
    if not to_milvus:
        _check_output(Path(output))
    if model is not None:
        if to_milvus:
            raise SettingsError(
                f"--output {output}: Milvus is filled from an index, and --model is for texts",
                f"isthmus index {source} -m {model} -o INDEX; isthmus export INDEX -o {output}",
            )
        return _texts_to_file(source, Path(output), model, as_, settings)
    if as_ == "queries":
        raise SettingsError("--as queries needs an encoder", "give --model MODEL")
    index, fields = _with_vectors(source, settings.use)
    if to_milvus:
        with reserved(None if "://" in str(output) else Path(output)):
            Milvus(str(output), settings.name).fill(index, fields, settings.hnsw)
        return Path(output)
    return _index_to_file(index, fields, Path(output))


def _with_vectors(source: str, use: str | None) -> tuple[Index, dict[str, str]]:
    """An index, and the fields of vectors that are exported, by type: one dense, one sparse."""
    folder = index_folder(source)
    if not is_index(folder):
        raise SettingsError(
            f"{source!r} is not the folder of an index",
            "give the folder of an index, or --model MODEL to encode texts",
        )
    index = Index.open(folder)
    if use is not None:
        index.manifest.field(use)
    found: dict[str, str] = {}
    for name, field in index.manifest.fields.items():
        if field.encoder is not None and use in (None, name):
            found.setdefault(field.type, name)
    if not found:
        raise InputError(
            f"{source!r} holds no vectors to export",
            "give the documents to Milvus, which has its own BM25; or export an index with a field "
            "of a model",
        )
    return index, found


def _index_to_file(index: Index, fields: dict[str, str], output: Path) -> Path:
    if "dense" not in fields:
        raise SettingsError(
            f"--output {output}: a file holds dense vectors, and the index has sparse ones",
            "export texts with --model MODEL",
        )
    name = fields["dense"]
    about = index.manifest.fields[name]
    parts = ((batch.rows, batch.vectors[name]) for batch in index.batches([name]))
    return _write(output, _counted(parts, len(index)), getattr(about, "dimension", 0), _dense)


def _counted(parts: Iterator[Part], total: int) -> Iterator[Part]:
    with Bar("exporting", total, "rows") as bar:
        for part in parts:
            yield part
            bar.advance(len(part[0]))


def _texts_to_file(
    source: str, output: Path, model: str, as_: str, settings: ExportSettings
) -> Path:
    with waiting(f"loading the encoder {model}"):
        from isthmus.encoders import MultiVectorEncoder, load_encoder

        encoder = load_encoder(model, settings.chosen(), settings.exact)
    if isinstance(encoder, MultiVectorEncoder):
        raise SettingsError(
            f"--model {model!r} has a vector for each token, and a row of {output} holds one",
            "name a dense or sparse encoder",
        )
    if encoder.kind == "sparse" and output.suffix == ".npy":
        raise SettingsError(
            f"--output {output}: {model!r} is sparse, and a matrix of its vectors would be nearly "
            "all zeros",
            f"--output {output.with_suffix('.parquet')}",
        )
    problems = settings.account()
    read = _queries if as_ == "queries" else _documents
    columns = partial(_sparse, encoder) if encoder.kind == "sparse" else _dense
    parts = read(source, encoder, settings, problems)
    _write(output, parts, encoder.dimension, columns)
    if problems.counts:
        notice(problems.summary())
    return output


def _write(output: Path, parts: Iterator[Part], dimension: int, columns: Any) -> Path:
    """The file of the vectors, which appears when it is complete."""
    with reserved(output), writing(output):
        file, ids = map(_part, _files(output))
        try:
            if output.suffix == ".npy":
                _write_matrix(file, ids, dimension, parts)
            else:
                _write_table(file, parts, columns)
            for part, whole in zip((ids, file), reversed(_files(output)), strict=True):
                if part.exists():
                    part.replace(whole)
        finally:
            for part in (file, ids):
                part.unlink(missing_ok=True)
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
            "choose .npy (a matrix), .parquet (ids and vectors), or .db (Milvus)",
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
    texts: str, encoder: DenseEncoder | SparseEncoder, settings: ExportSettings, problems: Any
) -> Iterator[Part]:
    source = open_corpus(texts, problems)
    with Bar(f"encoding {texts}", source.count(), "documents") as bar:
        parts = blocks(source.documents(), settings.block_size)
        yield from encoder.encode_blocks(parts, bar.advance)


def _queries(
    texts: str, encoder: DenseEncoder | SparseEncoder, settings: ExportSettings, problems: Any
) -> Iterator[Part]:
    found = read_queries(texts, problems)
    with Bar(f"encoding {texts}", len(found), "queries") as bar:
        for first in range(0, len(found), settings.block_size):
            part = found[first : first + settings.block_size]
            yield part, encoder.encode_queries([query.text for query in part])
            bar.advance(len(part))


def _write_matrix(file: Path, names: Path, dimension: int, parts: Iterator[Part]) -> None:
    with (
        GrowingArray(file, np.float32, dimension) as vectors,
        names.open("w", encoding="utf-8") as ids,
    ):
        for texts, found in parts:
            vectors.append(np.asarray(found, dtype="<f4"))
            ids.writelines(f"{json.dumps(text.id)}\n" for text in texts)


def _write_table(file: Path, parts: Iterator[Part], columns: Any) -> None:
    import pyarrow.parquet as pq

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
