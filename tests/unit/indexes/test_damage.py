"""Any byte of any file of any index, changed, cut off or swapped: the right answer or a refusal."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from isthmus.config.output import SNAPSHOT
from isthmus.errors import IsthmusError
from isthmus.indexes.approximation import ApproximateSettings
from isthmus.indexes.bm25 import Bm25Index
from isthmus.indexes.building import DenseBuilder
from isthmus.indexes.inverted.building import InvertedBuilder
from isthmus.indexes.manifest import (
    Bm25Settings,
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
)
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
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
SPARSE = scipy.sparse.csr_matrix(RANDOM.random((ROWS, SIZE)) * (RANDOM.random((ROWS, SIZE)) < 0.5))
BITS, CUTS, SWAPS = 4, 2, 2  # of a file, in the suite


def described(**values: Any) -> Description:
    return Description(
        corpus=CorpusOrigin(spec="made up", fingerprint="c"),
        titles=True,
        **values if values["kind"] == "bm25"
        else {"encoder": EncoderOrigin(name="e", fingerprint="e"), "dimension": SIZE, **values},
    )  # fmt: skip


def dense(folder: Path, **values: Any) -> Path:
    description = described(**{"kind": "dense", "dtype": "float32", **values})
    with DenseBuilder(folder, description) as builder:
        builder.add(DOCUMENTS, DENSE)
        return builder.finish({})


def inverted(folder: Path, **values: Any) -> Path:
    settings = InvertedSettings.parse(values, where="test")
    with InvertedBuilder(folder, described(kind="inverted", inverted=settings), 32) as builder:
        builder.add(DOCUMENTS, SPARSE)
        return builder.finish({})


def bm25(folder: Path) -> Path:
    return Bm25Index.build(DOCUMENTS, folder, described(kind="bm25", bm25=Bm25Settings()), {})


def segments(folder: Path) -> Path:
    with IndexWriter(dense(folder)) as writer:
        writer.add([Document("new", "snow", "")], DENSE[:1])
        writer.delete(["d07", "d14"])
        writer.commit()
    return folder


def near(name: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        if name == "seismic":
            from isthmus.indexes.inverted.seismic import build_seismic

            build_seismic(inverted(folder), ApproximateSettings(name="seismic"))
        else:
            from isthmus.indexes.dense.approximate import approximate

            approximate(dense(folder), ApproximateSettings.parse({"name": name}, where="test"))
        return folder

    return build


KINDS: dict[str, tuple[Callable[[Path], Path], Any]] = {
    "float32": (dense, DENSE[:3]),
    "float16": (lambda folder: dense(folder, dtype="float16"), DENSE[:3]),
    "int8": (lambda folder: dense(folder, codes="int8"), DENSE[:3]),
    "inverted": (inverted, SPARSE[:3]),
    "inverted-float": (lambda folder: inverted(folder, weights="float"), SPARSE[:3]),
    "bm25": (bm25, TEXTS),
    "segments": (segments, DENSE[:3]),
    "hnsw": (near("hnsw"), DENSE[:3]),
    "ivf": (near("ivf"), DENSE[:3]),
    "seismic": (near("seismic"), SPARSE[:3]),
}
_PACKAGES = {"hnsw": "faiss", "ivf": "faiss", "seismic": "seismic"}


def answers(folder: Path, kind: str) -> Any:
    """Rankings, and the documents found, of the index as it lies there."""
    backend: Any = kind if kind in _PACKAGES else "numpy"
    index = open_index(folder, backend)
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
    if importlib.util.find_spec(_PACKAGES.get(kind, "numpy")) is None:
        pytest.skip("the extra [ann] is not installed")
    pristine = KINDS[kind][0](tmp_path / "pristine")
    expected = answers(pristine, kind)
    for name, found in damaged(kind, pristine, tmp_path / "index"):
        if isinstance(found, IsthmusError):
            assert found.remedy
            assert name.name != SNAPSHOT, "which is not searched"
        else:
            assert found == expected, name


def test_a_hybrid_vouches_for_its_weights(tmp_path: Path) -> None:
    from isthmus.config.output import write_json
    from isthmus.config.sealing import sealed
    from isthmus.search.combining import HYBRID, Combination, Hybrid, Member, read_hybrid

    member = Member(index=str(tmp_path.resolve()), encoder=None)
    hybrid = Hybrid(members=[member], combination=Combination(weights=[0.5]))
    write_json(tmp_path / HYBRID, sealed(hybrid.model_dump()))
    assert read_hybrid(tmp_path) == hybrid
    whole = (tmp_path / HYBRID).read_text()
    (tmp_path / HYBRID).write_text(whole.replace("0.5", "0.7"))
    with pytest.raises(IsthmusError, match=r"damaged: 'hybrid\.json'"):
        read_hybrid(tmp_path)
    for name in ("../other", "a/b", "", "a\0b", "/a\0b"):
        values = json.loads(whole)
        values["members"][0]["index"] = name
        write_json(tmp_path / HYBRID, sealed(values))
        with pytest.raises(IsthmusError, match=r"damaged: 'hybrid\.json'"):
            read_hybrid(tmp_path)
