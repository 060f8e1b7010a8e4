"""A folder of a multi-vector model is loaded whole, or refused in words that name what it has."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.layouts import pylate, stanford
from tests.unit.encoders.test_received_models import mutated, update

from isthmus.encoders import load_encoder, load_int8_encoder
from isthmus.errors import IsthmusError
from isthmus.workflows.adapt import adapt

Change = Callable[[Path], Any]


def native(folder: Path) -> str:
    """What sentence-transformers 6 saves, as we save it too."""
    place = folder / "native"
    load_encoder(stanford(folder), exact=True).save(place)
    (place / "encoder.json").unlink()
    return str(place)


MAKERS: dict[str, Callable[[Path], str]] = {
    "native": native, "pylate": pylate, "stanford": stanford,
}  # fmt: skip
SAYS = {
    "native": "as sentence-transformers 6 writes it",
    "pylate": "as PyLate writes it",
    "stanford": "as Stanford's ColBERT writes it",
}


@pytest.mark.parametrize("layout", MAKERS)
def test_the_layout_is_said(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = MAKERS[layout](tmp_path)
    capsys.readouterr()
    load_encoder(folder)
    assert f"{folder}: a multi-vector model {SAYS[layout]}: 8 numbers" in capsys.readouterr().err


def module(place: int, kind: str, **about: Any) -> Change:
    """Makes the module at a place one of another type."""

    def change(folder: Path) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[place] = {**listed[place], "type": kind, **about}
        (folder / "modules.json").write_text(json.dumps(listed))

    return change


def linear(change: Callable[[torch.Tensor], torch.Tensor] | None) -> Change:
    """Changes the projection that lies among the weights of the backbone, or takes it out."""

    def changed(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weight = weights.pop("linear.weight")
        if change is not None:
            weights["linear.weight"] = change(weight).contiguous()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return changed


def pickled(folder: Path) -> None:
    weights = load_file(folder / "1_Dense/model.safetensors")
    (folder / "1_Dense/model.safetensors").unlink()
    torch.save(weights, folder / "1_Dense/pytorch_model.bin")


def old(folder: Path) -> None:
    """A checkpoint of ColBERT's first version."""
    for file in folder.glob("*.*"):
        file.unlink()
    (folder / "colbert-400000.dnn").write_bytes(pickle.dumps({}))


def setting(file: str, **values: Any) -> Change:
    return lambda folder: update(folder / file, **values)


POOLING = (
    "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
)
REFUSED: list[tuple[str, Change, str]] = [
    ("native", module(2, POOLING), "'HierarchicalTokenPooling' at place 2 cannot be loaded"),
    ("native", module(0, "sentence_transformers.base.modules.router.Router"), "'Router' at place"),
    ("native", module(1, "evil.Dense"), "'evil.Dense' at place 1"),
    ("native", module(1, "sentence_transformers.base.modules.dense.Dense", path="../1"), "inside"),
    ("native", setting("3_MultiVectorMask/config.json", keep_only_token_ids=[3]), "keep_only"),
    ("native", setting("2_Normalize/config.json", module_input_name=None), "Normalize works on"),
    ("native", setting("1_Dense/config.json", activation_function="os.system"), "os.system"),
    ("native", setting("sentence_bert_config.json", transformer_task="fill-mask"), "fill-mask"),
    ("native", setting("sentence_bert_config.json", query_expansion={"strategy": "max"}), "max"),
    (
        "native",
        setting("sentence_bert_config.json", query_expansion={"strategy": "min", "length": 10**9}),
        "query_expansion",
    ),
    (
        "native",
        setting("sentence_bert_config.json", modality_config={"text": {}, "message": {}}),
        "modality_config",
    ),
    ("pylate", module(1, "pylate.models.LSTM"), "'LSTM' at place 1"),
    ("pylate", pickled, "convert pickled weights"),
    ("pylate", setting("config_sentence_transformers.json", query_prefix="[X] "), "[X] "),
    ("pylate", setting("config_sentence_transformers.json", query_length="many"), "query_max"),
    ("pylate", setting("config_sentence_transformers.json", prompts={"query": 3}), "prompts"),
    ("stanford", linear(None), "lacks linear.weight"),
    ("stanford", linear(lambda weight: weight[:, :9]), "linear.weight has the shape [8, 9]"),
    ("stanford", linear(lambda weight: weight[:5]), "linear.weight has the shape [5, 16]"),
    ("stanford", linear(lambda weight: weight / 0), "not finite"),
    ("stanford", setting("artifact.metadata", interaction="flipr"), "flipr"),
    ("stanford", setting("artifact.metadata", doc_token_id="[unused]"), "[unused]"),
    ("stanford", old, "a pickle, whose code is never run"),
]


@pytest.mark.parametrize(("layout", "change", "what"), REFUSED)
def test_what_cannot_be_computed_is_refused(
    layout: str, change: Change, what: str, tmp_path: Path
) -> None:
    folder = Path(MAKERS[layout](tmp_path))
    change(folder)
    with pytest.raises(IsthmusError) as caught:
        load_encoder(str(folder))
    assert what in str(caught.value)
    assert str(folder) in caught.value.what


def test_the_fingerprint_is_of_all_that_vectors_depend_on(tmp_path: Path) -> None:
    folder = stanford(tmp_path)
    changes = [None, None, {"query_max_length": 20}, {"skiplist_words": []}]
    found = [load_encoder(folder, change, exact=True).fingerprint for change in changes]
    assert found[0] == found[1]
    linear(torch.neg)(Path(folder))
    found.append(load_encoder(folder, exact=True).fingerprint)
    assert len(set(found)) == 4


def test_what_needs_one_vector_per_text_is_refused(tmp_path: Path) -> None:
    folder = stanford(tmp_path)
    documents = tmp_path / "documents.jsonl"
    documents.write_text(json.dumps({"_id": "1", "text": "the fox"}))
    with pytest.raises(IsthmusError, match="one per token"):
        load_int8_encoder(folder)
    with pytest.raises(IsthmusError, match="a vector for each token"):
        adapt(str(documents), folder, tmp_path / "output")


@pytest.mark.parametrize("layout", MAKERS)
def test_whatever_its_files_say_the_error_is_ours(layout: str, tmp_path: Path) -> None:
    folder, choice = Path(MAKERS[layout](tmp_path)), random.Random(0)
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".json", ".metadata")]
    for _ in range(16):
        file = choice.choice([one for one in files if "tokenizer" not in one.name])
        whole = file.read_bytes()
        file.write_bytes(mutated(choice, whole))
        with contextlib.suppress(IsthmusError):
            load_encoder(str(folder)).encode_queries(["the fox", "a dog \u5b57"])
        file.write_bytes(whole)
