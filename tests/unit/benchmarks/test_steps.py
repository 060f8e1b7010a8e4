"""What a step writes down about where its model came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.steps import RECORD, Place, _origin, _probes, _publish
from isthmus.config.models import model_fingerprint
from isthmus.config.output import write_json


def test_the_origin_of_a_chain_is_the_weights_that_it_began_with(tmp_path: Path) -> None:
    of = Place(tmp_path, {"base": "base-1", "generic": "generic-1", "target": "target-1"})
    before: str | None = None
    for value, step in enumerate(of.folders):
        of.model(step).mkdir(parents=True)
        save_file({"weight": torch.full((2,), float(value))}, of.model(step) / "model.safetensors")
        origin = {} if before is None else {"origin": _origin(before, of)}
        write_json(of.model(step) / RECORD, {"digest": step, **origin})
        before = step
    base = model_fingerprint(str(of.model("base")))
    assert base != model_fingerprint(str(of.model("target")))
    assert [_origin(step, of) for step in of.folders] == [base, base, base]
    assert _origin(str(of.model("generic")), Place(tmp_path, {})) not in (
        base,
        None,
    )  # a checkpoint
    assert _origin("bert-base-uncased", of) is None
    write_json(of.model("target") / RECORD, {"origin": None})  # what began with a hub's model
    assert _origin("target", of) is None


def test_a_model_that_was_copied_in_part_is_made_again(tmp_path: Path) -> None:
    step = Step("base", "base", "0" * 32, (0,))
    of = Place(tmp_path, {"base": "base-1"})
    trained = tmp_path / "trained"
    trained.mkdir()
    save_file({"weight": torch.zeros(9)}, trained / "model.safetensors")
    assert not of.has(step)
    _publish(trained, of.model("base"), {"digest": step.digest, "seconds": 1.0}, halved=True)
    assert of.has(step)
    assert not of.has(replace(step, digest="1" * 32))
    record, weights = of.record("base"), of.model("base") / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert not of.has(step)
    weights.unlink()
    assert not of.has(step)
    weights.write_bytes(whole)
    assert of.has(step)
    for wrong in ({"seconds": "1"}, {"probes": [1.0]}, {"files": {"model.safetensors": 7}}):
        write_json(of.model("base") / RECORD, {**record, **wrong})
        assert not of.has(step)
    weights.unlink()
    write_json(of.model("base") / RECORD, {"digest": step.digest, "seconds": 1.0})
    assert of.has(step)  # of before sizes were written down


def test_probes_are_the_last_of_a_log_or_backwards_the_first() -> None:
    log = [{"probe/a": 1.0, "loss": 3.0}, {"probe/a": 2.0, "probe/b": 4.0}]
    assert _probes(log) == {"a": 2.0, "b": 4.0}
    assert _probes(reversed(log)) == {"a": 1.0, "b": 4.0}
