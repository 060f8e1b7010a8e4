"""Held-out documents: which they are, their batches, and what asks for them in retrieval.

Queries are titles, or sentences taken out of their passages.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tokenised

from isthmus.nn.backbone import new_backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.probes import HeldOut, Retrieval, assemble_probes, split
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings, ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.task import Batch

WORDS = "the quick brown fox jumps over the lazy dog ! ? ."
TOKENIZER = new_tokenizer([WORDS] * 2, 200)
BACKBONE = new_backbone("tiny", len(TOKENIZER), 0)
NUMBERS = ["quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again", "and"]


def numbered(number: int) -> str:
    """A text of its own for every number, of three sentences."""
    digits = [NUMBERS[int(digit)] for digit in f"{number:05d}"]
    return f"The {' '.join(digits)}! Fox {' '.join(digits[::-1])}! Dog {' '.join(digits[1:])}"


@pytest.mark.parametrize(
    ("documents", "wanted", "expected"),
    [
        (399, 300, 0),  # a twentieth would be 19
        (400, 300, 20),
        (459, 300, 22),
        (1000, 30, 30),
        (1000, 19, 0),
        (1000, 0, 0),
    ],
)
def test_at_most_a_twentieth_and_none_below_twenty(
    tmp_path: Path, documents: int, wanted: int, expected: int
) -> None:
    texts = tokenised([numbered(number) for number in range(documents)], TOKENIZER, tmp_path)
    rows, held_out = split(texts, ProbeSettings(documents=wanted), seed=3)
    assert len(held_out) == expected
    assert sorted([*rows, *held_out]) == list(range(documents)), "every row on one side"
    assert (np.diff(rows) > 0).all()
    assert (np.diff(held_out) > 0).all()


def test_copies_of_held_out_documents_are_in_neither_side(tmp_path: Path) -> None:
    # 500 documents, each twice, and one far too often.
    texts = tokenised(
        [numbered(number % 500) for number in range(1000)] + [numbered(7)] * 400,
        TOKENIZER,
        tmp_path,
    )
    for seed in range(5):
        rows, held_out = split(texts, ProbeSettings(), seed)
        shown = {texts[row].tokens.tobytes() for row in rows}
        hidden = [texts[row].tokens.tobytes() for row in held_out]
        assert len(held_out) == 25, "a twentieth of the different documents"
        assert len(set(hidden)) == len(hidden)
        assert shown.isdisjoint(hidden)
        assert len(shown) == 475


def test_documents_without_two_tokens_are_not_held_out(tmp_path: Path) -> None:
    texts = tokenised(
        ["", "fox"] * 300 + [numbered(number) for number in range(400)], TOKENIZER, tmp_path
    )
    _, held_out = split(texts, ProbeSettings(), seed=0)
    assert len(held_out) == 20
    assert held_out.min() >= 600


def prepared(
    documents: list[Document], tmp_path: Path, **change: Any
) -> tuple[PretrainTask, HeldOut, ProbeSettings]:
    """What is made of all documents but the first two."""
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny", "max_length": 24,
        "corruption": "uniform",
        "objectives": {"masked_lm": 1.0}, **change,
    }  # fmt: skip
    settings = PretrainSettings.parse(values, where="test")
    parts = assemble(settings)
    texts = tokenise(documents, "d", TOKENIZER.serialised, cache=tmp_path)
    rows = np.arange(len(texts))
    examples = PretrainExamples(texts, parts.view, TOKENIZER, 24, seed=5, rows=rows[:2])
    task = PretrainTask(BACKBONE, TOKENIZER, parts)
    held_out = HeldOut(examples, rows[2:], documents, task, settings.probes)
    return task, held_out, settings.probes


def test_batches_of_many_and_never_of_one(tmp_path: Path) -> None:
    # 65 documents: alone in a batch, one would be given its own vector for another's.
    documents = [Document(str(n), numbered(n)) for n in range(67)]
    _, held_out, _ = prepared(documents, tmp_path)
    assert [len(batch["keys"]) for batch in held_out.texts] == [65]
    assert [len(batch["keys"]) for batch in held_out.steps] == [65]
    drawn = [key for batch in held_out.texts for key in batch["keys"].tolist()]
    assert len(set(drawn)) == 65


def test_a_view_of_two_texts_is_kept(tmp_path: Path) -> None:
    documents = [Document(str(n), numbered(n)) for n in range(8)]
    _, held_out, _ = prepared(documents, tmp_path, view={"name": "neighbours", "span": 10})
    (batch,) = held_out.steps
    assert len(batch["keys"]) == 12
    assert batch["attention_mask"].sum(1).max() <= 10
    assert len(held_out.texts[0]["keys"]) == 6, (
        "what is measured on texts is measured on whole ones"
    )


def asked(documents: list[Document], tmp_path: Path) -> Retrieval:
    """The retrieval probe of all documents but the first two."""
    task, held_out, settings = prepared(
        documents, tmp_path, probes={"measure": {"retrieval": {"query": "auto"}}}
    )
    probe = assemble_probes(settings, task.parts)["retrieval"]
    assert isinstance(probe, Retrieval)
    probe.prepare(task, held_out, decides=settings.best_by == "retrieval")
    return probe


def rows_of(batches: list[Batch]) -> list[list[int]]:
    """The ids of every row without special tokens."""
    found = []
    for batch in batches:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            row = ids[mask.bool()].tolist()
            assert row[0] == 2
            assert row[-1] == 3
            assert len(row) <= 24
            found.append(row[1:-1])
    return found


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.backend.encode(text, add_special_tokens=False).ids
    return found


def test_a_sentence_is_taken_out_of_its_passage(tmp_path: Path) -> None:
    texts = [
        "Fox fox fox fox! Dog dog dog dog dog! The the the the the the",
        "Over over over over over! Brown brown brown brown",
        "Fox! Dog! Jumps jumps jumps jumps! Lazy lazy lazy lazy",  # two are too short to ask with
        "Lazy lazy lazy lazy lazy lazy lazy",  # nothing would be left
        "Quick quick quick quick quick! Fox",  # too little would be
        "",
    ]
    documents = [Document(str(n), text) for n, text in enumerate(["fox dog", "dog", *texts])]
    probe = asked(documents, tmp_path)
    corpus = tokenise(documents, "d", TOKENIZER.serialised, cache=tmp_path)
    queries, passages = rows_of(probe.queries), rows_of(probe.passages)
    assert len(queries) == len(passages) == 3
    assert probe.groups.tolist() == [0, 1, 2]
    for query, passage in zip(queries, passages, strict=True):
        assert len(query) >= 4
        assert len(passage) >= 4
        (tokens,) = [
            tokens
            for row in range(2, len(corpus))
            if Counter(tokens := corpus[row].tokens[:22].tolist()) == Counter(query + passage)
        ]
        (place,) = [
            place
            for place in range(len(tokens))
            if tokens[place : place + len(query)] == query
            and tokens[:place] + tokens[place + len(query) :] == passage
        ]
        before = tokens[:place]
        assert not before or before[-1] == ids("!")[0], "a whole sentence"
        assert set(query) & set(passage) <= set(ids("!")), "the sentence itself is gone"


def test_no_sentence_comes_from_behind_the_crop(tmp_path: Path) -> None:
    long = "Fox fox fox fox fox fox fox fox fox fox! Dog dog dog dog dog dog dog dog dog! "
    documents = [Document(str(n), long + "The the the the the! Brown brown") for n in range(40)]
    probe = asked(documents, tmp_path)
    for query, passage in zip(rows_of(probe.queries), rows_of(probe.passages), strict=True):
        assert sorted(query + passage) == sorted(ids(documents[0].text)[:22])
    starts = {query[0] for query in rows_of(probe.queries)}
    assert starts == set(ids("fox dog")), "any of the sentences, drawn for each document"


def test_titles_ask_for_texts_without_them(tmp_path: Path) -> None:
    titles = ["fox", "fox", "lazy dog", "", "brown", "lazy dog", " ", "over"]
    documents = [Document(str(n), numbered(n), title) for n, title in enumerate(titles)]
    probe = asked(documents, tmp_path)
    titled = [document for document in documents[2:] if document.title.strip()]
    assert rows_of(probe.queries) == [ids(document.title) for document in titled]
    assert rows_of(probe.passages) == [ids(document.text)[:22] for document in titled]
    same = probe.groups[:, None] == probe.groups
    expected = [[one.title == other.title for other in titled] for one in titled]
    assert same.tolist() == expected
