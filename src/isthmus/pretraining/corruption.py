"""Corruptions: which tokens are hidden, and what stands in their place."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache, reduce
from math import isqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as functional
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.config import Settings
from isthmus.config.models import model_fingerprint, model_folder
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import draw_together, normal, uniform
from isthmus.pretraining.parts import Column, Most, Part
from isthmus.pretraining.registries import corruption
from isthmus.pretraining.step import IGNORED, Step, Vocabulary, at_places, is_synchronous, places_of
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_TOKEN_BITS = 39


class MaskingSettings(Settings):
    """How much is hidden, and what replaces it."""

    rate: float = Field(0.30, gt=0, lt=1, description="share of non-special tokens chosen")
    mask_share: float = Field(0.8, ge=0, le=1, description="of the chosen, replaced by the mask")
    random_share: float = Field(0.1, ge=0, le=1, description="of the chosen, by a random token")

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share together exceed 1")
        return self


def budget(maskable: Tensor, rate: float) -> Tensor:
    """round(rate · n) of each row's n maskable tokens, at least 1, as float64.

    In float32 it would be another number: 0.3 · 95 is 28.5 and rounds to 28, but there it is a
    little more, hence 29.
    """
    available = maskable.sum(1, dtype=torch.float64)
    return torch.minimum((available * rate).round_().clamp_(min=1), available)


def choose_uniformly(maskable: Tensor, drawn: Tensor, amount: Tensor) -> Tensor:
    """True at `amount` of each row's maskable positions, every set equally likely."""
    order = torch.where(maskable, drawn, torch.iinfo(torch.int64).max)
    return choose_smallest(order, amount)


def choose_smallest(values: Tensor, amount: Tensor) -> Tensor:
    """True at the `amount` smallest values of each row; equal ones from the left."""
    order = values.argsort(dim=1, stable=True)
    first = torch.arange(values.shape[1], device=values.device) < amount[:, None]
    return torch.empty_like(first).scatter_(1, order, first)


def replace(
    ids: Tensor, chosen: Tensor, drawn: Tensor, vocabulary: Vocabulary, settings: MaskingSettings
) -> Tensor:
    """Hides the chosen tokens: mask, random non-special token, or left as they are."""
    # One number answers both questions: its first bits which of the three, the others which token.
    index = (drawn & ((1 << _TOKEN_BITS) - 1)).remainder_(len(vocabulary.regular))
    hidden = vocabulary.regular[index]
    hidden.masked_fill_(drawn <= _last_below(settings.mask_share), vocabulary.mask_id)
    touched = chosen & (drawn <= _last_below(settings.mask_share + settings.random_share))
    return torch.where(touched, hidden, ids)


def _last_below(share: float) -> int:
    """The largest draw whose first 24 bits, as a number in [0, 1), are below the share in float32.

    Integers are compared as they are; making floats of them would take three operations more.
    """
    return (math.ceil(float(np.float32(share)) * 2**24) << _TOKEN_BITS) - 1


Side = Literal["encoder", "decoder"]
_ACTION_STREAM = 4
_MORE = 1  # numbers of a row that are drawn beside one for every token


class Corruption(Part, ABC):
    """Which tokens are hidden. Runs on the training device, on whole batches.

    The decoder's side draws from streams of its own, so both sides are independent unless a
    corruption says otherwise.
    """

    Settings = MaskingSettings
    requires = frozenset({"input_ids", "words", "keys"})
    provides = frozenset({"encoder_ids", "labels"})
    decoder_provides: ClassVar[frozenset[str]] = frozenset({"decoder_ids", "decoder_labels"})
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    streams: ClassVar[tuple[int, ...]] = ()  # of random numbers, beside that of `hide`

    def __init__(self, settings: Any, side: Side = "encoder") -> None:
        super().__init__(settings)
        self.side = side
        if side == "decoder":
            self.provides = self.decoder_provides

    def beside(self, encoder: Corruption | None) -> None:
        """Adapts to the encoder's corruption, or raises; None: this is it, or there is none."""

    def setting(self, name: str) -> str:
        """One of its settings as a recipe names it."""
        return f"{'corruption' if self.side == 'encoder' else 'decoder_corruption'}.{name}"

    def stream(self, number: int) -> int:
        """The stream of random numbers for a use, on this side."""
        return number if self.side == "encoder" else number + 16

    def draw(self, step: Step) -> Step:
        """The step with all numbers that this side draws: 63-bit integers [rows, length + 1].

        Drawn at once: on a GPU the launches cost more than the numbers.
        """
        numbers = (*self.streams, _ACTION_STREAM)
        streams = [self.stream(number) for number in numbers]
        drawn = draw_together(step["keys"], streams, step["input_ids"].shape[1] + _MORE)
        return step | {f"drawn/{n}": values for n, values in zip(numbers, drawn, strict=True)}

    @abstractmethod
    def choose(self, step: Step) -> Tensor:
        """True at the tokens to hide."""

    def hide(self, step: Step, chosen: Tensor) -> Tensor:
        """The ids with the chosen tokens hidden."""
        drawn = step.drawn(_ACTION_STREAM)
        return replace(step["input_ids"], chosen, drawn, step.vocabulary, self.settings)

    def labels(self, step: Step, chosen: Tensor) -> Tensor:
        """The token where one must be predicted, -100 elsewhere."""
        return torch.where(chosen, step["input_ids"], IGNORED)

    def prepare(self, step: Step) -> Batch:
        """Ids and labels, under the names of this side."""
        step = self.draw(step)
        chosen = self.choose(step)
        made = self.hide(step, chosen), self.labels(step, chosen)
        names = ("encoder_ids", "labels"), ("decoder_ids", "decoder_labels")
        return dict(zip(names[self.side == "decoder"], made, strict=True))


CHOICE_STREAM = 2


@corruption("uniform")
class Uniform(Corruption):
    """Masks single tokens drawn uniformly, then 80/10/10.

    Exactly round(rate · n) of a text's n non-special tokens, each set equally likely.
    """

    streams: ClassVar[tuple[int, ...]] = (CHOICE_STREAM,)
    most: Most | None = "budget"

    def choose(self, step: Step) -> Tensor:
        """True at the tokens to hide."""
        maskable = ~step.special()
        amount = budget(maskable, self.settings.rate)
        return choose_uniformly(maskable, step.drawn(CHOICE_STREAM), amount)


_WORD_STREAM = 3


@corruption("whole_word")
class WholeWord(Corruption):
    """Masks whole words, found with the tokenizer's word_ids, within the same budget.

    Words in random order, skipping any that would exceed round(rate · n) tokens.

    All pieces of a word are chosen or none. Where every word is longer than the budget, nothing
    is masked and the text has no label.
    """

    streams = (_WORD_STREAM,)
    most = "budget"  # fewer where no word fits

    def choose(self, step: Step) -> Tensor:
        """True at every token of the words to hide."""
        special = step.special()
        maskable = ~special
        # Column 0 collects what belongs to no word.
        columns = (step["words"] + 1).masked_fill_(special, 0)
        rows, length = columns.shape
        sizes = torch.zeros(rows, length + 1, dtype=torch.int64, device=columns.device)
        sizes.scatter_add_(1, columns, columns.sign())
        order = step[f"drawn/{_WORD_STREAM}"].argsort(dim=1)
        if (known := step.get("word_sizes")) is not None:
            different = len(known)
        else:  # m different sizes need m (m + 1) / 2 tokens
            different = (isqrt(8 * length + 1) - 1) // 2
        left = budget(maskable, self.settings.rate).long()
        taken = _fill(sizes.gather(1, order), left, different)
        taken = torch.empty_like(taken).scatter_(1, order, taken)
        taken[:, 0].zero_()
        return taken.gather(1, columns)


def _fill(sizes: Tensor, left: Tensor, different: int) -> Tensor:
    """True at the items that go into a bag of `left` when taken in order, skipping what is too big.

    A round adds up all items that may still be in. Where the sum first exceeds the bag, everything
    before is in for good, and of the rest all that is bigger than what is left is out for good:
    that item, and with it its size. So there are at most as many rounds as different sizes. An item
    of no size is in.
    """
    # The sum begins so high that beyond the bag it is beyond the largest integer, hence negative:
    # the largest until then is that of what is in. Few operations are few launches on a GPU.
    largest = torch.iinfo(torch.int64).max
    summed = torch.cat(((largest - left)[:, None], sizes), 1)
    items, fitting = summed[:, 1:], largest - sizes
    sums = summed.cumsum(1)
    for _ in range(different - 1):
        # Asking a GPU would mean waiting for it; rounds that change nothing cost less.
        if is_synchronous(sums) and (sums[:, -1] >= 0).all():
            break
        items *= sums.cummax(1).values[:, :-1] <= fitting
        sums = summed.cumsum(1)
    return sums.cummax(1).values[:, :-1] <= fitting


_NOISE_STREAM = 6


class ImportanceSettings(MaskingSettings):
    """How much chance there is in the choice, and which n-grams count."""

    rate: float = Field(0.50, gt=0, lt=1, description="share of non-special tokens chosen")
    sigma: float = Field(1.0, ge=0, description="of the noise on every token's importance")
    minimum_count: int = Field(1, ge=1, description="rarer n-grams count as unrelated words")


@corruption("importance")
class Importance(Corruption):
    """Masks what is tied to its neighbours: PMI-guided masking (CDMAE), on n-gram statistics.

    The floor(rate · n) tokens with the largest t_i ~ Normal(AMI(i), sigma).

    AMI(i) is the mean PMI of the n-grams (n = 2, 3, 4) that end in token i plus the mean PMI of
    those that begin in it, over the n-grams inside the text.
    """

    Settings = ImportanceSettings
    settings: ImportanceSettings
    streams = (_NOISE_STREAM,)
    most = "budget"  # which rounds where this takes the floor

    def beside(self, encoder: Corruption | None) -> None:
        """Refuses another threshold than the encoder's side has: a corpus has one column of PMI."""
        own = self.settings.minimum_count
        if isinstance(encoder, Importance) and own != (other := encoder.settings.minimum_count):
            name = self.setting("minimum_count")
            raise SettingsError(
                f"{name} = {own}, and corruption.minimum_count = {other}: both sides share one "
                "measure of importance",
                f"--set {name}={other}",
            )

    def columns(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> Mapping[str, Column]:
        """The PMI of the n-grams that begin at each token."""
        return {"pmi": pmi_column(corpus, tokenizer, self.settings.minimum_count)}

    def choose(self, step: Step) -> Tensor:
        """True at the tokens to hide."""
        special = step.special()
        maskable = ~special
        scores = importance(step["pmi"], maskable)
        if self.settings.sigma:
            scores += normal(step.drawn(_NOISE_STREAM)).mul_(self.settings.sigma)
        available = maskable.sum(1, dtype=torch.float64)
        # 0.29 · 100 is 28.999999999999996 in binary; a hair more keeps the floor the decimal one.
        wanted = (available * self.settings.rate).add_(1e-9).floor_()
        wanted.clamp_(min=1)
        ordered = scores.neg_().masked_fill_(special, torch.inf)
        return choose_smallest(ordered, torch.minimum(wanted, available))


def importance(pmi: Tensor, inside: Tensor) -> Tensor:
    """AMI of every token [rows, length]; `pmi[r, i, j]` is that of the (j+2)-gram beginning at i.

    NaN, or an end beyond the text, means that there is no such n-gram.
    """
    (rows, length), orders = inside.shape, pmi.shape[2]
    ends = functional.pad(inside, (0, orders)).unfold(1, orders, 1)[:, 1:]
    exists = ends & (pmi == pmi)  # NaN alone is not itself
    # Values and their counts, after as many empty places as the longest n-gram reaches.
    both = pmi.new_zeros(2, rows, orders + length, orders)
    values, counts = both[:, :, orders:]
    torch.where(exists, pmi, values, out=values)
    counts.copy_(exists)
    # What ends in a token began `order + 1` places before what begins in it: of one n, the two are
    # windows into the same numbers. All n are few additions, and on a GPU few launches.
    windows = (
        both[:, :, orders - 1 - order :, order].unfold(2, length, order + 1)
        for order in range(orders)
    )
    sums, amounts = reduce(torch.add, windows)
    ended, begun = (sums / amounts.clamp_(min=1)).unbind(1)
    total: Tensor = begun + ended
    return total


class NestedSettings(MaskingSettings):
    """The decoder's rate in all, what it takes over from the encoder included."""

    rate: float = Field(0.50, gt=0, lt=1, description="share of non-special tokens hidden in all")


@corruption("nested")
class Nested(Corruption):
    """Masks what the encoder's side masked and more: the decoder sees nothing that it could not.

    LexMAE (ICLR 2023), section 3.3: the decoder's mask is the encoder's with an extra one on top.

    The encoder's k positions, and others until round(rate · n) of the n tokens are hidden.

    Of the n - k others that is a share of (rate - encoder's rate) / (1 - encoder's rate).
    """

    Settings = NestedSettings
    requires = Corruption.requires | {"encoder_ids", "labels"}
    sides = ("decoder",)
    streams = (CHOICE_STREAM,)

    def beside(self, encoder: Corruption | None) -> None:
        """Refuses an encoder's side that it cannot hold: a higher rate, or labels everywhere."""
        # The encoder's side, of a lower rate, keeps to its own budget.
        self.most = "budget" if encoder is not None and encoder.most else None
        if getattr(getattr(encoder, "settings", None), "labels", "chosen") == "all":
            raise SettingsError(
                "decoder_corruption: the encoder's side labels every token, so which of them it "
                "masks is unknown",
                "--set corruption.labels=chosen, or choose another decoder_corruption",
            )
        if encoder is not None and self.settings.rate < encoder.settings.rate:
            raise SettingsError(
                f"decoder_corruption.rate = {self.settings.rate} is below the encoder's "
                f"{encoder.settings.rate}, in which the mask is nested",
                f"--set decoder_corruption.rate={min(encoder.settings.rate + 0.2, 0.9)}",
            )

    def choose(self, step: Step) -> Tensor:
        """True at the encoder's positions and the additional ones."""
        maskable = ~step.special()
        hidden = (step["labels"] != IGNORED) & maskable
        wanted = (maskable.sum(1, dtype=torch.float64) * self.settings.rate).round_()
        # Never more than there are others; below 0, none.
        amount = wanted - hidden.sum(1)
        drawn = step.drawn(CHOICE_STREAM)
        return hidden | choose_uniformly(maskable ^ hidden, drawn, amount)

    def hide(self, step: Step, chosen: Tensor) -> Tensor:
        """The encoder's ids, and the additional tokens hidden in them."""
        more = chosen & (step["labels"] == IGNORED)
        return torch.where(more, super().hide(step, more), step["encoder_ids"])


SAMPLE_STREAM = 7


class GeneratorSettings(MaskingSettings):
    """Which model fills in, and which tokens must then be predicted."""

    mask_share: float = Field(1.0, ge=0, le=1, description="of the chosen, masked first")
    random_share: float = Field(0.0, ge=0, le=1, description="of the chosen, made random first")
    labels: Literal["all", "chosen"] = Field(
        "all", description="every token that is not special, or only those that were chosen"
    )
    generator: str | None = Field(
        None,
        description="a masked LM with this tokenizer, frozen; null: that of the encoder's side",
    )


@corruption("generator")
class Generator(Uniform):
    """Replaces masked tokens by samples of a frozen masked language model (SimLM, ACL 2023).

    Uniformly chosen tokens, masked, then sampled from the generator's softmax.

    Sampling follows the generator's own arithmetic, so another device may draw another token where
    two are almost equally likely.
    """

    Settings = GeneratorSettings
    streams = (CHOICE_STREAM, SAMPLE_STREAM)
    settings: GeneratorSettings

    def __init__(self, settings: GeneratorSettings, side: Side = "encoder") -> None:
        super().__init__(settings, side)
        self.most = "budget" if settings.labels == "chosen" else "tokens"

    def beside(self, encoder: Corruption | None) -> None:
        """Takes over the encoder side's generator where it has none of its own."""
        self.name = self.settings.generator
        if self.name is None and isinstance(encoder, Generator):
            self.name = encoder.name

    def data(self) -> Mapping[str, str]:
        """The generator's weights; refused where none is named."""
        where = self.setting("generator")
        if self.name is None:
            raise SettingsError(
                f"{where} is not set: nothing would fill the masked tokens",
                f"--set {where}=NAME of a masked language model with the same tokenizer, such as "
                "google/electra-base-generator",
            )
        return {where: model_fingerprint(model_folder(self.name, where)) or self.name}

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """Loads the generator; refuses one without a head or with other tokens."""
        assert self.name is not None, "the generator was not asked for its data"
        where = self.setting("generator")
        try:
            self.model, other = _load(model_folder(self.name, where))
        except InputError as error:
            error.at(where)
            error.fix = (
                f"check the name, or --set {where}=NAME of another masked language model "
                "with the same tokenizer, such as google/electra-base-generator or an earlier run"
            )
            raise
        if not self.model.has_head:
            raise MismatchError(
                f"{where}: the generator {self.name!r} has no masked-LM head",
                "choose a checkpoint with its head, such as an ELECTRA generator",
            )
        if other.backend.get_vocab() != tokenizer.backend.get_vocab():
            raise MismatchError(
                f"{where}: the generator {self.name!r} has another vocabulary than the model",
                "choose a generator made with the model's own tokenizer",
            )

    def labels(self, step: Step, chosen: Tensor) -> Tensor:
        """Every token that is not special, unless the settings say otherwise."""
        if self.settings.labels == "chosen":
            return super().labels(step, chosen)
        special = step.special()
        return torch.where(special, IGNORED, step["input_ids"])

    @torch.no_grad()
    def hide(self, step: Step, chosen: Tensor) -> Tensor:
        """The ids with samples in the chosen places."""
        masked = super().hide(step, chosen)
        device = masked.device
        self.model.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            states = self.model(masked, step["attention_mask"], step.get("tokens"))
            chances = uniform(step.drawn(SAMPLE_STREAM))
            places = places_of(chosen, step.budget(self.settings.rate))
            _, states, chances = at_places(places, masked, states, chances)
            # Special tokens are left out, and with them rows that pad either model's matrix.
            logits = self.model.head(states)[:, step.vocabulary.regular].float()
        # In the order of the places; what is drawn for no place comes last, and is left over.
        return masked.masked_scatter(chosen, step.vocabulary.regular[sample(logits, chances)])


def sample(logits: Tensor, chances: Tensor) -> Tensor:
    """The token of each row where the summed probability first exceeds the row's chance."""
    sums = logits.softmax(1).cumsum(1)
    # The last sum is 1 only up to rounding; scaled by it, no chance exceeds it.
    reached = torch.searchsorted(sums, (chances * sums[:, -1])[:, None], right=True)[:, 0]
    return reached.clamp(max=logits.shape[1] - 1)


@lru_cache(maxsize=1)
def _load(name: str) -> tuple[Backbone, Tokenizer]:
    # Both sides share one.
    model = Backbone.load(name, head="keep").eval()
    return model.requires_grad_(False), Tokenizer.load(name)
