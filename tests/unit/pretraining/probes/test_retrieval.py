"""The retrieval probe's queries: titles, or sentences taken out of their passages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.nn.sizes import new_backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.probes._base import assemble_probes
from isthmus.pretraining.probes._held_out import prepare_held_out
from isthmus.pretraining.probes.retrieval import Retrieval
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.training.task import Batch

WORDS = "the quick brown fox jumps over the lazy dog ! ? ."
TOKENIZER = new_tokenizer([WORDS] * 2, 200)
BACKBONE = new_backbone("tiny", len(TOKENIZER), 0)
NUMBERS = ["quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again", "and"]


def numbered(number: int) -> str:
    """A text of its own for every number, of three sentences."""
    digits = [NUMBERS[int(digit)] for digit in f"{number:05d}"]
    return f"The {' '.join(digits)}! Fox {' '.join(digits[::-1])}! Dog {' '.join(digits[1:])}"


def prepare(
    documents: list[Document], tmp_path: Path, query: str = "auto", **change: Any
) -> tuple[Retrieval, TokenisedCorpus]:
    """What is made of all documents but the first two."""
    values = {
        "corpus": "c", "output": "o", "init": "tiny", "max_length": 24, "corruption": "uniform",
        "objectives": {"masked_lm": 1.0}, "probes": {"measure": {"retrieval": {"query": query}}},
        **change,
    }  # fmt: skip
    settings = PretrainSettings.parse(values, where="test")
    parts = assemble(settings)
    texts = tokenise(documents, "d", TOKENIZER.serialised, cache=tmp_path)
    rows = np.arange(len(texts))
    examples = PretrainExamples(texts, parts.view, TOKENIZER, 24, seed=5, rows=rows[:2])
    task = PretrainTask(BACKBONE, TOKENIZER, parts)
    held_out = prepare_held_out(examples, rows[2:], documents, task, settings.probes)
    probe = assemble_probes(settings.probes, parts)["retrieval"]
    assert isinstance(probe, Retrieval)
    probe.prepare(task, held_out, decides=settings.probes.best_by == "retrieval")
    return probe, texts


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
    probe, corpus = prepare(documents, tmp_path)
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
    probe, _ = prepare(documents, tmp_path)
    for query, passage in zip(rows_of(probe.queries), rows_of(probe.passages), strict=True):
        assert sorted(query + passage) == sorted(ids(documents[0].text)[:22])
    starts = {query[0] for query in rows_of(probe.queries)}
    assert starts == set(ids("fox dog")), "any of the sentences, drawn for each document"


def test_titles_ask_for_texts_without_them(tmp_path: Path) -> None:
    titles = ["fox", "fox", "lazy dog", "", "brown", "lazy dog", " ", "over"]
    documents = [Document(str(n), numbered(n), title) for n, title in enumerate(titles)]
    probe, _ = prepare(documents, tmp_path)
    asked = [document for document in documents[2:] if document.title.strip()]
    assert rows_of(probe.queries) == [ids(document.title) for document in asked]
    assert rows_of(probe.passages) == [ids(document.text)[:22] for document in asked]
    same = probe.groups[:, None] == probe.groups
    expected = [[one.title == other.title for other in asked] for one in asked]
    assert same.tolist() == expected
