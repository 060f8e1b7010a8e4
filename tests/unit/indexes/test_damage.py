"""Any byte of any file of any index, changed, cut off or swapped: the right answer or a refusal."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from tests.factories import described

from isthmus.config.output import SNAPSHOT, write_json
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, IsthmusError
from isthmus.indexes import integrity
from isthmus.indexes.bm25.builder import build_bm25
from isthmus.indexes.dense.builder import DenseBuilder, build_hnsw
from isthmus.indexes.dense.hnsw import HnswSettings
from isthmus.indexes.manifest import (
    MANIFEST,
    InvertedSettings,
)
from isthmus.records import Document

ROWS, SIZE = 80, 8
NAMES = ["q0", "q1", "q2"]
TEXTS = ["river bank", "snow", "money in the bank"]
DOCUMENTS = [
    Document(f"d{row * 7 % ROWS:02}", f"{TEXTS[row % 3]} {row}", f"t {row % 9}")
    for row in range(ROWS)
]
RANDOM = np.random.default_rng(0)
DENSE = RANDOM.standard_normal((ROWS, SIZE)).astype(np.float32)
WEIGHTS = RANDOM.random((ROWS, SIZE)) * (RANDOM.random((ROWS, SIZE)) < 0.5)
WEIGHTS[:, -1] = np.arange(ROWS) % 37 == 3  # a rare term, whose lists are short
SPARSE = scipy.sparse.csr_matrix(WEIGHTS)
BITS, CUTS, SWAPS = 4, 2, 2  # of a file, in the suite


def dense(folder: Path, **values: Any) -> Path:
    with DenseBuilder(folder, described(dimension=SIZE, **values)) as builder:
        builder.add(DOCUMENTS, DENSE)
        return builder.finish({})


def inverted(folder: Path, **values: Any) -> Path:
    settings = InvertedSettings.parse(values, where="test")
    description = described("inverted", dimension=SIZE, inverted=settings)
    with InvertedBuilder(folder, description, 64) as builder:
        builder.add(DOCUMENTS, SPARSE)
        return builder.finish({})


def bm25(folder: Path) -> Path:
    return build_bm25(DOCUMENTS, folder, described("bm25"), {})


def segments(folder: Path) -> Path:
    with IndexWriter(dense(folder)) as writer:
        writer.add([Document("new", "snow", "")], DENSE[:1])
        writer.delete(["d07", "d14"])
        writer.commit()
    return folder


def graph(folder: Path) -> Path:
    build_hnsw(dense(folder), DenseIndex.open(folder), HnswSettings())
    return folder


KINDS: dict[str, tuple[Callable[[Path], Path], Any]] = {
    "float32": (dense, DENSE[:3]),
    "float16": (lambda folder: dense(folder, dtype="float16"), DENSE[:3]),
    "inverted": (inverted, SPARSE[:3]),
    "inverted-float": (lambda folder: inverted(folder, weights="float"), SPARSE[:3]),
    "bm25": (bm25, TEXTS),
    "segments": (segments, DENSE[:3]),
    "hnsw": (graph, DENSE[:3]),
}


def answers(folder: Path, kind: str) -> Any:
    """Rankings, and the documents found, of the index as it lies there."""
    index = open_index(folder, hnsw=kind == "hnsw")
    rankings = index.search(KINDS[kind][1], 10, NAMES)
    rows = [index.store.row(one) for ranking in rankings for one in ranking.document_ids]
    return rankings, [index.store.document(row) for row in rows if row is not None]


def harms(file: Path, others: list[Path], generator: random.Random) -> Iterator[bytes | None]:
    """What may become of a file: bits, its end, another's content; None: it is gone."""
    whole = file.read_bytes()
    places = [0, len(whole) - 1, *(generator.randrange(len(whole)) for _ in range(BITS - 2))]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << generator.randrange(8)
        yield bytes(flipped)
    for size in (0, *(generator.randrange(len(whole)) for _ in range(CUTS - 1))):
        yield whole[:size]
    for other in generator.sample(others, min(SWAPS, len(others))):
        yield other.read_bytes()
    yield None


def damaged(kind: str, pristine: Path, folder: Path) -> Iterator[tuple[Path, Any]]:
    """Every file of an index, harmed in every way: what it answers then, or its refusal."""
    files = [file for file in sorted(pristine.rglob("*")) if file.is_file() and file.stat().st_size]
    generator = random.Random(0)
    for original in files:
        name = original.relative_to(pristine)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        for content in harms(original, [one for one in files if one != original], generator):
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
            try:
                yield name, answers(folder, kind)
            except IsthmusError as error:
                yield name, error


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_before_it_answers(kind: str, tmp_path: Path) -> None:
    if kind == "hnsw" and find_spec("faiss") is None:
        pytest.skip("the extra [ann] is not installed")
    pristine = KINDS[kind][0](tmp_path / "pristine")
    expected = answers(pristine, kind)
    for name, found in damaged(kind, pristine, tmp_path / "index"):
        if isinstance(found, IsthmusError):
            assert found.fix
            assert name.name != SNAPSHOT, "which is not searched"
        else:
            assert found == expected, name


def restored(folder: Path, name: str) -> None:
    """Makes the manifest say of a file what it is now, as one would who means harm."""
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    values["files"][name] = integrity.described(folder, [name])[name].model_dump()
    file.write_text(json.dumps(sealed(values)))


def lies(array: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays that point elsewhere, or are others altogether."""
    largest = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan
    for place in (0, array.size // 2, array.size - 1):
        wrong = array.copy()
        wrong.flat[place] = largest
        yield wrong
    yield array[:-1]
    yield np.concatenate([array, array])
    yield array.astype(np.complex64)
    yield array[..., None]


PLACES = {
    "float32": ["order", "vectors/shape"],
    "inverted": [
        "order", "rows", "term_lists", "term_postings", "term_records", "term_masked",
        "list_blocks", "list_lengths", "offsets", "cell_masks", "cell_starts", "weights/shape",
        "masked_weights/shape", "cell_bounds/shape",
    ],
    "inverted-float": ["weights", "offsets", "rows"],
}  # fmt: skip


@pytest.mark.parametrize("kind", PLACES)
def test_arrays_that_point_elsewhere_are_refused(kind: str, tmp_path: Path) -> None:
    folder = KINDS[kind][0](tmp_path / "index")
    for entry in PLACES[kind]:
        name, _, shape_alone = entry.partition("/")
        file = folder / f"{name}.npy"
        whole, array = file.read_bytes(), np.load(file)
        assert array.size, name
        for number, wrong in enumerate(lies(array)):
            if shape_alone and number < 3:
                continue
            np.save(file, wrong)
            restored(folder, file.name)
            with pytest.raises(InputError, match="damaged"):
                answers(folder, kind)
        file.write_bytes(whole)
        restored(folder, file.name)
    answers(folder, kind)


def test_another_manifest_of_files_that_were_compared_is_examined(tmp_path: Path) -> None:
    folder = inverted(tmp_path / "index")
    time.sleep(0.2)  # files that were written just now are not remembered
    manifest = read_manifest(folder)
    values = manifest.model_dump()
    values["layout"]["block"] //= 2
    write_json(folder / MANIFEST, sealed(values))
    with pytest.raises(InputError, match="damaged"):
        read_manifest(folder)
    write_json(folder / MANIFEST, sealed(manifest.model_dump()))
    assert read_manifest(folder) == manifest


def test_documents_that_point_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = dense(tmp_path / "index")
    table = pa.ipc.open_stream((folder / "documents.arrow").read_bytes()).read_all()
    batch = table.combine_chunks().to_batches()[0]
    for column in range(3):
        columns = batch.columns
        buffers = columns[column].buffers()
        offsets = np.frombuffer(buffers[1], np.int64).copy()
        offsets[ROWS // 2] = 2**40
        buffers[1] = pa.py_buffer(offsets.tobytes())
        columns[column] = pa.Array.from_buffers(pa.large_string(), ROWS, buffers)
        with pa.ipc.new_stream(folder / "documents.arrow", table.schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))
        restored(folder, "documents.arrow")
        with pytest.raises(InputError, match=r"documents\.arrow' is damaged"):
            answers(folder, "float32")


def test_a_hybrid_vouches_for_its_weights(tmp_path: Path) -> None:
    from isthmus.retrieval.hybrid_folder import HYBRID, Combination, Hybrid, Member, read_hybrid

    member = Member(index="bm25", encoder=None)
    hybrid = Hybrid(members=[member], combination=Combination(weights=[0.5]), state="000001")
    write_json(tmp_path / HYBRID, sealed(hybrid.model_dump()))
    assert read_hybrid(tmp_path) == hybrid
    whole = (tmp_path / HYBRID).read_text()
    (tmp_path / HYBRID).write_text(whole.replace("0.5", "0.7"))
    with pytest.raises(IsthmusError, match=r"hybrid\.json' is damaged"):
        read_hybrid(tmp_path)
    for name in ("../other", "a/b", "", "a\0b", "/a\0b"):
        values = json.loads(whole)
        values["members"][0]["index"] = name
        write_json(tmp_path / HYBRID, sealed(values))
        with pytest.raises(IsthmusError, match=r"hybrid\.json' is damaged"):
            read_hybrid(tmp_path)


def test_memory_that_ran_out_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), integrity.parsing(tmp_path / "vectors.npy", tmp_path):
        np.empty(2**62, dtype=np.int8)
