"""Useful operations: against a count by hand, torch's own counter, and what is known of recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMaskedLM

from isthmus.benchmarks.speed.contestants import settings_for
from isthmus.benchmarks.speed.recipe_cost import operations, read, shape_of
from isthmus.benchmarks.speed.texts import RandomCorpus, columns_of
from isthmus.config import shipped_recipes
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.arithmetic import (
    FORWARD,
    TRAINED,
    Shape,
    Texts,
    attention,
    causal_pairs,
    encoder,
    pairs,
    spared,
)
from isthmus.pretraining.bottlenecks.lexicon import Lexicon
from isthmus.pretraining.decoders.autoregressive import Autoregressive
from isthmus.pretraining.decoders.bidirectional import Bidirectional
from isthmus.pretraining.decoders.condenser import Condenser
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.objectives.bag_of_words import BagOfWords
from isthmus.pretraining.parts import BOTTLENECKS, CORRUPTIONS, DECODERS, OBJECTIVES, VIEWS
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.task import PretrainTask
from isthmus.text.tokenizer import Tokenizer

RECIPES = [recipe.name for recipe in shipped_recipes("pretrain") if recipe.name != "simlm"]
BASE = Shape(
    width=768,
    linear=12 * (4 * 768 * 768 + 2 * 768 * 3072),
    reaches=(None,) * 12,
    head=768 * 768,
    vocabulary=30_522 * 768,
    layer=4 * 768 * 768 + 2 * 768 * 3072,
    last=4 * 768 * 768 + 2 * 768 * 3072,
)


def parts_of(recipe: str) -> Parts:
    return assemble(settings_for(recipe, "model", (512, 4), 0, {}))


def batch_of(length: int, rows: int, masked: float = 0.3, decoder: float = 0.5) -> Texts:
    inside = length - 2
    return Texts(
        (length,) * rows,
        rows * inside,
        (round(masked * inside),) * rows,
        (round(decoder * inside),) * rows,
    )


@pytest.mark.parametrize("length", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("reach", [1, 2, 3, 9, 20])
def test_pairs_are_those_of_a_loop(length: int, reach: int) -> None:
    places = range(length)
    near = sum(abs(row - column) <= reach for row in places for column in places)
    assert pairs([length, length], reach) == 2 * near
    assert pairs([length, 4]) == length**2 + 16
    behind = [(row, column) for row in places for column in places if column <= row]
    assert causal_pairs([length]) == len(behind)
    seen = sum(row - column < reach or column == 0 for row, column in behind)
    assert causal_pairs([length, length], reach) == 2 * seen


def test_bert_by_hand() -> None:
    # A text of 3 tokens and one of 2; 2 layers of width 4, 8 between; 10 terms; one token labelled.
    shape = Shape(4, 2 * (4 * 16 + 2 * 32), (None, None), 16, 40, 128, 128)
    linear = 5 * 2 * (16 + 16 + 16 + 16 + 32 + 32)
    scores = 2 * (3 * 3 + 2 * 2) * 4
    mixtures = scores
    head = 1 * (16 + 10 * 4)
    assert encoder(shape, (3, 2)) == linear + scores + mixtures
    texts = Texts((3, 2), inside=1, labelled=(1, 0))
    # Of the last layer, keys and values of all five, and the rest of one token, which sees three.
    first = 5 * (16 + 16 + 16 + 16 + 32 + 32) + 2 * (3 * 3 + 2 * 2) * 4
    last = 5 * (16 + 16) + 1 * (16 + 16 + 32 + 32) + 2 * 3 * 4
    assert operations(parts_of("mlm"), shape, texts) == 2 * 3 * (first + last + head)


def test_padding_is_not_counted(backbone: Backbone, tokenizer: Tokenizer) -> None:
    task = PretrainTask(backbone, tokenizer, parts_of("mlm"))
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])
    labels = torch.tensor([[-100, 5, -100, 7, -100], [-100, -100, -100, -100, -100]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    assert Texts.of(batch, task.vocabulary) == Texts((5, 3), inside=4, labelled=(2, 0))


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_padding_it_is_what_torch_counts(
    recipe: str, backbone: Backbone, tokenizer: Tokenizer
) -> None:
    settings = settings_for(recipe, "model", (16, 4), 0, {})
    parts = assemble(settings)
    task = PretrainTask(backbone, tokenizer, parts).float()  # as the decoder's layers are made
    corpus = RandomCorpus(tokenizer, 14, seed=0)
    columns = columns_of(parts, corpus, tokenizer)
    examples = PretrainExamples(corpus, parts.view, tokenizer, 16, 0, columns)
    batch = task.prepare(examples.collate([examples[0, row] for row in range(3)]))
    texts = Texts.of(batch, task.vocabulary)
    assert set(texts.lengths) == {16}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        sums = task(batch)
        torch.stack([sums[name].double() for name in task.weights(1.0)]).sum().backward()
    shape = shape_of(backbone)
    useful = operations(parts, shape, texts)
    assert useful is not None
    assert counter.get_total_flops() == useful + unasked(parts, shape, texts, len(tokenizer) + 3)


@pytest.mark.parametrize("kind", ["distilbert", "electra", "modernbert", "roberta"])
def test_every_architecture_is_counted(kind: str, tokenizer: Tokenizer) -> None:
    names = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
    more = {"intermediate_size": 12, "max_position_embeddings": 40, "vocab_size": len(tokenizer)}
    if kind == "distilbert":
        names, more["hidden_dim"] = {"dim": 8, "n_layers": 3, "n_heads": 2}, 12
    if kind == "electra":
        more["embedding_size"] = 6
    if kind == "modernbert":
        more |= {"global_attn_every_n_layers": 3, "local_attention": 4, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **names, **more)
    task = PretrainTask(
        Backbone(AutoModelForMaskedLM.from_config(config)), tokenizer, parts_of("mlm")
    ).eval()
    ids = torch.randint(20, 40, (2, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["labels"] = torch.where(torch.arange(16) % 3 == 0, ids, -100)
    texts = Texts.of(batch, task.vocabulary)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task(batch)["masked_lm"].backward()
    shape = shape_of(task.backbone)
    extra = unasked(task.parts, shape, texts, len(tokenizer))
    if kind == "modernbert":  # two local layers, masked
        assert shape.reaches == (None, 2, 2)
        far = 2 * (pairs(texts.lengths) - pairs(texts.lengths, 2))
        extra += TRAINED * attention(8, far)
    assert counter.get_total_flops() == (operations(task.parts, shape, texts) or 0) + extra


def unasked(parts: Parts, shape: Shape, texts: Texts, terms: int) -> int:
    """What today's step computes and nobody needs: known, small, and not useful."""
    # The gradient of the head's bias, as a product with ones.
    extra = 2 * terms * sum((*texts.labelled, *texts.decoder_labelled))
    if any(isinstance(objective, BagOfWords) for objective in parts.objectives.values()):
        extra += 2 * terms * len(texts.lengths)
    # Without kernels of our own, layers compute what nobody reads.
    if shape.reaches[-1] is None:
        unread = spared(shape.width, shape.last, texts.lengths, read(parts, texts))
        extra += TRAINED * unread
    if isinstance(parts.decoder, Bidirectional | Condenser):
        unread = spared(shape.width, shape.layer, texts.lengths, texts.decoder_labelled)
        extra += TRAINED * unread
    if isinstance(parts.decoder, Autoregressive):  # pairs that lie ahead, masked
        ahead = pairs(texts.lengths) - causal_pairs(texts.lengths)
        extra += TRAINED * attention(shape.width, ahead)
    if isinstance(parts.bottleneck, Lexicon):  # logits of [CLS] and [SEP]
        outside = sum(texts.lengths) - texts.inside
        extra += outside * (TRAINED * shape.head + FORWARD * shape.vocabulary)
    return extra


def test_a_window_is_counted() -> None:
    whole, local = parts_of("autoregressive"), parts_of("autoregressive")
    assert local.decoder is not None
    local.decoder.settings = local.decoder.settings.model_copy(update={"window": 8})
    texts = batch_of(512, 2)
    fewer = causal_pairs(texts.lengths) - causal_pairs(texts.lengths, 8)
    one, other = (operations(parts, BASE, texts) for parts in (whole, local))
    assert one is not None
    assert other == one - TRAINED * attention(768, fewer)


def more_than_masked_lm(recipe: str, texts: Texts) -> float:
    ours, masked_lm = (operations(parts_of(name), BASE, texts) for name in (recipe, "mlm"))
    assert ours is not None
    assert masked_lm is not None
    return ours / masked_lm - 1


def test_what_recipes_cost_at_bert_base() -> None:
    half = batch_of(512, 64)
    everything = replace(half, decoder_labelled=(510,) * 64)
    assert more_than_masked_lm("autoencoding", half) == pytest.approx(0.170, abs=0.001)
    assert more_than_masked_lm("autoregressive", everything) == pytest.approx(0.33, abs=0.01)
    assert more_than_masked_lm("retromae", everything) == pytest.approx(0.33, abs=0.01)
    # Once per text: the longer the texts, the less.
    assert more_than_masked_lm("bow", half) == pytest.approx(0.0006, abs=0.0001)
    assert more_than_masked_lm("bow", batch_of(144, 256)) == pytest.approx(0.0023, abs=0.0001)
    assert more_than_masked_lm("lexmae", batch_of(144, 256)) == pytest.approx(0.40, abs=0.01)


def test_what_they_cost_where_last_layers_compute_everything() -> None:
    """As in plain code, and as it is usually counted."""
    half = batch_of(512, 64)
    everything = replace(half, decoder_labelled=(510,) * 64)

    def more(recipe: str, texts: Texts) -> float:
        counts = []
        for name in (recipe, "mlm"):
            parts = parts_of(name)
            useful = operations(parts, BASE, texts)
            assert useful is not None
            unread = spared(768, BASE.last, texts.lengths, read(parts, texts))
            if isinstance(parts.decoder, Bidirectional):
                unread += spared(768, BASE.layer, texts.lengths, texts.decoder_labelled)
            counts.append(useful + TRAINED * unread)
        return counts[0] / counts[1] - 1

    assert more("autoencoding", half) == pytest.approx(0.19, abs=0.01)
    assert more("autoregressive", everything) == pytest.approx(0.31, abs=0.01)
    assert more("retromae", everything) == pytest.approx(0.31, abs=0.01)


def test_every_part_is_counted_or_known_not_to_be() -> None:
    registries = (VIEWS, CORRUPTIONS, BOTTLENECKS, DECODERS, OBJECTIVES)
    uncounted = []
    for name, kind in ((n, registry.load(n)) for registry in registries for n in registry.names()):
        part = kind(kind.Settings())
        if part.operations(BASE, batch_of(16, 2)) is None:
            uncounted.append(name)
    assert uncounted == ["generator", "keep"]
