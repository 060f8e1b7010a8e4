"""KL, margin-MSE and list-wise cross-entropy over a query's own group, as loops over float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.golden.loops import numerical_gradient

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.finetuning.losses import kl, listwise, losses, margin_mse
from isthmus.finetuning.tasks import BiEncoderTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer

Rows = list[list[float]]
QUERIES, GROUP = 3, 4
TEACHER = [[9.0, 2.0, -3.0, 2.0], [0.5, 0.1, 4.0, -1.0], [-7.0, -7.5, -20.0, -6.0]]


def softmax(scores: list[float]) -> list[float]:
    highest = max(scores)
    total = sum(math.exp(score - highest) for score in scores)
    return [math.exp(score - highest) / total for score in scores]


def plain_kl(group: Rows, teacher: Rows) -> list[float]:
    values = []
    for student, taught in zip(group, teacher, strict=True):
        p, q = softmax(taught), softmax(student)
        values.append(sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)))
    return values


def plain_margin_mse(group: Rows, teacher: Rows) -> list[float]:
    values = []
    for student, taught in zip(group, teacher, strict=True):
        total = 0.0
        for j in range(1, GROUP):
            total += ((student[0] - student[j]) - (taught[0] - taught[j])) ** 2
        values.append(total / (GROUP - 1))
    return values


def plain_listwise(group: Rows, teacher: Rows) -> list[float]:
    return [-math.log(softmax(student)[0]) for student in group]


PLAIN = {"kl": plain_kl, "margin_mse": plain_margin_mse, "listwise": plain_listwise}


@pytest.mark.parametrize(
    ("function", "name"), [(kl, "kl"), (margin_mse, "margin_mse"), (listwise, "listwise")]
)
def test_value_and_gradient(function: Callable[..., torch.Tensor], name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    group = (3 * torch.randn(QUERIES, GROUP, generator=generator)).double().requires_grad_()
    taught = () if name == "listwise" else (torch.tensor(TEACHER).double(),)
    values = function(group, *taught)
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx(PLAIN[name](group.tolist(), TEACHER), rel=1e-5)
    (found,) = torch.autograd.grad(values.sum(), group)
    expected = numerical_gradient(lambda: sum(PLAIN[name](group.tolist(), TEACHER)), group)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_student_that_agrees_has_nothing_to_learn() -> None:
    teacher = torch.tensor(TEACHER)
    # Both know differences only: a teacher's scale may begin anywhere.
    for loss in (kl, margin_mse):
        assert loss(teacher + 5.0, teacher).abs().max() < 1e-5
        assert loss(teacher.flip(1), teacher).min() > 0.1


@pytest.mark.parametrize("extreme", [1e4, 1e30])
def test_scores_far_apart_stay_finite(extreme: float) -> None:
    group = torch.tensor([[0.0, 1.0, -1.0]], requires_grad=True)
    teacher = torch.tensor([[extreme, 0.0, -extreme]])
    value = kl(group, teacher)
    value.sum().backward()
    assert value.item() == pytest.approx(plain_listwise(group.tolist(), [])[0], rel=1e-5)
    assert group.grad is not None
    assert group.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_task_adds_them_up_over_each_querys_own_group(
    temperature: float, backbone: Backbone, tokenizer: Tokenizer
) -> None:
    settings = DenseSettings()
    chosen = losses(
        {"kl": {}, "margin_mse": {"weight": 0.5}, "listwise": {"weight": 0.0}},
        {"scores", "targets", "group", "teacher"},
    )
    task = BiEncoderTask(DenseEncoder(backbone, tokenizer, settings), GROUP, temperature, chosen)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, len(tokenizer), (QUERIES * (1 + GROUP), 6), generator=generator)
    # Two copies of a positive in its own group: the same score for both, and a finite loss.
    ids[QUERIES + 1] = ids[QUERIES]
    mask = torch.ones_like(ids)
    batch = {
        "query_ids": ids[:QUERIES],
        "query_mask": mask[:QUERIES],
        "passage_ids": ids[QUERIES:],
        "passage_mask": mask[QUERIES:],
        "keys": torch.tensor([1, 1, *range(2, QUERIES * GROUP)]),
        "teacher": torch.tensor(TEACHER),
    }
    vectors = backbone(ids, mask)[:, 0].tolist()
    group = []
    for number in range(QUERIES):
        own = vectors[QUERIES + number * GROUP : QUERIES + (number + 1) * GROUP]
        products = [sum(map(float.__mul__, vectors[number], passage)) for passage in own]
        group.append([product / temperature for product in products])
    sums = task(batch)
    assert sums.keys() == {"kl", "margin_mse", "listwise"}
    for name, value in sums.items():
        assert value.item() == pytest.approx(sum(PLAIN[name](group, TEACHER)), rel=1e-4), name
        assert task.counts(batch)[name].item() == QUERIES
    assert task.weights(0.0) == {"kl": 1.0, "margin_mse": 0.5, "listwise": 0.0}
