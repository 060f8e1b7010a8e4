"""Training on passages: of a relevant document the nearest one, its others never negatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.factories import write_collection

from isthmus.collections import Problems
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.errors import SettingsError
from isthmus.finetuning.candidates import TrainingCorpus
from isthmus.finetuning.mining import mine
from isthmus.finetuning.negatives import negative_sources
from isthmus.finetuning.pairs import PairExamples
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.training_collection import (
    cutter_of,
    stage_collection,
    training_queries,
)
from isthmus.nn.backbone import new_backbone
from isthmus.records import document_of
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

FILLER = " ".join(f"The weather of day {number} was dull." for number in range(12))
WORDS = ("zebra", "walrus", "otter", "heron")


def save_model(folder: Path) -> None:
    tokenizer = new_tokenizer([FILLER, " ".join(WORDS)] * 9, 120)
    backbone = new_backbone("tiny", 140, tokenizer.pad_id, max_length=48, seed=0)
    DenseEncoder(
        backbone, tokenizer, DenseSettings(query_max_length=32, document_max_length=48)
    ).save(folder)


@pytest.fixture
def settings(tmp_path: Path) -> FinetuneSettings:
    """Long documents that answer in their last sentence; two of them say the same in between."""
    save_model(tmp_path / "m")
    folder = write_collection(
        tmp_path / "collection",
        {word: f"{FILLER} A {word} came by. {FILLER} The {word} sleeps." for word in WORDS},
        {f"q{word}": f"where the {word} sleeps" for word in WORDS},
        {"train": [(f"q{word}", word) for word in WORDS]},
        titles=dict.fromkeys(WORDS, "Notes"),
    )
    return FinetuneSettings(
        collection=str(folder),
        model=str(tmp_path / "m"),
        output=str(tmp_path / "run"),
        document_max_length=48,
        passages=True,
        negatives={"name": "bm25", "num_negatives": 2, "range_max": 20},
    )


def test_the_passage_nearest_to_the_query_is_its_positive_and_negatives_are_of_others(
    settings: FinetuneSettings,
) -> None:
    problems = Problems()
    collection = stage_collection(settings, problems)
    passages = {one.id: one for one in collection.documents()}
    judged = collection.judgements("train")
    for word in WORDS:
        (positive,) = judged[f"q{word}"]
        assert document_of(positive) == word
        assert passages[positive].text.endswith(f"The {word} sleeps.")
    source = f"{collection.fingerprint()} {settings.kept}"
    assert (
        collection.fingerprint()
        != stage_collection(settings.model_copy(update={"passages": False}), problems).fingerprint()
    )
    tokenizer = Tokenizer.load(settings.model)
    tokenised = tokenise(collection.documents(), source, tokenizer.serialised, settings.titles)
    longest = max(len(tokenised.tokens(row)) for row in range(len(tokenised)))
    assert longest <= 48 - 2, "training sees all of a passage"
    corpus = TrainingCorpus(
        settings.collection,
        collection,
        source,
        tokenised,
        settings.titles,
        settings.reading,
        cutter_of(collection),
    )
    labelled, _ = training_queries(collection, settings, corpus.rows, problems)
    ids = {row: one for one, row in corpus.rows.items()}
    sources = negative_sources(settings.negatives, teacher=False)
    mined = mine(sources, corpus, labelled, epochs=3, seed=0)
    for query, rows in zip(labelled.queries, mined.rows, strict=True):
        assert {document_of(ids[row]) for row in rows.tolist()} <= {*WORDS} - {query.id[1:]}
    assert np.any(~mined.random), "some were found by BM25"
    examples = PairExamples(
        labelled, mined.rows, 3, tokenised, tokenizer, DenseSettings(), alike=True
    )
    batch = examples.collate([examples[0, number] for number in range(len(WORDS))])
    names = [document_of(ids[row]) for n in range(len(WORDS)) for row in examples[0, n].rows]
    numbers = batch["documents"].tolist()
    assert len(set(numbers)) == len(set(zip(numbers, names, strict=True))) == len(set(names))


def test_files_of_whole_documents_are_refused(settings: FinetuneSettings) -> None:
    of_file = settings.model_copy(update={"negatives": {"name": "run", "file": "x.trec"}})
    with pytest.raises(SettingsError, match="is of whole documents, and training is on passages"):
        stage_collection(of_file, Problems())
