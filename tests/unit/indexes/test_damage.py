"""Any byte of any file of an index, changed, cut off or swapped: the right answer or a refusal."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.factories import BM25, DENSE, ENCODER, documents, index_of, vectors, words_cut

from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, IsthmusError
from isthmus.indexes import integrity
from isthmus.indexes.filters import parse
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import MANIFEST, SparseField, SparseSettings, read_manifest
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document

DOCUMENTS = [
    Document(one.id, one.text, one.title, metadata={"n": n, "odd": str(n % 2)})
    for n, one in enumerate(documents())
]
CUT, ROWS = words_cut(DOCUMENTS)
SPARSE = scipy.sparse.csr_matrix(abs(vectors()))
GIVEN = {"dense": vectors(), "sparse": SPARSE, "float": SPARSE}
FLOAT = SparseSettings(weights="float")
FIELDS = {
    "bm25": BM25,
    "dense": DENSE,
    "sparse": SparseField(encoder=ENCODER, dimension=4),
    "float": SparseField(encoder=ENCODER, dimension=4, settings=FLOAT),
}
BITS, CUTS, SWAPS = 3, 2, 1  # of a file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = index_of(tmp_path / "index", DOCUMENTS, FIELDS, GIVEN, ROWS, CUT).folder
    with IndexWriter(made) as writer:
        writer.delete(["d7", "d14"])
        writer.commit()
    return made


def answers(folder: Path) -> Any:
    """Rankings of every field, and the documents found, of the index as it lies there."""
    index = Index.open(folder)
    masks = index.masks(parse({"n": {"$gte": 5}, "odd": "1"}))
    found = []
    for name in FIELDS:
        asked = GIVEN[name][:2] if name in GIVEN else ["river", "bank"]
        for some in (None, masks):
            found += index.search(name, asked, 10, ["p", "q"], some)
    ids = found[0].document_ids
    return found, index.documents(ids), index.best_passages("dense", vectors()[:1], ids)


def harms(file: Path, others: list[Path], generator: random.Random) -> Iterator[bytes | None]:
    """What may become of a file: bits, its end, another's content; None: it is gone."""
    whole = file.read_bytes()
    for place in (0, len(whole) - 1, *(generator.randrange(len(whole)) for _ in range(BITS - 2))):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << generator.randrange(8)
        yield bytes(flipped)
    for size in (0, *(generator.randrange(len(whole)) for _ in range(CUTS - 1))):
        yield whole[:size]
    for other in generator.sample(others, SWAPS):
        yield other.read_bytes()
    yield None


def test_damage_is_found_before_it_answers(folder: Path, tmp_path: Path) -> None:
    expected = answers(folder)
    files = [one for one in sorted(folder.rglob("*")) if one.is_file() and one.stat().st_size]
    generator, harmed = random.Random(0), tmp_path / "harmed"
    shutil.copytree(folder, harmed)
    for original in files:
        file = harmed / original.relative_to(folder)
        for content in harms(original, [one for one in files if one != original], generator):
            file.unlink()
            if content is not None:
                file.write_bytes(content)
            try:
                found = answers(harmed)
            except IsthmusError as error:
                found = expected if error.fix else None
            assert found == expected, file
            shutil.copy(original, file)
    assert answers(harmed) == expected


def test_another_manifest_of_files_that_were_compared_is_examined(folder: Path) -> None:
    time.sleep(0.2)  # files that were written just now are not remembered
    answers(folder)
    whole = (folder / MANIFEST).read_text()
    values = json.loads(whole)
    values["segments"][0]["fields"]["sparse"]["layout"]["block"] //= 2
    (folder / MANIFEST).write_text(json.dumps(sealed(values)))
    with pytest.raises(InputError, match="damaged"):
        answers(folder)
    (folder / MANIFEST).write_text(whole)
    assert read_manifest(folder).documents == 48
    answers(folder)


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


@pytest.mark.parametrize(
    "name",
    [
        "documents/order", "passages/starts", "bm25/starts", "bm25/rows", "bm25/lengths",
        "dense/vectors/shape", "sparse/rows", "sparse/term_lists", "sparse/term_postings",
        "sparse/term_records", "sparse/term_masked", "sparse/list_blocks", "sparse/list_lengths",
        "sparse/offsets", "sparse/weights/shape", "float/weights", "float/offsets",
        "metadata/codes", "metadata/starts",
    ],
)  # fmt: skip
def test_arrays_that_point_elsewhere_are_refused(folder: Path, name: str) -> None:
    """The checksums hold, as of one who means harm."""
    place = folder / "segments" / "000001"
    file = place / f"{name.removesuffix('/shape')}.npy"
    inner = file.relative_to(place).as_posix()
    array = np.load(file)
    assert array.size
    for number, wrong in enumerate(lies(array)):
        if name.endswith("/shape") and number < 3:
            continue
        np.save(file, wrong)
        values = json.loads((folder / MANIFEST).read_text())
        values["segments"][0]["files"] |= {
            inner: integrity.described(place, [inner])[inner].model_dump()
        }
        (folder / MANIFEST).write_text(json.dumps(sealed(values)))
        with pytest.raises(InputError, match="damaged"):
            answers(folder)


def test_memory_that_ran_out_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), integrity.parsing(tmp_path / "vectors.npy", tmp_path):
        np.empty(2**62, dtype=np.int8)
