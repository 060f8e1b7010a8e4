"""Token vectors in segments: however they came there, answers are those of an index built anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.factories import BM25, ENCODER, fill, index_of, manifest
from tests.index_bytes import verify

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import TokensField, TokensSettings
from isthmus.indexes.ragged import Ragged, TokenVectors, with_different_pieces
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document

WIDTH, WORDS = 7, ["river", "bank", "money", "snow", "boat", "loan"]
ABOUT = TokensField(
    encoder=ENCODER,
    dimension=WIDTH,
    settings=TokensSettings(bits=2, pooling=2),
    centre=[0.125] * WIDTH,
)
FIELDS = {"bm25": BM25, "tokens": ABOUT}
QUERY = "money on the river bank"
GENERATOR = np.random.default_rng(0)
TEXTS = [" ".join(GENERATOR.choice(WORDS, count)) for count in GENERATOR.integers(0, 9, 30)]
DOCUMENTS = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]


def of_words(texts: Sequence[str]) -> TokenVectors:
    """A vector of length 1 for each word."""
    pieces = [np.array([crc32(one.encode()) % 97 for one in text.split()], int) for text in texts]
    vectors = [
        np.stack([np.random.default_rng(one).standard_normal(WIDTH) for one in some])
        if len(some)
        else np.empty((0, WIDTH))
        for some in pieces
    ]
    each = [
        (one / np.linalg.norm(one, axis=1, keepdims=True)).astype(np.float32) for one in vectors
    ]
    return TokenVectors(Ragged.of(each, each[0][:0]), Ragged.of(pieces, pieces[0][:0]))


def given(some: Sequence[Document]) -> dict[str, Any]:
    return {"tokens": with_different_pieces(of_words([one.text for one in some]))}


def answers(folder: Path) -> Any:
    index = Index.open(folder)
    query = of_words([QUERY])
    (found,) = index.search("tokens", query, 100, ["q"])
    assert index.scored("tokens", query, list(index.ids())) == dict(found)
    return found


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return index_of(tmp_path / "whole", DOCUMENTS, FIELDS, given(DOCUMENTS)).folder


def arrays(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("segments/*/tokens/*")}


def test_added_replaced_deleted_merged_and_resumed(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    other = [Document(one.id, f"{one.text} snow loan glacier") for one in DOCUMENTS[:9]]
    gone = [Document(f"gone{number}", "river money") for number in range(5)]
    begin = [*other, *gone, *DOCUMENTS[9:12]]
    with IndexWriter(folder, manifest(FIELDS), job="begin") as writer:
        fill(writer, begin[:10], given(begin[:10]), step=3)
    with IndexWriter(folder, manifest(FIELDS), job="begin") as writer:
        assert writer.done == 10, "it goes on where it stopped"
        fill(writer, begin[10:], given(begin[10:]), step=3)
        writer.commit()
    for some in (DOCUMENTS[:9], DOCUMENTS[12:]):
        with IndexWriter(folder) as writer:
            fill(writer, some, given(some), step=4)
            writer.delete([one.id for one in gone])
            writer.commit()
    assert len(verify(folder).segments) == 3
    assert answers(folder) == answers(whole)
    with IndexWriter(folder) as writer:
        writer.delete([f"d{number}" for number in range(9)])
        writer.commit()
        fill(writer, DOCUMENTS[:9], given(DOCUMENTS[:9]))
        writer.commit()
        writer.merge(everything=True)
    assert answers(folder) == answers(whole)
    order = [*DOCUMENTS[9:], *DOCUMENTS[:9]]
    anew = index_of(tmp_path / "anew", order, FIELDS, given(order), step=5).folder
    assert arrays(folder) == arrays(anew)


def test_a_field_that_comes_later_is_resumed(whole: Path, tmp_path: Path) -> None:
    grown = index_of(tmp_path / "grown", DOCUMENTS, {"bm25": BM25}).folder

    def encode(parts: Iterator[list[Document]], blocks: int = 99) -> Iterator[Any]:
        for part in parts:
            for first in range(0, len(part), 7):
                if not blocks:
                    raise KeyboardInterrupt
                blocks -= 1
                block = part[first : first + 7]
                yield block, given(block)

    encoded = []
    with IndexWriter(grown, job="field") as writer, pytest.raises(KeyboardInterrupt):
        writer.add_fields({"tokens": ABOUT}, lambda parts: encode(parts, 2))
    with IndexWriter(grown, job="field") as writer:
        writer.add_fields(
            {"tokens": ABOUT},
            lambda parts: ((encoded.extend(one[0]), one)[1] for one in encode(parts)),
        )
    assert len(encoded) == len(DOCUMENTS) - 14, "the others were recorded"
    assert answers(grown) == answers(whole)
    assert arrays(grown) == arrays(whole)


def test_words_count_by_how_few_living_texts_hold_them(whole: Path) -> None:
    with IndexWriter(whole) as writer:
        fill(writer, [more := Document("more", "glacier bank")], given([more]))
        writer.delete([f"d{number}" for number in range(0, 30, 3)])
        writer.commit()
    living = [one.text.split() for one in [*DOCUMENTS, more]]
    living = [one for number, one in enumerate(living) if number % 3 or number == 30]
    words = ["river", "bank", "glacier", "unheard", "river"]
    rarity = [
        np.log((len(living) + 1) / (sum(word in one for one in living) + 0.5)) for word in words
    ]
    found = Index.open(whole).asked("tokens", of_words([" ".join(words)])).pieces.values
    np.testing.assert_allclose(found, np.array(rarity) / sum(rarity), rtol=1e-6)


def test_what_has_no_tokens_is_not_found_and_finds_nothing(whole: Path) -> None:
    index = Index.open(whole)
    none = of_words([""])
    assert [len(one) for one in index.search("tokens", none, 9, ["q"])] == [0]
    assert index.scored("tokens", none, ["d0", "d1"]) == {}
    found = answers(whole).document_ids
    assert sorted(found) == sorted(one.id for one in DOCUMENTS if one.text)


def test_vectors_that_cannot_be_stored_or_compared_are_refused(whole: Path) -> None:
    before = answers(whole)
    some = [Document("x", "river"), Document("y", "bank snow"), Document("z", "")]
    bad = given(some)
    bad["tokens"].vectors.values[2] = np.nan
    with IndexWriter(whole) as writer:
        with pytest.raises(InputError, match="document 'y'"):
            writer.add(some, some, bad)
        writer.commit()
    assert answers(whole) == before
    index, query = Index.open(whole), of_words([QUERY])
    wide = Ragged(np.tile(query.vectors.values, 2), query.vectors.starts)
    with pytest.raises(MismatchError, match="have 7 numbers"):
        index.search("tokens", TokenVectors(wide, query.pieces), 5, ["q"])
    query.vectors.values[0] = np.inf
    with pytest.raises(InputError, match="query 'q' are not finite"):
        index.search("tokens", query, 5, ["q"])
