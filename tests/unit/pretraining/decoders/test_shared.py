"""How a decoder starts, what is kept of it, and who is told when it cannot be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import bert
from transformers import BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import TiedHead
from isthmus.nn.layers import TextLayout
from isthmus.pretraining.decoders import own_positions
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PARTS_FILE, PretrainTask
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog again"] * 2, 90)
IDS = torch.tensor([[2, 30, 41, 52, 23, 3], [2, 33, 44, 3, 0, 0]])
MASK = (IDS != 0).long()


@pytest.fixture
def backbone() -> Backbone:
    torch.manual_seed(3)
    config = bert(
        len(TOKENIZER),
        hidden_size=8,
        num_hidden_layers=3,
        intermediate_size=16,
        max_position_embeddings=40,
        initializer_range=0.4,
    )
    return Backbone(BertForMaskedLM(config)).eval()


def test_the_form_of_a_head_that_kernels_compute(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = TiedHead(8, backbone.word_embeddings, 1e-12).double()
    for parameter in head.parameters():
        parameter.data += torch.randn_like(parameter)
    states = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    given = [states, *head.dense.parameters(), *head.norm.parameters()]
    found = []
    for kernels in (True, False):
        monkeypatch.setattr("isthmus.nn.heads.has_kernels", lambda states, use=kernels: use)
        features = head(states, backbone.word_embeddings).features
        found.append([features, *torch.autograd.grad(features.sin().sum(), given)])
    torch.testing.assert_close(found[0], found[1])


def test_the_bottleneck_is_put_into_a_copy_that_is_made_anyway(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast, before layers of our own: the same, rounded, and the same gradients."""
    vectors = torch.randn(2, 8, requires_grad=True)
    given = [vectors, backbone.word_embeddings]
    weights = torch.randn(2, 6, 8)
    found = []
    for kernels in (True, False):
        monkeypatch.setattr("isthmus.nn.layers.has_kernels", lambda states, use=kernels: use)
        with torch.autocast("cpu", torch.bfloat16):
            states = TextLayout(backbone, MASK).embed(IDS, vectors)
        assert states.dtype == (torch.bfloat16 if kernels else torch.float32)
        gradients = torch.autograd.grad((states * weights).sum(), given)
        found.append([states.detach().float(), *gradients])
        assert states[:, 0].tolist() == vectors.to(states.dtype).tolist()
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() < 1e-2 * theirs.norm()


def task(
    backbone: Backbone, seed: int = 0, bottleneck: str = "projected_cls", **decoder: Any
) -> PretrainTask:
    reads = "name" not in decoder  # what a corruption hides from it: the bidirectional one alone
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny", "corruption": "uniform",
        "bottleneck": bottleneck, "decoder": {"name": "bidirectional", **decoder},
        "decoder_corruption": {"name": "uniform", "rate": 0.5} if reads else None,
        "objectives": {"masked_lm": 1.0, "reconstruction": 1.0},
    }  # fmt: skip
    parts = assemble(PretrainSettings.parse(values, where="test"))
    return PretrainTask(copy.deepcopy(backbone), TOKENIZER, parts, seed).eval()


def condenser(layer: int | None) -> Parts:
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny",
        "corruption": "uniform", "bottleneck": "cls",
        "decoder": {"name": "condenser", "from_layer": layer},
        "objectives": {"masked_lm": 1.0, "reconstruction": 1.0},
    }  # fmt: skip
    return assemble(PretrainSettings.parse(values, where="test"))


@pytest.mark.parametrize(
    ("init", "copied"), [("last", [1, 2]), ([0, 2], [0, 2]), ([2, 0], [2, 0]), ([1, 1], [1, 1])]
)
def test_copied_layers_compute_what_the_backbones_do(
    init: Any, copied: list[int], backbone: Backbone
) -> None:
    made = task(backbone, layers=2, init=init)
    states = backbone.embed(IDS)
    found = made.decoder.stack(states, MASK.bool()[:, None, None, :])  # type: ignore[union-attr, operator]
    mask = torch.where(MASK.bool(), 0.0, -torch.inf)[:, None, None, :]
    for number in copied:
        output = backbone.encoder.encoder.layer[number](states, mask)
        states = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(found, states, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "init", "what"),
    [
        (4, "last", "a decoder of 4 layers cannot be copied from the last layers"),
        (2, [0], "a decoder of 2 layers cannot be copied from layers [0]"),
        (2, [1, 3], "there is no layer 3 to copy"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    layers: int, init: Any, what: str, backbone: Backbone
) -> None:
    with pytest.raises(SettingsError) as caught:
        task(backbone, layers=layers, init=init)
    assert what in caught.value.what
    assert "decoder.init" in caught.value.what
    assert "decoder.init=random" in caught.value.fix


@pytest.mark.parametrize(("layer", "expected"), [(None, 1), (1, 1), (2, 2)])
def test_states_come_from_half_way_up_or_where_the_recipe_says(
    layer: int | None, expected: int, backbone: Backbone
) -> None:
    made = PretrainTask(backbone, TOKENIZER, condenser(layer)).eval()
    assert made.decoder is not None
    assert made.decoder.middle_layer(12) == (layer or 6)
    step = made.encode({"input_ids": IDS, "attention_mask": MASK})
    states = backbone.encoder(IDS, MASK, output_hidden_states=True).hidden_states
    tokens = MASK.bool()
    torch.testing.assert_close(step["middle_states"][tokens], states[expected][tokens])
    torch.testing.assert_close(step["bottleneck"], states[3][:, 0])


@pytest.mark.parametrize("layer", [3, 7])
def test_the_condenser_takes_states_from_inside_the_backbone(
    layer: int, backbone: Backbone
) -> None:
    parts = condenser(layer)
    with pytest.raises(SettingsError, match=f"after layer {layer}, and .* 3") as caught:
        PretrainTask(backbone, TOKENIZER, parts)
    assert "decoder.from_layer" in caught.value.what
    assert "1 to 2" in caught.value.expected


def test_saved_and_restored_is_the_same(backbone: Backbone, tmp_path: Path) -> None:
    made = task(backbone, seed=1, head="own")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1)
    made.save(tmp_path)
    fresh = task(backbone, seed=2, head="own")
    fresh.restore(tmp_path)
    saved = made.state_dict()
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, saved[name]), name


BOTTLENECK, STACK, HEAD = "bottleneck.", "decoder.stack.", "decoder.own_head."


@pytest.mark.parametrize(
    ("earlier", "later", "taken", "said"),
    [
        (
            {"head": "own"},
            {"head": "own"},
            (BOTTLENECK, STACK, HEAD),
            "the bottleneck, the decoder, the decoder's head",
        ),
        ({}, {"bottleneck": "cls"}, (STACK,), "the decoder"),
        (
            {"bottleneck": "cls"},
            {"head": "own"},
            (STACK,),
            "the decoder; untrained: the bottleneck, the decoder's head",
        ),
        (
            {"head": "own"},
            {"layers": 2, "head": "own"},
            (BOTTLENECK, HEAD),
            "the bottleneck, the decoder's head; untrained: the decoder",
        ),
        (
            {},
            {"name": "condenser", "layers": 1, "from_layer": 1},
            (BOTTLENECK,),
            "the bottleneck; untrained: the decoder",
        ),
    ],
    ids=["same", "other-bottleneck", "more", "deeper", "other-decoder"],
)
def test_an_earlier_run_is_continued_part_by_part(
    earlier: dict[str, Any],
    later: dict[str, Any],
    taken: tuple[str, ...],
    said: str,
    backbone: Backbone,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = task(backbone, seed=1, **earlier)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1)
    made.save(tmp_path)
    fresh, continued = (task(backbone, seed=2, **later) for _ in range(2))
    continued.continue_from(tmp_path)
    sources = {True: made.state_dict(), False: fresh.state_dict()}
    for name, value in continued.state_dict().items():
        assert torch.equal(value, sources[name.startswith(taken)][name]), name
    told = " ".join("".join(capsys.readouterr()).split())
    told = told.replace(str(tmp_path / PARTS_FILE), "FILE")
    assert f"continued from FILE: {said}" in told


def test_a_backbone_that_embeds_no_positions_gets_some(backbone: Backbone) -> None:
    assert own_positions(backbone) is None
    config = ModernBertConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
        pad_token_id=0,
    )
    positions = own_positions(Backbone(ModernBertForMaskedLM(config)))
    assert positions is not None
    assert positions.weight.shape == (40, 8)
    # Without them a decoder could not tell two places with the same token apart.
    made = task(Backbone(ModernBertForMaskedLM(config)))
    assert made.decoder is not None
    step = {
        "bottleneck": torch.ones(1, 8), "partner": torch.zeros(1).long(),
        "decoder_ids": torch.tensor([[2, 4, 4, 4, 3]]), "attention_mask": torch.ones(1, 5),
    }  # fmt: skip
    with torch.no_grad():
        states = made.decoder.decode(made.step(step))[0]
    assert not torch.allclose(states[1], states[2])
