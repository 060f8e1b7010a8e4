"""Contrastive: -log softmax(q·pᵀ / temperature)[own positive], copies of the positive left out."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path

import pytest
import torch
from tests.golden.loops import numerical_gradient

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.finetuning.losses import contrastive, losses
from isthmus.finetuning.similarity import similarities
from isthmus.finetuning.tasks import BiEncoderTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

GROUP = 3  # one positive and two negatives per query
# The first query's positive (key 1) is the second's negative and the third's positive too; the
# second query's own group repeats its positive; negative 5 is shared and stays a negative.
KEYS = [1, 5, 6, 2, 1, 2, 1, 5, 7]
TARGETS = [0, 3, 6]


def loss_of(
    queries: torch.Tensor, passages: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    targets, keys = torch.tensor(TARGETS), torch.tensor(KEYS)
    return contrastive(similarities(queries, passages, targets, keys, temperature), targets)


def plain(
    queries: list[list[float]], passages: list[list[float]], temperature: float
) -> list[float]:
    losses = []
    for query, target in zip(queries, TARGETS, strict=True):
        scores = {}
        for row, passage in enumerate(passages):
            if row == target or KEYS[row] != KEYS[target]:
                product = sum(x * y for x, y in zip(query, passage, strict=True))
                scores[row] = product / temperature
        total = sum(math.exp(score) for score in scores.values())
        losses.append(-math.log(math.exp(scores[target]) / total))
    return losses


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_value_and_gradient(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(3, 5, generator=generator).double().requires_grad_()
    passages = torch.randn(9, 5, generator=generator).double().requires_grad_()
    found_losses = loss_of(queries, passages, temperature)
    assert found_losses.dtype == torch.float32
    expected = plain(queries.tolist(), passages.tolist(), temperature)
    assert found_losses.tolist() == pytest.approx(expected, rel=1e-5)
    found = torch.autograd.grad(found_losses.sum(), (queries, passages))

    def loss() -> float:
        return sum(plain(queries.tolist(), passages.tolist(), temperature))

    for tensor, gradient in zip((queries, passages), found, strict=True):
        expected_gradient = numerical_gradient(loss, tensor)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_another_passage_of_the_same_document_is_no_negative() -> None:
    generator = torch.Generator().manual_seed(2)
    queries, passages = (torch.randn(n, 5, generator=generator) for n in (3, 9))
    documents = [0, 5, 6, 2, 0, 8, 3, 3, 2]  # of the second query's, one is another's negative
    targets, keys = torch.tensor(TARGETS), torch.tensor(KEYS)
    scores = similarities(queries, passages, targets, keys, 0.5, torch.tensor(documents))
    for query, target in enumerate(TARGETS):
        for row in range(9):
            other = KEYS[row] == KEYS[target] or documents[row] == documents[target]
            expected = float(queries[query] @ passages[row]) / 0.5
            if other and row != target:
                expected = -math.inf
            assert float(scores[query, row]) == pytest.approx(expected, rel=1e-5)


def test_a_copy_of_the_positive_gets_no_gradient_from_its_query() -> None:
    passages = torch.randn(9, 5).requires_grad_()
    (found,) = torch.autograd.grad(loss_of(torch.randn(3, 5), passages)[0], passages)
    untouched = {row for row in range(9) if not found[row].any()}
    assert untouched == {4, 6}


@pytest.mark.parametrize(
    ("pooling", "similarity", "temperature"),
    [("cls", "dot", 1.0), ("mean", "cosine", 0.05), ("mean", "dot", 1.0), ("cls", "cosine", 1.0)],
)
def test_the_task_scores_every_query_against_the_whole_batch(
    pooling: str, similarity: str, temperature: float, backbone: Backbone, tokenizer: Tokenizer
) -> None:
    settings = DenseSettings.parse({"pooling": pooling, "similarity": similarity}, where="test")
    chosen = losses({"contrastive": {}}, {"scores", "targets"})
    encoder = DenseEncoder(backbone, tokenizer, settings)
    task = BiEncoderTask(encoder, GROUP, temperature, chosen)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, len(tokenizer), (12, 6), generator=generator)
    mask = torch.ones_like(ids)
    mask[::2, 4:] = 0  # padded rows, so that mean pooling has something to leave out
    batch = {
        "query_ids": ids[:3],
        "query_mask": mask[:3],
        "passage_ids": ids[3:],
        "passage_mask": mask[3:],
        "keys": torch.tensor(KEYS),
    }
    vectors = []
    for states, shown in zip(backbone(ids, mask).tolist(), mask.tolist(), strict=True):
        rows = [row for row, seen in zip(states, shown, strict=True) if seen]
        vector = rows[0]
        if pooling == "mean":
            vector = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        if similarity == "cosine":
            length = sum(x * x for x in vector) ** 0.5
            vector = [x / length for x in vector]
        vectors.append(vector)
    expected = sum(plain(vectors[:3], vectors[3:], temperature))
    assert task(batch)["contrastive"].item() == pytest.approx(expected, rel=1e-5)
    assert task.counts(batch)["contrastive"].item() == 3


def test_queries_of_every_process_have_their_own_positives(
    backbone: Backbone, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    encoder = DenseEncoder(backbone, tokenizer, DenseSettings())
    task = BiEncoderTask(encoder, GROUP, 1.0, losses({"contrastive": {}}, {"scores", "targets"}))
    ids = torch.randint(5, len(tokenizer), (16, 6), generator=torch.Generator().manual_seed(3))
    queries, passages = ids[:4], ids[4:]
    keys = torch.tensor([*KEYS, 1, 5, 8])  # the last query's positive is the first one's

    def batch(first: int, last: int) -> Batch:
        own = slice(first * GROUP, last * GROUP)
        return {
            "query_ids": queries[first:last],
            "query_mask": torch.ones_like(queries[first:last]),
            "passage_ids": passages[own],
            "passage_mask": torch.ones_like(passages[own]),
            "keys": keys[own],
        }

    start = multiprocessing.get_context("fork")
    children = [
        start.Process(target=loss_of_one, args=(task, batch(2 * n, 2 * n + 2), n, tmp_path))
        for n in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    found = sum(float((tmp_path / f"{number}.txt").read_text()) for number in range(2))
    assert found == pytest.approx(task(batch(0, 4))["contrastive"].item(), rel=1e-5)


def loss_of_one(task: BiEncoderTask, batch: Batch, number: int, folder: Path) -> None:
    """Writes the loss that one of two processes finds for its queries."""
    torch.set_num_threads(1)  # threads are lost in a fork, which would wait for them
    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    with torch.no_grad():
        loss = task(batch)["contrastive"].item()
    (folder / f"{number}.txt").write_text(repr(loss))
    torch.distributed.destroy_process_group()
