"""Every architecture: packed or padded, compiled or not, it gives the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.factories import looked_up
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM

from isthmus.nn import attention, packing
from isthmus.nn import backbone as backbones
from isthmus.nn.architectures import MASKED_LM, POST_NORM
from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels import available
from isthmus.nn.packing import Asking
from isthmus.training.trainer import compile_layers

SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(MASKED_LM, SIZES),
    "distilbert": {
        "vocab_size": 67, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24,
        "max_position_embeddings": 40, "pad_token_id": 1, "dropout": 0.0, "attention_dropout": 0.0,
    },
    "electra": {**SIZES, "embedding_size": 12},
    # Two tokens to either side in two layers of three.
    "modernbert": {**SIZES, "global_attn_every_n_layers": 3, "local_attention": 4},
}  # fmt: skip
LENGTHS = [4, 1, 17, 9, 2, 13]  # the longest fills its row, the shortest is one token
# All but ModernBERT are BERT's layers under other names.
architecture = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("bert", "modernbert") else pytest.mark.nightly)
        for kind in MODELS
    ],
)
WAYS = ("text by text", "padded for attention", "own layers")
compiled_architecture = pytest.mark.parametrize(
    ("kind", "use_packing", "way"),
    [
        (kind, use_packing, way)
        for kind in MODELS
        for use_packing in (True, False)
        for way in (WAYS if use_packing else WAYS[:1])  # what is padded is the same in all ways
    ],
    indirect=["way"],
)
kinds_of_attention = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of a CPU, which otherwise depend on how long the texts are, and a GPU's layers.

    These run on kernels there, and here on what says the same in plain torch. What is padded is
    left to transformers by all three.
    """
    found: str = request.param
    monkeypatch.setitem(packing.LEAST_PADDING, "cpu", 0.0)
    monkeypatch.setattr(attention, "LONG", 1000 if found == "padded for attention" else 0)
    monkeypatch.setattr(
        backbones, "has_kernels", lambda states: available.KERNELS and found == "own layers"
    )
    return found


def random_backbone(kind: str, implementation: str, **more: Any) -> Backbone:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**MODELS[kind], **more})
    # MPNet knows no other than its own.
    chosen = "eager" if kind == "mpnet" else implementation
    model = AutoModelForMaskedLM.from_config(config, attn_implementation=chosen)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Backbone(model).train()


def with_layer(
    backbone: Backbone, ids: Tensor, mask: Tensor, layer: int, asking: Asking | None = None
) -> tuple[Tensor, Tensor]:
    """The last states, and those after so many layers."""
    found = backbone.encode(ids, mask, None, layer=layer, asking=asking)
    assert found.middle is not None
    return found.states, found.middle


def padded_batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 67, mask.shape, generator=generator)
    return torch.where(mask, ids, 1), mask.long()


def gradients(backbone: Backbone, loss: Tensor) -> dict[str, Tensor]:
    backbone.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {n: p.grad.clone() for n, p in backbone.named_parameters() if p.grad is not None}


def both_ways(backbone: Backbone, run: Callable[[Backbone], Tensor]) -> tuple[Any, Any]:
    """States and gradients of a loss on them, packed and padded."""
    found = []
    for use in (True, False):
        backbone.use_packing = use
        states = run(backbone)
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
        found.append((states.detach(), gradients(backbone, (states * weights).sum())))
    return found[0], found[1]


@architecture
@kinds_of_attention
def test_states_and_gradients(
    kind: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_backbone(kind, implementation)
    ids, mask = padded_batch(LENGTHS)
    rows = mask.bool()
    streams = looked_up(backbone.word_embeddings, monkeypatch)
    packed, padded = both_ways(backbone, lambda b: b(ids, mask)[rows])
    expected = (1, sum(LENGTHS)) if kind != "mpnet" else tuple(ids.shape)
    assert tuple(streams[0].shape[:2]) == expected, "the encoder met no padding"
    assert tuple(streams[1].shape[:2]) == tuple(ids.shape)
    torch.testing.assert_close(packed[0], padded[0], rtol=1e-5, atol=1e-5)
    assert set(packed[1]) == set(padded[1])
    for name, gradient in padded[1].items():
        torch.testing.assert_close(packed[1][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@compiled_architecture
@pytest.mark.nightly
def test_compiled_layers(kind: str, use_packing: bool) -> None:
    backbone = random_backbone(kind, "eager")
    backbone.use_packing = use_packing
    compiled = copy.deepcopy(backbone)
    # What dynamo understands of the layers is what is in question, not how it is put into code.
    compile_layers(compiled, "aot_eager")
    assert list(compiled.state_dict()) == list(backbone.state_dict())
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    ids, mask = padded_batch(LENGTHS[:3])  # attention to each text is traced by itself
    rows = mask.bool()
    found = []
    for each in (compiled, backbone):
        states = each(ids, mask)[rows]
        gradient = gradients(each, states.square().sum())
        looked = [with_layer(each, ids, mask, layer) for layer in (0, 1, 3)]
        found.append((states.detach(), gradient, [s[rows] for pair in looked for s in pair]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    # Attention, text by text on a CPU, asks how long texts are; nothing else may ask anything.
    own = ("Tensor.tolist", ".item()", "_local_scalar_dense")
    others = [reason for reason in breaks if not any(name in reason for name in own)]
    assert not others, "layers are compiled in one piece, also where their states are looked at"


@architecture
def test_states_of_a_layer(kind: str) -> None:
    backbone = random_backbone(kind, "eager")
    ids, mask = padded_batch(LENGTHS)
    rows = mask.bool()
    for layer in (0, 2, 3):
        packed, padded = both_ways(
            backbone,
            lambda b, layer=layer: torch.cat(  # type: ignore[misc]
                [states[rows] for states in with_layer(b, ids, mask, layer)]
            ),
        )
        torch.testing.assert_close(packed[0], padded[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(packed[1], padded[1], rtol=1e-4, atol=1e-5)


@architecture
def test_padding_is_zero_and_the_places_may_be_given(kind: str) -> None:
    backbone = random_backbone(kind, "sdpa")
    ids, mask = padded_batch(LENGTHS)
    found = backbone(ids, mask)
    if backbone.packs:
        assert not found[mask == 0].any()
    given = backbone(ids, mask, mask.flatten().nonzero()[:, 0])
    torch.testing.assert_close(given, found, rtol=0, atol=0)


@architecture
# One text or several, of one token or more: the mixed cases repeat these two.
@pytest.mark.parametrize(
    "lengths",
    [[5, 5, 5], [1], *(pytest.param(each, marks=pytest.mark.nightly) for each in ([7], [1, 1]))],
    ids=str,
)
def test_a_batch_without_padding_needs_no_mask(kind: str, lengths: list[int], way: str) -> None:
    backbone = random_backbone(kind, "sdpa")
    ids, mask = padded_batch(lengths)
    asked: list[dict[str, Any]] = []
    if way != "own layers":  # they step aside for hooks
        backbone.encoder.register_forward_pre_hook(
            lambda *call: asked.append(call[2]), with_kwargs=True
        )
    packed, padded = both_ways(backbone, lambda b: b(ids, mask))
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-5)
    if way == "own layers":
        return
    assert ("packing" in asked[0]) is (kind == "modernbert"), "where it would make a window"
    assert ("attention_mask" in asked[0]) is (kind in ("modernbert", "mpnet"))


@architecture
def test_nothing_leaks_from_text_to_text(kind: str) -> None:
    backbone = random_backbone(kind, "eager").eval()
    ids, mask = padded_batch(LENGTHS)
    with torch.no_grad():
        before = backbone(ids, mask)
        changed = ids.clone()
        changed[2, 3] = 40 if int(ids[2, 3]) != 40 else 41
        after = backbone(changed, mask)
    differs = (before != after).flatten(1).any(1).tolist()
    assert differs == [False, False, True, False, False, False]


def test_a_window_holds() -> None:
    """ModernBERT's first layer is global; the other two see two tokens further each."""
    backbone = random_backbone("modernbert", "sdpa").eval()
    layers = backbone.encoder.layers
    assert [layer.attention_type for layer in layers] == [
        "full_attention", "sliding_attention", "sliding_attention",
    ]  # fmt: skip
    ids, mask = padded_batch(LENGTHS)
    seen: list[tuple[Tensor, Tensor]] = []
    layers[1].register_forward_hook(lambda _, given, got: seen.append((given[0], got)))
    with torch.no_grad():
        backbone(ids, mask)
        states = seen[0][0].clone()
        start = 4 + 1  # of the third text, in the stream
        states[0, start + 8] = torch.randn(16)
        used = backbone.packing(mask)
        assert used is not None
        angles = backbone.encoder.rotary_emb(
            states, used.pack(torch.arange(17).expand(6, 17)), "sliding_attention"
        )
        options = {"attention_mask": used.present, "position_embeddings": angles, "packing": used}
        changed = layers[1](states, **options)
    differs = (changed != seen[0][1])[0].any(1).nonzero()[:, 0].tolist()
    assert differs == [start + place for place in (6, 7, 8, 9, 10)]


@architecture
def test_padding_on_the_left_is_padding_too(kind: str) -> None:
    backbone = random_backbone(kind, "sdpa")
    ids, mask = (side.flip(1) for side in padded_batch(LENGTHS))
    packed, padded = both_ways(backbone, lambda b: b(ids, mask)[mask.bool()])
    torch.testing.assert_close(packed[0], padded[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(POST_NORM))
@pytest.mark.parametrize("lengths", [LENGTHS, [9, 9, 9]], ids=["packed", "without padding"])
def test_some_states_are_those_of_all(kind: str, lengths: list[int], way: str) -> None:
    backbone = random_backbone(kind, "sdpa")
    assert backbone.asks_for_some is (way == "own layers")
    ids, mask = padded_batch(lengths)
    read = (torch.arange(mask.shape[1]) % 3 == 1) & mask.bool()
    read[:, 0] = True
    asking = Asking.of(read)
    found = []
    for asked in (asking, None):
        states, middle = with_layer(backbone, ids, mask, 1, asked)
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
        loss = ((states * weights)[read]).sum() + middle[mask.bool()].square().sum()
        found.append(([states.detach()[read], middle.detach()], gradients(backbone, loss)))
        if asked is not None and way == "own layers":
            assert not states[~read].any()
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [0, 2, 40])
def test_some_of_a_number_that_is_known_before(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """A device that is not asked how many there are gets a few too many, which change nothing."""
    backbone = random_backbone("bert", "sdpa")
    ids, mask = padded_batch(LENGTHS)
    read = torch.zeros_like(mask, dtype=torch.bool)
    read[:, 0] = read[3, 4] = True
    exact = Asking.of(read)
    monkeypatch.setattr(packing, "KNOWING", frozenset())
    known = Asking.of(read, len(exact.places) + more)
    assert known.places.tolist() == [*exact.places.tolist(), *[-1] * more]
    assert known.offsets.diff().max() <= mask.shape[1], "no more than a text can have"
    assert known.offsets[-1] == len(known.places)
    for found, expected in zip(
        *(both(backbone, ids, mask, asked, read) for asked in (exact, known)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def both(backbone: Backbone, ids: Tensor, mask: Tensor, asked: Asking, read: Tensor) -> Any:
    states = backbone(ids, mask, asking=asked)
    return states.detach()[read], gradients(backbone, states[read].square().sum())


def test_whose_layers_are_our_own() -> None:
    found = {kind for kind in MODELS if random_backbone(kind, "sdpa").own_layers is not None}
    assert found == set(POST_NORM) == set(MODELS) - {"mpnet", "modernbert"}


@pytest.mark.parametrize("kind", sorted(POST_NORM))
def test_dropout(kind: str, way: str) -> None:
    """In the same places as in the layers of transformers: as much is changed by it, on average."""
    if way != "own layers":
        pytest.skip("the others are those of transformers")
    names = ("dropout", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob")
    ids, mask = padded_batch([12] * 40)
    for chosen in (name for name in names if name in MODELS[kind]):
        backbone = random_backbone(kind, "sdpa", **{chosen: 0.3})
        backbone.encoder.embeddings.dropout.p = 0.0  # there, it is that of transformers
        changed = []
        for ours in (True, False):
            torch.manual_seed(5)
            with torch.no_grad(), available.kernels_allowed(ours):
                plain = with_layer(backbone.eval(), ids, mask, 1)[1]
                runs = [
                    (with_layer(backbone.train(), ids, mask, 1)[1] - plain).square().mean()
                    for _ in range(12)
                ]
            changed.append(torch.stack(runs).mean().sqrt().item())
        assert changed[1] > 0.01
        assert changed[0] == pytest.approx(changed[1], rel=0.05), chosen


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_checkpointed_gradients_are_the_same(kind: str) -> None:
    backbone = random_backbone(kind, "eager")
    ids, mask = padded_batch(LENGTHS)
    saving = copy.deepcopy(backbone)
    saving.model.gradient_checkpointing_enable({"use_reentrant": False})
    expected = gradients(backbone, backbone(ids, mask).square().sum())
    found = gradients(saving, saving(ids, mask).square().sum())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
