"""Every shipped recipe: splitting and padding change no loss; nothing special is ever told."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import WITHOUT_DROPOUT, bert, looked_up, tokenised
from transformers import BertForMaskedLM

from isthmus.config import resolve, shipped_recipes
from isthmus.nn import attention
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED, PLACES, places_of
from isthmus.pretraining.task import PretrainTask
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.graphs import Graphs
from isthmus.training.task import Batch

NAMES = [recipe.name for recipe in shipped_recipes("pretrain")]
PAIRED = ["bow-neighbours", "bow-pmi-neighbours", "cocondenser", "cotmae"]
WORDS = "the quick brown fox jumps over the lazy dog again"
TOKENIZER = new_tokenizer([WORDS] * 2, 90)
# Several spans, one, one token, only what is unknown, a typed [MASK], nothing.
TEXTS = [
    "The quick brown fox jumps. The lazy dog again. Over the quick dog. A fox, a dog! " * 3,
    "quickly the foxes jump over it",
    "fox",
    "ж ж",
    "the lazy [MASK] dog ж jumps",
    "",
    "The fox jumps. The dog again over the brown dog. The lazy quick fox over the dog. " * 2,
]
EMPTY = [3, 5]
Made = tuple[PretrainTask, PretrainExamples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


def new_backbone() -> Backbone:
    torch.manual_seed(3)
    config = bert(
        len(TOKENIZER) + 3,
        intermediate_size=16,
        max_position_embeddings=40,
        initializer_range=0.4,
        **WITHOUT_DROPOUT,
    )
    return Backbone(BertForMaskedLM(config))


@pytest.fixture(scope="module")
def make(folder: Path) -> Callable[[str], Made]:
    """The task of a recipe in float64, and its examples."""
    corpus, backbone = tokenised(TEXTS, TOKENIZER, folder), new_backbone()
    backbone.save(folder)
    TOKENIZER.save(folder)
    made: dict[str, Made] = {}

    def build(name: str) -> Made:
        if name not in made:
            overrides: dict[str, Any] = {"max_length": 24}
            if name in PAIRED:
                overrides["view.span"] = 16
            if name == "simlm":
                overrides["corruption.generator"] = str(folder)
            flags = {"documents": "c", "output": "o", "model": "m"}
            settings = PretrainSettings.parse(resolve("pretrain", name, flags, overrides), name)
            parts = assemble(settings)
            columns = parts.columns(corpus, TOKENIZER)
            task = PretrainTask(copy.deepcopy(backbone), TOKENIZER, parts).double()
            examples = PretrainExamples(corpus, parts.view, TOKENIZER, 24, 5, columns)
            made[name] = task, examples
        return made[name]

    return build


def prepared(made: Made, rows: list[int], epoch: int = 0) -> Batch:
    task, examples = made
    return task.prepare(examples.collate([examples[epoch, row] for row in rows]))


def losses(made: Made, batch: Batch) -> dict[str, float]:
    with torch.no_grad():
        return {name: value.item() for name, value in made[0](batch).items()}


def counts(made: Made, batch: Batch) -> dict[str, int]:
    return {name: int(value) for name, value in made[0].counts(batch).items()}


def everything_of(made: Made, batch: Batch) -> tuple[Any, ...]:
    """Losses, counts and gradients."""
    task, _ = made
    task.zero_grad()
    sums = task(batch)
    torch.autograd.backward([sums[loss] for loss in task.weights(0.0)])
    slopes = {n: p.grad for n, p in task.named_parameters() if p.grad is not None}
    return {loss: value.detach() for loss, value in sums.items()}, counts(made, batch), slopes


every_recipe = pytest.mark.parametrize("name", NAMES)


@every_recipe
@pytest.mark.parametrize("way", ["text by text", "padded for attention", "own layers"])
def test_packed_and_padded_are_the_same(
    name: str, way: str, make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG", 1000 if way == "padded for attention" else 0)
    if way == "own layers":
        # As on a GPU: only what is read leaves the last layer. Padded, transformers computes it.
        for module in ("backbone", "layers"):
            monkeypatch.setattr(f"isthmus.nn.{module}.has_kernels", lambda states: True)
    made = make(name)
    task, _ = made
    batch = prepared(made, list(range(len(TEXTS))))
    assert task.backbone.packing(batch["attention_mask"], batch["tokens"]) is not None
    calls = looked_up(task.backbone.word_embeddings, monkeypatch)
    found = []
    for use in (True, False):
        monkeypatch.setattr(task.backbone, "use_packing", use)
        calls.clear()
        found.append(everything_of(made, batch))
        assert (len(calls[0]) == 1) is use
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


@every_recipe
def test_padding_and_splitting_change_no_loss(name: str, make: Callable[[str], Made]) -> None:
    made = make(name)
    everything = list(range(len(TEXTS)))
    whole = prepared(made, everything)
    found, items = losses(made, whole), counts(made, whole)
    assert all(torch.tensor(value).isfinite() for value in found.values())
    # One document at a time: no row is padded further than its own pair.
    single = [prepared(made, [row]) for row in everything]
    for loss, value in found.items():
        if loss != "span_contrast":  # its negatives are the batch
            expected = sum(losses(made, batch)[loss] for batch in single)
            assert value == pytest.approx(expected, rel=1e-5), loss
    for item, count in items.items():
        assert count == sum(counts(made, batch)[item] for batch in single), item
    halves = [prepared(made, everything[:3]), prepared(made, everything[3:][::-1])]
    for loss in set(found) - {"span_contrast"}:
        assert found[loss] == pytest.approx(sum(losses(made, h)[loss] for h in halves), rel=1e-5)


@every_recipe
def test_the_same_call_gives_the_same_result_and_another_epoch_another(
    name: str, make: Callable[[str], Made]
) -> None:
    made = make(name)
    rows = [0, 1, 4, 6]
    once, again = prepared(made, rows), prepared(made, rows)
    assert set(once) == set(again)
    for field in once:
        torch.testing.assert_close(once[field], again[field], rtol=0, atol=0, equal_nan=True)
    assert losses(made, once) == losses(made, again)
    other = prepared(made, rows, epoch=1)
    assert losses(made, other) != losses(made, once)


@every_recipe
def test_both_sides_see_one_text_outside_what_is_hidden(
    name: str, make: Callable[[str], Made]
) -> None:
    made = make(name)
    batch = prepared(made, list(range(len(TEXTS))))
    ids = batch["input_ids"]
    special = made[0].vocabulary.is_special(ids)
    for hidden, labels in [("encoder_ids", "labels"), ("decoder_ids", "decoder_labels")]:
        if hidden in batch:
            told = batch[labels] != IGNORED
            assert torch.equal(batch[hidden][~told], ids[~told])
            assert torch.equal(batch[labels][told], ids[told])
            assert not (told & special).any()
            assert torch.equal(batch[hidden][special], ids[special])
            assert told.any()
    if name == "autoregressive":
        following = batch["decoder_labels"][:, :-1]
        assert torch.equal(following[following != IGNORED], ids[:, 1:][following != IGNORED])
    elif "decoder_labels" in batch:
        assert not (special & (batch["decoder_labels"] != IGNORED)).any()


@every_recipe
def test_texts_without_tokens_contribute_nothing(name: str, make: Callable[[str], Made]) -> None:
    made = make(name)
    batch = prepared(made, EMPTY)
    found, items = losses(made, batch), counts(made, batch)
    for loss, value in found.items():
        assert torch.tensor(value).isfinite(), loss
        if (name, loss) == ("autoregressive", "reconstruction"):
            assert items[loss] == len(EMPTY), "that the text ends is all there is to tell"
        elif loss not in ("span_contrast", "view/one_span"):
            assert value == 0.0, loss
            assert items[loss.split("/")[0]] == 0


@every_recipe
def test_every_weight_that_is_trained_has_a_finite_gradient(
    name: str, make: Callable[[str], Made]
) -> None:
    task, _ = made = make(name)
    for rows in ([0, 1, 2, 3, 6], EMPTY):
        task.zero_grad()
        sums = task(prepared(made, rows))
        torch.autograd.backward([sums[loss] for loss in task.weights(0.0)])
        for parameter_name, parameter in task.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, parameter_name
                assert parameter.grad.isfinite().all(), parameter_name


@every_recipe
def test_room_for_more_labels_than_there_are_changes_nothing(
    name: str, make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(name)
    rows = list(range(len(TEXTS)))
    seen = []
    for more in (None, 0, 9):
        if more is not None:
            monkeypatch.setattr("isthmus.pretraining.step.SYNCHRONOUS", frozenset())
            monkeypatch.setattr(
                "isthmus.pretraining.step.places_of",
                lambda chosen, most, more=more: places_of(chosen, most + more),
            )
        batch = prepared(made, rows)
        places = [batch[field] for field in PLACES.values() if field in batch]
        assert places
        assert all(int((found < 0).sum()) >= (more or 0) for found in places)
        seen.append(everything_of(made, batch))
    for other in seen[1:]:
        torch.testing.assert_close(seen[0], other, rtol=1e-9, atol=1e-9)


@every_recipe
@pytest.mark.parametrize("own", [False, True], ids=["transformers", "own layers"])
def test_fillers_change_nothing(
    name: str, own: bool, make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places of padding that are computed with the tokens, so that batches have few shapes."""
    for module in ("backbone", "layers"):
        monkeypatch.setattr(f"isthmus.nn.{module}.has_kernels", lambda states: own)
    monkeypatch.setattr("isthmus.nn.packing.GRANULES", 4)
    monkeypatch.setattr("isthmus.nn.packing.LEAST_PADDING", {"cpu": 0.0})
    _, examples = made = make(name)
    seen, fields = [], []
    for steady in (False, True):
        monkeypatch.setattr(examples, "steady", steady)
        batch = prepared(made, list(range(len(TEXTS))))
        fields.append({field: len(batch[field]) for field in ("tokens", "regular", "word_sizes")})
        seen.append(everything_of(made, batch))
    assert all(fields[0][field] < fields[1][field] for field in fields[0])
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-6, atol=1e-6)


def one_step(task: PretrainTask, batch: Batch) -> None:
    """All that a training step asks of a task."""
    task.zero_grad()
    with torch.no_grad():
        batch = task.prepare(batch)
    items = task.counts(batch)
    sums = task(batch)
    torch.autograd.backward([sums[loss] / items[loss].clamp(min=1) for loss in task.weights(0.0)])


@every_recipe
def test_no_step_asks_its_device(
    name: str, make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that has no numbers to answer with."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    task, examples = make(name)
    batch = examples.collate([examples[0, row] for row in range(len(TEXTS))])
    with pytest.raises((NotImplementedError, RuntimeError), match=r"meta|Meta"):
        batch["keys"].to("meta").nonzero()
    there = {field: value.to("meta") for field, value in batch.items()}
    one_step(copy.deepcopy(task).to("meta"), there)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@every_recipe
def test_no_step_waits_for_a_gpu(name: str, make: Callable[[str], Made]) -> None:
    task, examples = make(name)
    task = copy.deepcopy(task).float().cuda()
    batch = examples.collate([examples[0, row] for row in range(len(TEXTS))])
    there = {field: value.cuda() for field, value in batch.items()}
    with torch.autocast("cuda", torch.bfloat16):
        one_step(task, there)  # what is made once: kernels, handles, the generator's place
        torch.cuda.set_sync_debug_mode("error")
        try:
            one_step(task, there)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@every_recipe
def test_a_captured_pass_gives_what_it_gave_before(name: str, make: Callable[[str], Made]) -> None:
    task, examples = make(name)
    task = copy.deepcopy(task).float().cuda()
    examples = copy.copy(examples)
    examples.steady = True
    batches = []
    for epoch in range(4):
        batch = examples.collate([examples[epoch, row] for row in range(len(TEXTS))])
        batches.append({field: value.cuda() for field, value in batch.items()})

    def run(batch: Batch) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            batch = task.prepare(batch)
        with torch.autocast("cuda", torch.bfloat16):
            sums = task(batch)
        torch.autograd.backward([sums[loss] for loss in task.weights(0.0)])
        return {loss: value.detach() for loss, value in sums.items()}

    def called(function: Callable[[Batch], Any]) -> list[Any]:
        found = []
        for batch in batches * 3:
            task.zero_grad()
            results = {loss: value.clone() for loss, value in function(batch).items()}
            slopes = {n: p.grad.clone() for n, p in task.named_parameters() if p.grad is not None}
            found.append((results, slopes))
        return found

    graphs = Graphs(run, list(task.parameters()))
    expected, found = called(run), called(graphs)
    assert graphs.captured
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
