"""Span contrast: -log of the document's other text among all other texts, by dot product."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.golden.loops import numerical_gradient

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.objectives import SpanContrast, SpanContrastSettings, span_contrast
from isthmus.pretraining.step import Step, Vocabulary

PARTNER = [3, 4, 5, 0, 1, 2]
# Documents of each process, two texts each.
SHARES = [(2, 2), (1, 1), (3, 3)]


def vectors(rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1)).double()


def plain(everyone: torch.Tensor, partner: dict[int, int], temperature: float) -> float:
    rows = everyone.tolist()
    loss = 0.0
    for own, other in partner.items():
        scores = {
            place: sum(x * y for x, y in zip(rows[own], row, strict=True)) / temperature
            for place, row in enumerate(rows)
            if place != own
        }
        total = sum(math.exp(score) for score in scores.values())
        loss -= math.log(math.exp(scores[other]) / total)
    return loss


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_value_count_and_gradient(
    temperature: float, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = torch.stack([vectors(), torch.full((6, 4), 9.0).double()], 1).requires_grad_()
    step = {"hidden_states": states, "partner": torch.tensor(PARTNER), "keys": torch.arange(6)}
    part = SpanContrast(SpanContrastSettings(temperature=temperature))
    assert Step(step, vocabulary).count(part.items).item() == 6

    def expected() -> float:
        return plain(states[:, 0], dict(enumerate(PARTNER)), temperature)

    loss = part(Step(step, vocabulary, backbone))[""]
    assert loss.item() == pytest.approx(expected(), rel=1e-5)
    (found,) = torch.autograd.grad(loss, states)
    torch.testing.assert_close(found, numerical_gradient(expected, states), rtol=1e-4, atol=1e-5)
    assert not found[:, 1].any(), "only [CLS]"


@pytest.mark.parametrize("first", [0, 2, 4])
def test_texts_of_other_processes_are_negatives(first: int) -> None:
    """Rows `first` and on are one process's two texts of one document."""
    everyone = vectors()
    mine = everyone[first : first + 2]
    settings = SpanContrastSettings()
    found = span_contrast(mine.float(), everyone.float(), torch.tensor([1, 0]), first, settings)
    expected = plain(everyone, {first: first + 1, first + 1: first}, 1.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_one_document_alone_has_nothing_to_tell_apart() -> None:
    pair = vectors(2).float().requires_grad_()
    loss = span_contrast(pair, pair, torch.tensor([1, 0]), 0, SpanContrastSettings())
    assert loss.item() == 0.0
    (found,) = torch.autograd.grad(loss, pair)
    assert not found.any()


def test_texts_of_all_processes_are_told_apart(tmp_path: Path) -> None:
    # Where there is a GPU, a process that has computed gradients has threads, which no fork has.
    start = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    processes = [
        start.Process(target=in_one_of_two_processes, args=(tmp_path, number))
        for number in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    found = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    for documents, *told in zip(SHARES, *found, strict=True):
        everyone = vectors(2 * sum(documents))
        partner = dict(enumerate(partners(documents[0])))
        start = len(partner)
        partner |= {start + own: start + other for own, other in enumerate(partners(documents[1]))}

        def expected(everyone: torch.Tensor = everyone, partner: Any = partner) -> float:
            return plain(everyone, partner, 1.0)

        assert told[0]["loss"] + told[1]["loss"] == pytest.approx(expected(), rel=1e-5)
        gradient = torch.tensor(told[0]["gradient"] + told[1]["gradient"]).double()
        numeric = numerical_gradient(expected, everyone)
        torch.testing.assert_close(gradient, numeric, rtol=1e-4, atol=1e-5)


def partners(documents: int) -> list[int]:
    """Of each text the other one, where all first ones come before all second ones."""
    return [*range(documents, 2 * documents), *range(documents)]


def in_one_of_two_processes(folder: Path, number: int) -> None:
    """Writes the losses and gradients that this process finds for its share of the texts."""
    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    told = []
    for documents in SHARES:
        shares = [2 * share for share in documents]
        own = torch.split(vectors(sum(shares)), shares)[number]
        states = own[:, None].float().requires_grad_()
        step = {"hidden_states": states, "partner": torch.tensor(partners(documents[number]))}
        nothing: Any = None  # the vocabulary has no say
        loss = SpanContrast(SpanContrastSettings())(Step(step, nothing))[""]
        (gradient,) = torch.autograd.grad(loss, states)
        told.append({"loss": loss.item(), "gradient": gradient[:, 0].tolist()})
    (folder / f"{number}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()
