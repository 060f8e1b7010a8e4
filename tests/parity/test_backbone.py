"""Every architecture: the head gives the model's own logits, and saving loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from isthmus.errors import InputError, SettingsError
from isthmus.nn.architectures import MASKED_LM, POST_NORM
from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels.norm_gelu import bias_gelu
from isthmus.nn.light_backbone import LightBackbone

SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "distilbert": {
        "vocab_size": 67, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
        "max_position_embeddings": 40, "pad_token_id": 1,
    },
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "camembert": SIZES,
    "mpnet": SIZES,
    "electra": {**SIZES, "embedding_size": 12},
    "modernbert": {**SIZES, "global_attn_every_n_layers": 2, "local_attention": 8},
}  # fmt: skip
IDS = torch.tensor([[0, 9, 33, 60, 5, 8, 13, 2], [0, 66, 7, 2, 1, 1, 1, 1]])
MASK = (IDS != 1).long()
architecture = pytest.mark.parametrize("kind", MODELS)


def random_model(kind: str) -> Any:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **MODELS[kind])
    model = AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that matter
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def test_every_known_architecture_is_here() -> None:
    assert set(MODELS) == set(MASKED_LM)


@architecture
def test_states_and_head_are_the_models_own_logits(kind: str) -> None:
    model = random_model(kind)
    backbone = Backbone(model).eval()
    assert backbone.has_head
    assert backbone.dimension == 16
    with torch.no_grad():
        states = backbone(IDS, MASK)
        expected = model(input_ids=IDS, attention_mask=MASK).logits
        assert states.shape == (2, 8, 16)
        rows = MASK.bool()
        logits = backbone.head(states)
        torch.testing.assert_close(logits[rows], expected[rows], rtol=1e-5, atol=1e-5)
        some = backbone.head(states[rows])
        torch.testing.assert_close(some, expected[rows], rtol=1e-5, atol=1e-5)
        assert backbone.head(states[rows][:0]).shape == (0, 67), "no row is no trouble"


@pytest.mark.parametrize("bare", [False, True])
@architecture
def test_read_without_transformers_the_states_are_the_same(
    kind: str, bare: bool, tmp_path: Path
) -> None:
    model = random_model(kind)
    (model.base_model if bare else model).save_pretrained(tmp_path)
    light = LightBackbone.read(str(tmp_path))
    assert (light is not None) is (kind in POST_NORM)
    if light is None:
        return
    whole = Backbone.load(str(tmp_path)).eval()
    assert (light.dimension, light.positions) == (whole.dimension, whole.positions)
    stored, expected = light.encoder.state_dict(), whole.encoder.state_dict()
    torch.testing.assert_close(stored, dict(expected), rtol=0, atol=0)
    with torch.no_grad():
        found, states = light(IDS, MASK), whole(IDS, MASK)
    torch.testing.assert_close(found[MASK.bool()], states[MASK.bool()], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(POST_NORM))
def test_the_form_of_the_head_that_kernels_compute(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its modules being called: the same features and gradients."""
    backbone = Backbone(random_model(kind)).double()
    states = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
    parameters = [
        each
        for name, each in backbone.model.named_parameters()
        if not name.startswith(f"{backbone.model.base_model_prefix}.")
    ]
    found = []
    for kernels in (True, False):
        monkeypatch.setattr("isthmus.nn.backbone.has_kernels", lambda states, use=kernels: use)
        # Only their form does without the activation's module.
        monkeypatch.setattr("isthmus.nn.heads.bias_gelu", bias_gelu if kernels else None)
        logits = backbone.head(states)
        gradients = torch.autograd.grad(logits.sin().sum(), [states, *parameters])
        found.append([logits.detach(), *gradients])
    torch.testing.assert_close(found[0], found[1])


@architecture
def test_embeddings_are_what_the_first_layer_receives(kind: str) -> None:
    model = random_model(kind)
    backbone = Backbone(model).eval()
    with torch.no_grad():
        expected = model(input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
        embedded = backbone.embed(IDS)
        assert embedded.shape == (2, 8, 16)
        torch.testing.assert_close(embedded, expected.hidden_states[0], rtol=0, atol=0)
    torch.autograd.backward(backbone.embed(IDS).sum())
    assert backbone.word_embeddings.grad is not None
    backbone.train()
    assert not torch.equal(backbone.embed(IDS), backbone.embed(IDS)) or kind == "modernbert"


@architecture
def test_position_embeddings_are_those_the_model_adds(kind: str) -> None:
    model = random_model(kind)
    backbone = Backbone(model).eval()
    with torch.no_grad():
        found = backbone.position_embeddings(IDS)
        if kind == "modernbert":
            assert found is None
            return
        assert found is not None
        added: list[Tensor] = []
        table = model.base_model.embeddings.position_embeddings
        table.register_forward_hook(lambda module, ids, output: added.append(output))
        model(input_ids=IDS, attention_mask=MASK)
        expected = added[0]
        if kind == "electra":
            expected = model.electra.embeddings_project(expected)
        expected = expected.expand(2, 8, 16)
        torch.testing.assert_close(found.expand(2, 8, 16), expected, rtol=0, atol=0)
        counted = kind in ("roberta", "xlm-roberta", "camembert", "mpnet")
        assert torch.equal(expected[1, 4], expected[1, 7]) == counted, "padding has no position"


@architecture
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_states_after_some_layers_come_from_the_same_pass(kind: str, layer: int) -> None:
    model = random_model(kind)
    backbone = Backbone(model).eval()
    passes: list[Tensor] = []
    outputs: list[Tensor] = []
    model.base_model.embeddings.register_forward_hook(lambda *call: passes.append(call[2]))
    layers = next(m for m in model.base_model.modules() if isinstance(m, nn.ModuleList))
    for module in layers:
        module.register_forward_hook(
            lambda _, given, got: outputs.append(got[0] if isinstance(got, tuple) else got)
        )
    last, middle = backbone.encode(IDS, MASK, None, layer=layer)[:2]
    assert len(passes) == 1
    assert len(outputs) == 2
    torch.testing.assert_close(last, backbone(IDS, MASK), rtol=0, atol=0)
    rows = MASK.bool()
    if layer == 0:
        torch.testing.assert_close(middle[rows], backbone.embed(IDS)[rows], rtol=0, atol=0)
    elif layer == 1:
        found = outputs[0][0] if backbone.packs else outputs[0][rows]
        torch.testing.assert_close(middle[rows], found, rtol=0, atol=0)
    else:
        torch.testing.assert_close(middle, last, rtol=0, atol=0)
    torch.autograd.backward(middle.sum())
    reached = [any(p.grad is not None for p in module.parameters()) for module in layers]
    assert reached == [layer > 0, layer > 1]
    with pytest.raises(AssertionError, match="3 of 2 layers"):
        backbone.encode(IDS, MASK, None, layer=3)


@architecture
def test_padding_changes_no_state(kind: str) -> None:
    backbone = Backbone(random_model(kind)).eval()
    with torch.no_grad():
        padded = backbone(IDS, MASK)[1, :4]
        alone = backbone(IDS[1:, :4], MASK[1:, :4])[0]
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)


@architecture
def test_positions_are_exactly_as_many_as_there_are(kind: str) -> None:
    backbone = Backbone(random_model(kind)).eval()
    ids = torch.full((1, backbone.positions + 1), 9)
    with torch.no_grad():
        states = backbone(ids[:, 1:], torch.ones_like(ids[:, 1:]))
        assert states.shape == (1, backbone.positions, 16)
        if kind != "modernbert":  # rotary: trained for so many, able to take more
            with pytest.raises((IndexError, RuntimeError)):
                backbone(ids, torch.ones_like(ids))
    backbone.check_length(backbone.positions, "max_length")
    with pytest.raises(SettingsError, match="positions that the model has") as caught:
        backbone.check_length(backbone.positions + 1, "max_length")
    assert caught.value.fix == f"--set max_length={backbone.positions}"


@architecture
def test_what_is_saved_loads_everywhere(kind: str, tmp_path: Path) -> None:
    backbone = Backbone(random_model(kind)).eval()
    backbone.save(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert not list(tmp_path.glob("*.bin"))
    with torch.no_grad():
        rows = MASK.bool()
        states = backbone(IDS, MASK)
        logits = backbone.head(states)[rows]
        plain = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
        found = plain(input_ids=IDS, attention_mask=MASK).last_hidden_state
        torch.testing.assert_close(found[rows], states[rows], rtol=1e-5, atol=1e-5)
        full = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        found = full(input_ids=IDS, attention_mask=MASK).logits[rows]
        torch.testing.assert_close(found, logits)
        for attention in ("eager", "sdpa"):
            again = Backbone.load(str(tmp_path), attention=attention).eval()
            assert again.has_head
            found = again(IDS, MASK)[rows]
            torch.testing.assert_close(found, states[rows], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            dict(again.state_dict()), dict(backbone.state_dict()), rtol=0, atol=0
        )


@architecture
def test_restore_puts_weights_back_into_the_same_model(kind: str, tmp_path: Path) -> None:
    backbone = Backbone(random_model(kind))
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    backbone.save(tmp_path)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.zero_()
    backbone.restore(tmp_path)
    torch.testing.assert_close(dict(backbone.state_dict()), before, rtol=0, atol=0)
    embeddings = backbone.word_embeddings
    assert embeddings is backbone.model.get_input_embeddings().weight
    output = backbone.model.get_output_embeddings()
    assert output.weight is embeddings, "still tied"


@architecture
def test_freezing_the_head_leaves_everything_else_trainable(kind: str) -> None:
    backbone = Backbone(random_model(kind)).train()
    backbone.freeze_head()
    frozen = {n for n, p in backbone.model.named_parameters() if not p.requires_grad}
    encoder = {id(p) for p in backbone.encoder.parameters()}
    own = {n for n, p in backbone.model.named_parameters() if id(p) not in encoder}
    assert frozen == own
    assert own
    assert backbone.word_embeddings.requires_grad
    # Trainable and reached: what takes part in data-parallel training must get a gradient.
    backbone(IDS, MASK).sum().backward()
    trainable = [p for p in backbone.parameters() if p.requires_grad]
    assert all(parameter.grad is not None for parameter in trainable)


@architecture
def test_an_encoder_without_head_keeps_or_gains_one(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = random_model(kind).base_model
    plain.save_pretrained(tmp_path)
    kept = Backbone.load(str(tmp_path)).eval()
    assert not kept.has_head
    kept.freeze_head()
    assert all(parameter.requires_grad for parameter in kept.parameters())
    said = capsys.readouterr().err
    assert "masked-LM head" not in said
    added = Backbone.load(str(tmp_path), head="add", seed=1).eval()
    assert "no masked-LM head in this checkpoint" in capsys.readouterr().err.replace("\n", " ")
    assert added.has_head
    with torch.no_grad():
        torch.testing.assert_close(added(IDS, MASK), kept(IDS, MASK), rtol=1e-5, atol=1e-5)
        logits = added.head(added(IDS, MASK))
    assert logits.shape == (2, 8, 67)
    assert added.model.get_output_embeddings().weight is added.word_embeddings
    again = Backbone.load(str(tmp_path), head="add", seed=1).eval()
    torch.testing.assert_close(dict(again.state_dict()), dict(added.state_dict()), rtol=0, atol=0)
    check_new_head(added, tmp_path / "trained", capsys)


def check_new_head(backbone: Backbone, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step of training, saved, gives the same logits wherever it is loaded."""
    assert backbone.model.get_output_embeddings().weight is backbone.word_embeddings
    loss = cross_entropy(backbone.head(backbone(IDS, MASK))[MASK.bool()], IDS[MASK.bool()])
    assert torch.isfinite(loss)
    torch.autograd.backward(loss)
    optimiser = torch.optim.SGD(backbone.parameters(), lr=0.1)
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    optimiser.step()
    backbone.save(folder)
    capsys.readouterr()
    again = Backbone.load(str(folder), head="add").eval()
    assert "masked-LM head" not in capsys.readouterr().err, "now it has one"
    plain = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    with torch.no_grad():
        expected = backbone.head(backbone(IDS, MASK))
        rows = MASK.bool()
        found = plain(input_ids=IDS, attention_mask=MASK).logits
        torch.testing.assert_close(found[rows], expected[rows], rtol=1e-5, atol=1e-5)
        found = again.head(again(IDS, MASK))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@architecture
def test_a_new_head_is_tied_even_where_the_encoder_forbids_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = random_model(kind).base_model
    plain.config.tie_word_embeddings = False
    plain.save_pretrained(tmp_path)
    check_new_head(Backbone.load(str(tmp_path), "add").eval(), tmp_path / "trained", capsys)


@architecture
def test_a_head_of_its_own_matrix_keeps_it(kind: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(kind, **MODELS[kind], tie_word_embeddings=False)
    model = AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(tmp_path)
    backbone = Backbone.load(str(tmp_path), "add")
    found, expected = backbone.model.get_output_embeddings(), model.get_output_embeddings()
    assert found.weight is not backbone.word_embeddings
    assert not backbone.config.tie_word_embeddings
    torch.testing.assert_close(found.weight, expected.weight, rtol=0, atol=0)


def test_a_discriminator_is_an_encoder_without_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = AutoConfig.for_model("electra", **MODELS["electra"])
    torch.manual_seed(1)
    discriminator = transformers.ElectraForPreTraining(config).eval()
    discriminator.save_pretrained(tmp_path)
    assert not Backbone.load(str(tmp_path)).has_head
    capsys.readouterr()
    backbone = Backbone.load(str(tmp_path), head="add").eval()
    assert "no masked-LM head in this checkpoint" in capsys.readouterr().err.replace("\n", " ")
    with torch.no_grad():
        expected = discriminator.electra(input_ids=IDS, attention_mask=MASK).last_hidden_state
        rows = MASK.bool()
        found = backbone(IDS, MASK)[rows]
        torch.testing.assert_close(found, expected[rows], rtol=1e-5, atol=1e-5)
    check_new_head(backbone, tmp_path / "trained", capsys)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=67)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="'gpt2' model, which isthmus does not know") as caught:
        Backbone.load(str(tmp_path))
    assert "modernbert" in caught.value.expected
