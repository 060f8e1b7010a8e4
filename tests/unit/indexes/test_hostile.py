"""An index that was made to do harm, whose checksums hold, is refused by name."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
import xxhash
from tests.factories import BM25, DENSE, SPARSE, documents, index_of, vectors, words_cut

from isthmus.errors import InputError
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import DenseSettings
from isthmus.indexes.writer import IndexWriter

DOCUMENTS, VECTORS = documents(), vectors()
OVERFLOWING = [2**63 - 1, -2]  # the sum of the differences around them is right


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cut, rows = words_cut(DOCUMENTS)
    some = abs(VECTORS) * (np.arange(4) // 2 == np.arange(len(VECTORS))[:, None] % 2)
    given = {"dense": VECTORS, "sparse": scipy.sparse.csr_matrix(some)}
    fields = {"bm25": BM25, "dense": DENSE, "sparse": SPARSE}
    made = index_of(tmp_path / "index", DOCUMENTS, fields, given, rows, cut).folder
    with IndexWriter(made) as writer:
        writer.delete(["d1", "d2", "d3", "d4"])
        writer.commit()
    return made


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    values.pop("checksum", None)
    change(values["segments"][0])
    file.write_text(json.dumps(values))


def put(folder: Path, name: str, array: Any) -> None:
    stream = io.BytesIO()
    np.save(stream, array)
    write(folder, name, stream.getvalue())


def write(folder: Path, name: str, content: bytes) -> None:
    place = folder / "segments" / "000001" / name
    place.unlink(missing_ok=True)
    place.write_bytes(content)
    stored = {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
    edit(folder, lambda segment: segment["files"].update({name: stored}))


def search(folder: Path) -> None:
    index = Index.open(folder)
    for segment in index.segments:
        segment.check()


@pytest.mark.parametrize("name", ["passages/starts.npy", "bm25/starts.npy", "deleted-4.npy"])
def test_numbers_whose_differences_overflow_are_refused(folder: Path, name: str) -> None:
    numbers = np.load(folder / "segments" / "000001" / name)
    numbers[1:3] = OVERFLOWING
    put(folder, name, numbers)
    with pytest.raises(InputError, match=name.rpartition("/")[2]):
        search(folder)


def test_offsets_beyond_their_block_are_refused(folder: Path) -> None:
    for name, kind in (("bounds", np.uint8), ("masks", np.uint32), ("starts", np.uint16)):
        put(folder, f"sparse/cell_{name}.npy", np.empty((0, 1), dtype=kind))
    edit(folder, lambda segment: segment["fields"]["sparse"]["layout"].update(block=32))
    with pytest.raises(InputError, match=r"offsets\.npy"):  # kernels score a block at a time
        search(folder)


@pytest.mark.parametrize("name", ["documents/order.npy", "dense/vectors.npy", "bm25/rows.npy"])
def test_a_file_that_nothing_vouches_for_is_refused(folder: Path, name: str) -> None:
    edit(folder, lambda segment: segment["files"].pop(name))
    with pytest.raises(InputError, match=f"does not name {name}"):
        search(folder)


def test_a_pipe_is_not_read(folder: Path) -> None:
    name = "documents/documents.arrow"
    (folder / "segments" / "000001" / name).unlink()
    os.mkfifo(folder / "segments" / "000001" / name)
    edit(folder, lambda segment: segment["files"].update({name: {"bytes": 0, "xxh3": "0"}}))
    with pytest.raises(InputError, match="it is not a file"):
        search(folder)


@pytest.mark.parametrize(
    "name", ["documents/documents.arrow", "passages/passages.arrow", "bm25/vocabulary.arrow"]
)
def test_what_is_compressed_is_refused(folder: Path, name: str) -> None:
    with pa.memory_map(str(folder / "segments" / "000001" / name)) as stream:
        stream_of = "vocabulary" not in name
        read = pa.ipc.open_stream(stream) if stream_of else pa.ipc.open_file(stream)
        table = read.read_all()
        sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
        new = pa.ipc.new_stream if stream_of else pa.ipc.new_file
        with new(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    write(folder, name, sink.getvalue().to_pybytes())
    with pytest.raises(InputError, match="it is compressed"):  # a bomb is some kilobytes
        search(folder)


def test_a_graph_of_another_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = pytest.importorskip("faiss", reason="the extra [ann] is not installed")
    monkeypatch.setattr("isthmus.indexes.dense.builder.LEAST", 8)
    field = DENSE.model_copy(update={"settings": DenseSettings(hnsw=True)})
    made = index_of(tmp_path / "index", DOCUMENTS, {"dense": field}, {"dense": VECTORS}).folder
    other = faiss.IndexFlatIP(VECTORS.shape[1])
    other.add(VECTORS)
    faiss.write_index(other, str(tmp_path / "other"))
    write(made, "dense/vectors.faiss", (tmp_path / "other").read_bytes())
    with pytest.raises(InputError, match="it is a IndexFlatIP"):
        Index.open(made, graph=True)
