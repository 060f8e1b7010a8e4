"""Bag of words: -(1/|T|) Σ_{t in T} log softmax(z)_t, T the set of the text's regular tokens."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.golden.loops import check_all_weights, log_softmax, numerical_gradient, plain_head

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.objectives import BagOfWords, BagOfWordsSettings, bag_of_words, token_sets
from isthmus.pretraining.step import Step, Vocabulary
from isthmus.text.tokenizer import Tokenizer

# [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4: a text with a repeated token, one of a single
# token, one that an unknown and a mask typed by the user leave empty, one without any token.
IDS = torch.tensor(
    [
        [2, 7, 12, 7, 7, 30, 3],
        [2, 9, 3, 0, 0, 0, 0],
        [2, 1, 4, 3, 0, 0, 0],
        [2, 3, 0, 0, 0, 0, 0],
    ]
)
MASK = (IDS != 0).long()
BAGS = [{7, 12, 30}, {9}, set(), set()]
CHOICES = list(itertools.product(("head", "embeddings"), ("cls", "mean", "max")))


def objective(projection: str = "head", vector: str = "cls", target: str = "own") -> BagOfWords:
    values = {"projection": projection, "vector": vector, "target": target}
    return BagOfWords(BagOfWordsSettings.parse(values, where="test"))


def plain(
    backbone: Backbone, states: torch.Tensor, projection: str, vector: str
) -> list[tuple[float, float]]:
    """Loss and gap of each text, from hidden states."""
    head = plain_head(backbone)
    embeddings = backbone.word_embeddings.tolist()
    results = []
    texts = zip(states.tolist(), MASK.tolist(), IDS.tolist(), BAGS, strict=True)
    for rows, mask, ids, tokens in texts:
        if not tokens:
            results.append((0.0, 0.0))
            continue
        seen = [row for row, shown in zip(rows, mask, strict=True) if shown]
        used = [[sum(c) / len(seen) for c in zip(*seen)]]  # noqa: B905
        if vector != "mean":
            used = [row for row, token in zip(rows, ids, strict=True) if token in tokens]
        if vector == "cls":
            used = rows[:1]
        each = [
            head(h)
            if projection == "head"
            else [sum(e * x for e, x in zip(row, h, strict=True)) for row in embeddings]
            for h in used
        ]
        scores = [max(column) for column in zip(*each, strict=True)]
        loss = -sum(log_softmax(scores, token) for token in tokens) / len(tokens)
        results.append((loss, loss - math.log(len(tokens))))
    return results


@pytest.mark.parametrize(("projection", "vector"), CHOICES)
def test_value_gap_and_count(
    projection: str, vector: str, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "input_ids": IDS, "attention_mask": MASK}
    part = objective(projection, vector)
    assert Step(step, vocabulary).count(part.items).item() == 2, (
        "texts with an empty bag do not count"
    )
    found = part(Step(step, vocabulary, backbone))
    expected = plain(backbone, states, projection, vector)
    assert found[""].item() == pytest.approx(sum(loss for loss, _ in expected), rel=1e-6)
    assert found["gap"].item() == pytest.approx(sum(gap for _, gap in expected), rel=1e-6)
    assert not found["gap"].requires_grad, "a number for the log"


@pytest.mark.parametrize(("projection", "vector"), CHOICES)
def test_gradient_of_every_hidden_state(
    projection: str, vector: str, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(IDS, MASK).detach().requires_grad_()
    step = {"hidden_states": states, "input_ids": IDS, "attention_mask": MASK}
    loss = objective(projection, vector)(Step(step, vocabulary, backbone))[""]
    (found,) = torch.autograd.grad(loss, states)
    expected = numerical_gradient(
        lambda: sum(loss for loss, _ in plain(backbone, states, projection, vector)), states
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert not found[2:].any(), "an empty bag contributes nothing"
    assert not found[MASK == 0].any()


@pytest.mark.parametrize(("projection", "vector"), CHOICES)
def test_gradient_of_all_weights(
    projection: str, vector: str, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    step = {"hidden_states": backbone(IDS, MASK), "input_ids": IDS, "attention_mask": MASK}
    loss = objective(projection, vector)(Step(step, vocabulary, backbone))[""]
    check_all_weights(
        backbone,
        loss,
        lambda: sum(loss for loss, _ in plain(backbone, backbone(IDS, MASK), projection, vector)),
    )


@pytest.mark.parametrize("partner", [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1]])
def test_the_neighbours_bag(partner: list[int], backbone: Backbone, vocabulary: Vocabulary) -> None:
    states = backbone(IDS, MASK).detach().requires_grad_()
    step = {
        "hidden_states": states, "input_ids": IDS, "attention_mask": MASK,
        "partner": torch.tensor(partner),
    }  # fmt: skip

    def plain() -> float:
        loss = 0.0
        for row, other in enumerate(partner):
            scores = plain_head(backbone)(states[row, 0].tolist())
            for token in BAGS[other]:
                loss -= log_softmax(scores, token) / len(BAGS[other])
        return loss

    part = objective(target="partner")
    assert Step(step, vocabulary).count(part.items).item() == 2
    found = part(Step(step, vocabulary, backbone))
    assert found[""].item() == pytest.approx(plain(), rel=1e-6)
    # log|T| of the two bags that are not empty: three tokens, and one.
    assert found["gap"].item() == pytest.approx(plain() - math.log(3), rel=1e-6)
    (gradient,) = torch.autograd.grad(found[""], states)
    torch.testing.assert_close(gradient, numerical_gradient(plain, states), rtol=1e-5, atol=2e-6)


def test_the_bag_is_a_set_without_special_tokens(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    everything = torch.arange(vocabulary.size)[None]
    found = set(token_sets(everything, vocabulary.special)[0].nonzero().flatten().tolist())
    assert found == set(range(5, len(tokenizer))), "neither specials nor rows beyond the tokens"
    for row, tokens in zip(token_sets(IDS, vocabulary.special), BAGS, strict=True):
        assert set(row.nonzero().flatten().tolist()) == tokens


def test_the_bag_is_of_the_text_before_masking(backbone: Backbone, vocabulary: Vocabulary) -> None:
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "input_ids": IDS, "attention_mask": MASK}
    hidden = {**step, "encoder_ids": torch.full_like(IDS, 4), "labels": IDS}
    assert (
        objective()(Step(hidden, vocabulary, backbone))[""]
        == objective()(Step(step, vocabulary, backbone))[""]
    )


def test_duplicates_count_once(backbone: Backbone, vocabulary: Vocabulary) -> None:
    once = torch.tensor([[2, 7, 12, 30, 3]])
    thrice = torch.tensor([[2, 7, 12, 7, 7, 30, 3]])
    logits = torch.randn(1, vocabulary.size)
    found = bag_of_words(logits, token_sets(thrice, vocabulary.special))
    assert torch.equal(found, bag_of_words(logits, token_sets(once, vocabulary.special)))


def test_the_lower_bound_is_reached_by_the_uniform_distribution(vocabulary: Vocabulary) -> None:
    bags = token_sets(torch.tensor([[2, 7, 12, 7, 30, 3]]), vocabulary.special)
    logits = torch.where(bags, 0.0, -1e9)
    assert bag_of_words(logits, bags).item() == pytest.approx(math.log(3))
