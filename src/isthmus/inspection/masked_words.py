"""How often the maskings of a pre-training recipe take the words of texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from isthmus.collections import open_corpus
from isthmus.errors import InputError, SettingsError
from isthmus.inspection.inspected import MaskedText, MaskedWord
from isthmus.pretraining.corruption.importance import Importance
from isthmus.pretraining.examples import PretrainExamples, check_texts
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Column
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.views.same import Same
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.ngrams import NgramCounts
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_AT_ONCE = 64  # draws


def masked_texts(
    tokenizer: Tokenizer, texts: Sequence[str], recipe: str, corpus: str | None, draws: int
) -> tuple[MaskedText, ...]:
    """How often each masking of a recipe takes each word of texts, drawn as in so many epochs.

    Where words are weighed by the n-grams around them, these are counted on `corpus`. No model is
    loaded.
    """
    settings = PretrainSettings.given(
        None, {"corpus": corpus or "-", "model": "-", "output": "-"}, recipe
    )
    parts = assemble(settings, to_train=False)
    with TemporaryDirectory(prefix="isthmus-") as place:
        documents = [Document(str(number), text) for number, text in enumerate(texts)]
        own = tokenise(documents, "texts", tokenizer.serialised, workers=1, cache=Path(place))
        for number, length in enumerate(own.lengths, start=1):
            if not length:
                raise no_tokens(number, texts[number - 1])
        columns = _columns(own, parts, corpus, settings, tokenizer)
        view, seed = Same(Same.Settings()), settings.training.seed
        examples = PretrainExamples(own, view, tokenizer, settings.max_length, seed, columns)
        return tuple(
            MaskedText(text, _words(examples, row, parts, tokenizer, draws), draws)
            for row, text in enumerate(texts)
        )


def no_tokens(number: int, text: str) -> InputError:
    """The refusal of a text that there is nothing to read in."""
    return InputError(
        f"TEXT {number} has no tokens: {text!r}", "give a text of some words, in quotes"
    )


def _columns(
    own: TokenisedCorpus,
    parts: Parts,
    corpus: str | None,
    settings: PretrainSettings,
    tokenizer: Tokenizer,
) -> dict[str, Column]:
    """The columns of the texts that the maskings read."""
    found: dict[str, Column] = {}
    for part in filter(None, (parts.corruption, parts.decoder_corruption)):
        if isinstance(part, Importance):
            counts = _counted(part, corpus, settings, tokenizer)
            found["pmi"] = pmi_column(own, counts, tokenizer, part.settings.minimum_count)
        else:
            found |= part.columns(own, tokenizer)
    return found


def _counted(
    part: Importance, corpus: str | None, settings: PretrainSettings, tokenizer: Tokenizer
) -> NgramCounts:
    if corpus is None:
        raise SettingsError(
            "the recipe weighs words by the n-grams of a corpus, and there is none",
            "--corpus CORPUS counts them",
        )
    source = open_corpus(corpus, settings.account())
    whole = tokenise(
        source.documents(),
        f"{source.fingerprint()} {settings.kept}",
        tokenizer.serialised,
        settings.titles,
    )
    check_texts(whole, corpus)
    return part.counts(whole, tokenizer)


def _words(
    examples: PretrainExamples, row: int, parts: Parts, tokenizer: Tokenizer, draws: int
) -> tuple[MaskedWord, ...]:
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    sums: dict[str, Tensor] = {}
    for start in range(0, draws, _AT_ONCE):
        epochs = range(start, min(start + _AT_ONCE, draws))
        batch = examples.collate([examples[epoch, row] for epoch in epochs])
        for name, chances in _masks(parts, batch, vocabulary).items():
            sums[name] = sums.get(name, torch.zeros(())) + chances.sum(0)
    if not sums:
        raise SettingsError(
            "the recipe masks nothing",
            "choose a recipe with a corruption, or with a decoder that hides tokens: isthmus list "
            "recipes",
        )
    ids = batch["input_ids"][0]
    inside = ~vocabulary.is_special(ids)
    numbers = batch["words"][0].tolist()
    words = (list(some) for _, some in groupby(range(len(numbers)), key=numbers.__getitem__))
    return tuple(
        MaskedWord(
            tokenizer.backend.decode(ids[word].tolist()).strip(),
            {name: float(total[word].mean()) / draws for name, total in sums.items()},
        )
        for word in words
        if numbers[word[0]] >= 0 and inside[word].any()
    )


def _masks(parts: Parts, batch: Batch, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """The chance of each token [texts, length], by the setting that masks it."""
    found: dict[str, Tensor] = {}
    known = dict(batch)
    if parts.corruption is not None:
        mask = parts.corruption.choose(known, vocabulary)
        known["labels"] = torch.where(mask, batch["input_ids"], IGNORED)
        found["corruption"] = mask.float()
    if parts.decoder_corruption is not None:
        found["decoder_corruption"] = parts.decoder_corruption.choose(known, vocabulary).float()
    decoder = parts.decoder
    if decoder is not None and (hidden := decoder.hides(batch, vocabulary)) is not None:
        # From so many of its rows; there is one for each token.
        rows = (~vocabulary.is_special(batch["input_ids"])).sum(1)
        found["decoder"] = hidden / rows[:, None]
    return found
