"""What the recipes are timed on: a model's folder, and texts in tokens, random or of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from isthmus.benchmarks.speed.settings import SpeedSettings
from isthmus.collections import Problems, open_corpus
from isthmus.config.models import model_folder
from isthmus.config.output import START
from isthmus.errors import InputError
from isthmus.nn.sizes import new_backbone, shape_of
from isthmus.pretraining.parts import Column
from isthmus.pretraining.recipe import Parts
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, TokenisedDocument, tokenise
from isthmus.text.new_tokenizer import new_tokenizer, numbered_tokenizer
from isthmus.text.tokenizer import Tokenizer

_TEXTS = 256  # random ones that differ; the tokens of a text change nothing about its time


def starting_model(settings: SpeedSettings, scratch: Path) -> str:
    """The folder or hub name that every contestant loads, as `isthmus pretrain` would."""
    if settings.model is not None:
        return model_folder(settings.model)
    size = settings.size(torch.cuda.is_available())
    shape_of(size)
    if settings.corpus is None:
        tokenizer = numbered_tokenizer(settings.vocabulary)
    else:
        texts = [document.contents() for document in _some_documents(settings)]
        tokenizer = new_tokenizer(texts, settings.vocabulary)
    # As many terms as the settings say, also where the texts have fewer words.
    backbone = new_backbone(size, settings.vocabulary, tokenizer.pad_id, seed=settings.seed)
    folder = scratch / START
    tokenizer.save(folder)
    backbone.save(folder)
    return str(folder)


def _some_documents(settings: SpeedSettings) -> Iterator[Document]:
    assert settings.corpus is not None
    # What is wrong with a line is no matter of speed.
    corpus = open_corpus(settings.corpus, Problems("skip"))
    return islice(corpus.documents(), settings.documents)


def corpus_of(
    settings: SpeedSettings, tokenizer: Tokenizer, length: int, scratch: Path
) -> TokenisedCorpus:
    """The first documents of the corpus; without one, random tokens that fill every text."""
    if settings.corpus is None:
        room = length - len(tokenizer.prefix) - len(tokenizer.suffix)
        return RandomCorpus(tokenizer, room, settings.seed)
    tokenised = tokenise(_some_documents(settings), "", tokenizer.serialised, cache=scratch)
    if not len(tokenised) or int(tokenised.lengths.max()) < 2:
        raise InputError(
            f"no document of the corpus is longer than one token ({len(tokenised):,} documents)",
            where=settings.corpus,
            allowed="texts, or no --corpus: random tokens",
            remedy="check that the corpus has a text field",
        )
    return tokenised


class RandomCorpus(TokenisedCorpus):
    """Documents of random tokens, in memory: each two whole texts, for views that show two."""

    def __init__(self, tokenizer: Tokenizer, room: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        drawn = generator.choice(tokenizer.regular_ids, (_TEXTS, 2 * room))
        self._tokens = drawn.astype(np.int32)
        self._words = np.arange(2 * room, dtype=np.int32)
        self._sentences = np.array([room], dtype=np.int32)
        self.lengths = np.full(_TEXTS, 2 * room, dtype=np.int32)

    def __len__(self) -> int:
        return _TEXTS

    def __getitem__(self, row: int) -> TokenisedDocument:
        return TokenisedDocument(str(row), self._tokens[row], self._words, self._sentences)


def columns_of(parts: Parts, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> Mapping[str, Column]:
    """The columns that the parts need of every token."""
    columns: dict[str, Column] = {}
    for part in parts:
        if isinstance(corpus, RandomCorpus):
            # Statistics of random tokens would only cost time: one text's values for every text.
            made = part.random_columns(int(corpus.lengths[0]))
            columns |= {name: [values] * len(corpus) for name, values in made.items()}
        else:
            columns |= part.columns(corpus, tokenizer)
    return columns
