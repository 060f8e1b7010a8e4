"""What a step writes down about where its model came from."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from isthmus.benchmarks.protocol.plan import RECORD
from isthmus.benchmarks.runner.steps import Place, _origin
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
