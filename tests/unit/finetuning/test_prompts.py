"""Training reads queries and documents as indexing and searching do, prompts included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isthmus.encoders import DenseEncoder, DenseSettings
from isthmus.finetuning.development import DevelopmentSet
from isthmus.finetuning.pairs import LabelledQueries, PairExamples
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.nn.backbone import new_backbone
from isthmus.records import Document, Query
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["query: passage: the fox and the dog"] * 2, 120)
DOCUMENTS = [Document("d0", "the fox"), Document("d1", "the dog and the fox", "dog")]
QUERIES = [Query("q0", "fox"), Query("q1", "the dog")]
LENGTHS = {"query_max_length": 12, "document_max_length": 16}
PLACES: dict[str, Any] = {"model": "m", "collection": "c", "output": "o"}


def stage(**settings: Any) -> Any:
    chosen = FinetuneSettings(**PLACES, **LENGTHS, pooling="mean", **settings)
    return KINDS.load("dense")(chosen.model_dump())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder with prompts, which are not pooled."""
    folder = tmp_path_factory.mktemp("model")
    settings = DenseSettings(
        pooling="mean", query_prompt="query: ", document_prompt="passage: ", include_prompt=False
    )
    DenseEncoder(new_backbone("tiny", len(TOKENIZER), 0), TOKENIZER, settings).save(folder)
    return str(folder)


def test_prompts_are_the_models_unless_a_stage_has_others(model: str) -> None:
    found = stage().load(model, None, 0).settings
    assert found.prompts() == ("query: ", "passage: ")
    assert not found.include_prompt
    other = stage(query_prompt="", document_prompt="text: ", include_prompt=True)
    found = other.load(model, None, 0).settings
    assert found.prompts() == ("", "text: ")
    assert found.include_prompt
    assert any("'query: '" in change for change in stage().changes(model))


@pytest.mark.parametrize("include_prompt", [True, False])
def test_training_and_evaluation_see_the_vectors_that_are_searched(
    include_prompt: bool, model: str, tmp_path: Path
) -> None:
    kind = stage(include_prompt=include_prompt)
    encoder = kind.load(model, None, 0)
    encoder.backbone.eval()
    corpus: TokenisedCorpus = tokenise(
        DOCUMENTS, "s", TOKENIZER.serialised, prompt=encoder.settings.prompts()[1], cache=tmp_path
    )
    labelled = LabelledQueries(QUERIES, [[0], [1]])
    examples: PairExamples = kind.examples(encoder, labelled, None, 1, corpus, None)
    batch = examples.collate([examples[0, number] for number in range(2)])
    task = kind.task(encoder, 1, [], 1)
    with torch.no_grad():
        queries, passages = task.represented(encoder, batch)
    expected = encoder.encode_queries([query.text for query in QUERIES])
    np.testing.assert_allclose(queries.numpy(), expected, atol=1e-5)
    documents = encoder.encode_documents(DOCUMENTS)
    np.testing.assert_allclose(passages.numpy(), documents, atol=1e-5)
    chosen = DevelopmentSet(QUERIES, {}, np.arange(2), [])
    with torch.no_grad():
        ranked = list(kind.rank(encoder, corpus, chosen, 2))
    for (places, scores), vector in zip(ranked, expected, strict=True):
        np.testing.assert_allclose(scores, (documents @ vector)[places], atol=1e-4)


def test_a_cut_that_leaves_the_prompt_alone_is_not_made(model: str, tmp_path: Path) -> None:
    encoder = stage().load(model, None, 0)
    corpus = tokenise(DOCUMENTS, "s", TOKENIZER.serialised, prompt="passage: ", cache=tmp_path)
    labelled = LabelledQueries(QUERIES, [[0], [1]], cuts=["the fox", "the fox"])
    examples = stage().examples(encoder, labelled, None, 1, corpus, None)
    batch = examples.collate([examples[0, 0], examples[0, 1]])
    lengths = batch["passage_mask"].sum(1).tolist()
    framed = [len(row) for row in encoder.tokenise(DOCUMENTS)]
    assert lengths[0] == framed[0], "nothing but the prompt would be left"
    assert lengths[1] < framed[1]
