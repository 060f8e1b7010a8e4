"""A weight led by its error and the error's integral, along a glide, once the ramp is over."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import SettingsError
from isthmus.finetuning.losses import losses
from isthmus.finetuning.regularizers import Regularizer, WeightController, regularizers
from isthmus.finetuning.tasks import SparseTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer

GAIN, GLIDE = 20.0, 12.0


def terms(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def weights_of(start: float, target: float, actives: list[float], steps: int) -> list[float]:
    """The weight after each number of active terms, from the definition."""
    integral, wanted, found = math.log(start), actives[0], []
    steps = max(steps, 100)  # a training of fewer moves as slowly
    for active in actives:
        wanted = max(target, wanted * math.exp(-GLIDE / steps))
        error = min(max(active / wanted - 1, -1), 1)
        integral += GAIN / steps * error
        found.append(math.exp(integral + error))
    return found


@pytest.mark.parametrize(
    "actives",
    [[60.0, 40.0, 5000.0, 0.0, 50.0], [900.0, 900.0, 700.0, 990.0], [30.0, 50.0, 100.0]],
    ids=["near", "far above: it glides", "below: at once"],
)
def test_the_equation(actives: list[float]) -> None:
    controller = WeightController(target=50.0, weight=0.02)
    assert controller.weight.item() == pytest.approx(0.02)
    for active, expected in zip(actives, weights_of(0.02, 50.0, actives, 200), strict=True):
        controller.step(terms(active), steps=200)
        assert controller.weight.item() == pytest.approx(expected, rel=1e-12)


def test_what_an_index_holds_is_what_counts() -> None:
    """By the definition: half of a change of the ratio, then the equation with it."""
    controller = WeightController(target=50.0, weight=0.02)
    wanted, ratio, integral = 100.0, 1.0, math.log(0.02)
    for active, measured in ((100.0, 0.4), (100.0, 0.4), (90.0, 0.5), (80.0, 0.0), (60.0, 1.5)):
        controller.step(terms(active), steps=200)
        wanted = max(50.0, wanted * math.exp(-GLIDE / 200))
        error = min(max(ratio * active / wanted - 1, -1), 1)
        integral += GAIN / 200 * error
        assert controller.weight.item() == pytest.approx(math.exp(integral + error), rel=1e-12)
        controller.compare(terms(measured))
        ratio = math.sqrt(ratio * max(measured, 0.1))
        assert controller.ratio.item() == pytest.approx(ratio, rel=1e-12)


def test_restored_it_goes_on_as_if_never_interrupted() -> None:
    whole, resumed = WeightController(50.0, 0.02), WeightController(50.0, 0.02)
    for active in (900.0, 850.0, 700.0):
        whole.step(terms(active), steps=30)
        whole.compare(terms(active / 1500))
    resumed.restore(json.loads(json.dumps(whole.state())))
    for active in (650.0, 500.0, 90.0, 20.0):
        for controller in (whole, resumed):
            controller.step(terms(active), steps=30)
            controller.compare(terms(active / 800))
        assert resumed.weight == whole.weight


def test_a_device_is_never_asked() -> None:
    # What lies on "meta" has no number: whoever asks for it is refused.
    controller, active = WeightController(50.0, 0.02), torch.empty((), device="meta")
    controller.to(active.device)
    for _ in range(2):
        controller.step(active, steps=30)
        controller.compare(active)
        assert controller.weight.device.type == "meta"


def test_what_a_captured_pass_has_read_goes_on_being_true() -> None:
    controller = WeightController(50.0, 0.02)
    integral, error = controller.integral, controller.error
    controller.step(terms(400.0), steps=30)
    controller.step(terms(400.0), steps=30)
    assert (integral + error).exp() == controller.weight != pytest.approx(0.02)
    kept = controller.state()
    controller.step(terms(1.0), steps=30)
    controller.restore(kept)
    assert (integral + error).exp() == controller.weight


@pytest.mark.parametrize("steps", [300, 3000])
@pytest.mark.parametrize("weight", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("lag", [1, 5])
def test_a_toy_comes_to_its_target(steps: int, weight: float, lag: int) -> None:
    # Active terms that fall with the square root of the weight, some steps late, 64 at 0.0123.
    controller, active = WeightController(target=64.0, weight=weight), 400.0
    for _ in range(steps):
        active += (64.0 * math.sqrt(0.0123 / controller.weight.item()) - active) / lag
        controller.step(terms(active), steps)
    assert active == pytest.approx(64.0, rel=0.02)
    assert controller.weight.item() == pytest.approx(0.0123, rel=0.05)


def one(**settings: Any) -> Regularizer:
    (regularizer,) = regularizers({"flops": settings})
    return regularizer


def test_it_waits_for_the_end_of_the_ramp() -> None:
    controlled = one(documents=0.5, queries=0.25, ramp=0.3, target={"documents": 10})
    full = []
    for step in range(1, 12):
        assert controlled.weights(0.15)["flops/queries"] == pytest.approx(0.25 / 4), "has no target"
        full.append(float(controlled.weights(1.0)["flops/documents"]))
        assert float(controlled.weights(0.15)["flops/documents"]) == pytest.approx(full[-1] / 4)
        controlled.control({"queries": terms(999.0), "documents": terms(15.0)}, step, steps=11)
    # With 11 steps, the fourth is the first at which a ramp of 0.3 is over.
    assert full[:4] == pytest.approx([0.5] * 4)
    assert full[4:] == pytest.approx(weights_of(0.5, 10.0, [15.0] * 7, steps=11))


def test_a_target_needs_no_weight() -> None:
    controlled = one(target={"queries": 8})
    assert controlled.weights(1.0).keys() == {"flops/queries"}
    assert float(controlled.weights(1.0)["flops/queries"]) == pytest.approx(1e-3)
    rows = torch.ones(2, 3)
    assert set(controlled(rows, rows)) == {"flops/queries"}
    assert one(queries=0.5).controllers == {}


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        (
            {"flops": {"target": {"documents": 9}}, "l1": {"target": {"documents": 5}}},
            "flops and l1 both have a target of documents",
        ),
        ({"flops": {"target": {"documents": 0}}}, "regularizers.flops.target.documents = 0"),
        (
            {"flops": {"target": {"document": 9}}},
            "unknown key 'regularizers.flops.target.document'",
        ),
        ({"flops": {"target": 9}}, "regularizers.flops.target = 9 cannot be used"),
    ],
)
def test_what_cannot_be_controlled(chosen: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        regularizers(chosen)
    assert what in caught.value.what


@pytest.fixture
def task(backbone: Backbone, tokenizer: Tokenizer) -> SparseTask:
    chosen = {"flops": {"target": {"documents": 10}, "ramp": 0.0}, "l1": {"queries": 0.1}}
    encoder = SparseEncoder(backbone.float(), tokenizer, SparseSettings())
    learnt = losses({"contrastive": {}}, {"scores", "targets"})
    return SparseTask(encoder, 1, 1.0, learnt, regularizers(chosen))


def batch(seed: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 30, (6, tokens), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    return {
        "query_ids": ids[:3], "query_mask": mask[:3], "passage_ids": ids[3:],
        "passage_mask": mask[3:], "keys": torch.arange(3),
    }  # fmt: skip


def test_a_task_controls_by_all_passes_of_a_step(task: SparseTask, tmp_path: Path) -> None:
    seen = [task(batch(seed, tokens)) for seed, tokens in [(1, 2), (2, 9)]]
    active = [sums["active_terms/documents"].item() for sums in seen]
    assert active[0] != active[1]
    assert [sums["flops/documents/weight"].item() for sums in seen] == pytest.approx([1e-3] * 2)
    task.control(1, 100)
    # The second step has one pass, and is controlled by that one alone.
    first, second = weights_of(1e-3, 10.0, [sum(active) / 2, active[0]], 100)
    assert task.weights(0.5)["flops/documents"] == pytest.approx(first)
    assert task.weights(0.5)["l1/queries"] == 0.1
    sums = task(batch(1, 2))
    assert sums["flops/documents/weight"].item() == pytest.approx(first)
    assert "flops/documents/weight" not in task.weights(0.5)
    assert {name.partition("/")[0] for name in sums} <= task.counts(batch(1, 2)).keys()
    task.control(2, 100)
    assert task.weights(0.5)["flops/documents"] == pytest.approx(second)
    before = task.weights(1.0)
    task.save(tmp_path)
    task.controllers["flops/documents"].step(terms(1.0), 2)
    assert task.weights(1.0) != before
    task.restore(tmp_path)
    assert task.weights(1.0) == before, "to the last bit: a resumed run is the same run"
