"""Importance of one text's words, and what it does to their chance of being hidden (CDMAE, fig. 3).

The importance of a token is its AMI: the mean PMI of the n-grams (n = 2, 3, 4) that end in it plus
that of those that begin in it. Importance-aware masking adds noise to it and hides the largest.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from isthmus.config import Overrides
from isthmus.config.models import model_folder
from isthmus.errors import InputError, visible
from isthmus.evaluation.tables import plain_text
from isthmus.inspection.masking import Hiding, Words, weighed
from isthmus.pretraining.corruption.importance import importance as token_importance
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Column
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.views.same import Same
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer

_BATCH = 256


@dataclass(frozen=True)
class WordImportance:
    """A word of the text: its mean AMI, and by masking the chance that a token of it is hidden."""

    word: str
    importance: float
    hidden: dict[str, float]


@dataclass(frozen=True)
class TextImportance:
    """The words of a text in their order."""

    words: tuple[WordImportance, ...]
    draws: int

    def __rich__(self) -> Table:
        names = list(self.words[0].hidden)
        caption = (
            "AMI: mean PMI of the n-grams that end in a word plus that of those that begin in it. "
            f"The other columns: how often of {self.draws:,} draws it is hidden."
        )
        table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
        table.add_column("word")
        for name in ("AMI", *names):
            table.add_column(name, justify="right")
        for one in self.words:
            shares = [f"{one.hidden[name]:.0%}" for name in names]
            table.add_row(Text(visible(one.word)), f"{one.importance:.2f}", *shares)
        return table

    def __repr__(self) -> str:
        return plain_text(self)

    __str__ = __repr__

    def to_json(self) -> str:
        """Every number."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)


def importance(
    text: str,
    corpus: str,
    model: str,
    recipe: str = "cdmae",
    *,
    draws: int = 2000,
    settings: PretrainSettings | Overrides = None,
) -> TextImportance:
    """How important each word of a text is by the n-grams of a corpus, and how often it is hidden.

    The maskings are those of the recipe, beside uniform masking at the same rates; chances are
    counted over so many draws. Only the tokenizer of `model` is loaded, and no model of a
    corruption. The text need not be of the corpus.
    """
    flags = {"corpus": corpus, "model": model, "output": "-"}
    chosen = PretrainSettings.given(settings, flags, recipe)
    parts = assemble(chosen, to_train=False)
    tokenizer = Tokenizer.load(model_folder(model))
    if not tokenizer.backend.encode(text, add_special_tokens=False).ids:
        raise InputError(
            "TEXT: the text has no tokens",
            "give one, in quotes",
        )
    tokenised, used = weighed(corpus, chosen, parts, tokenizer)
    counts = used.counts(tokenised, tokenizer)
    with TemporaryDirectory(prefix="isthmus-") as place:
        alone = tokenise([Document("text", text)], "text", tokenizer.serialised, cache=Path(place))
        columns: dict[str, Column] = {
            "pmi": pmi_column(alone, counts, tokenizer, used.settings.minimum_count)
        }
        seed = chosen.training.seed
        view = Same(Same.Settings())
        examples = PretrainExamples(alone, view, tokenizer, chosen.max_length, seed, columns)
        hiding = Hiding(chosen, parts, Vocabulary(tokenizer, len(tokenizer)))
        return TextImportance(
            _weighed(examples, hiding, Words(tokenizer, frozenset()), draws), draws
        )


def _weighed(
    examples: PretrainExamples, hiding: Hiding, words: Words, draws: int
) -> tuple[WordImportance, ...]:
    """The words of the only text, with masks drawn as in so many epochs."""
    hidden: dict[str, Tensor] = {}
    for start in range(0, draws, _BATCH):
        epochs = range(start, min(start + _BATCH, draws))
        batch = examples.collate([examples[epoch, 0] for epoch in epochs])
        inside = ~hiding.vocabulary.is_special(batch["input_ids"])
        for name, mask in hiding.of(batch).items():
            # A decoder that hides tokens from its own rows tells from how many.
            share = mask.float() if mask.dtype == torch.bool else mask / inside.sum(1)[:, None]
            hidden[name] = hidden.get(name, torch.zeros(())) + share.sum(0)
    scores = token_importance(batch["pmi"], inside)[0]
    return tuple(
        WordImportance(
            word,
            float(scores[places].mean()),
            {name: float(total[places].mean()) / draws for name, total in hidden.items()},
        )
        for word, _, places in words.of(batch["input_ids"][0].numpy(), batch["words"][0].numpy())
        if inside[0, places].any()
    )
