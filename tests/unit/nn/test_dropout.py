"""A dropout rate chosen for one training does not become the model's."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from isthmus.nn.backbone import Backbone, new_backbone


def test_the_saved_model_keeps_its_own_dropout(tmp_path: Path) -> None:
    new_backbone("tiny", 50, 0).save(tmp_path / "start")
    backbone = Backbone.load(str(tmp_path / "start"), dropout=0.0)
    rates = {module.p for module in backbone.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.0}
    backbone.save(tmp_path / "trained")
    assert backbone.config.hidden_dropout_prob == 0.0
    again = Backbone.load(str(tmp_path / "trained"))
    assert again.config.hidden_dropout_prob == 0.1
    assert again.config.attention_probs_dropout_prob == 0.1
