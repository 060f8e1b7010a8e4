"""Queries drawn from documents, and the collection that they make: training without labels."""

from __future__ import annotations

import heapq
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xxhash
from pydantic import Field

from isthmus.collections import Collection, Corpus
from isthmus.config import Settings
from isthmus.config.model_files import load_pretrained
from isthmus.config.models import model_folder
from isthmus.config.output import whole_file
from isthmus.errors import InputError, SettingsError
from isthmus.finetuning.registries import PSEUDO_QUERIES, pseudo_queries
from isthmus.finetuning.settings import PseudoQuerySettings
from isthmus.indexes.documents import blocks
from isthmus.nn.loading import read_config
from isthmus.progress import track
from isthmus.records import Document, Passage, Query
from isthmus.text.passages import BETWEEN
from isthmus.text.sentences import sentence_starts, word_count

_BLOCK = 1024  # documents


@dataclass(frozen=True, slots=True)
class PseudoQuery:
    """A text that stands for a query of its document, and the part of the document it was."""

    text: str
    cut: str = ""  # left out of the document where the pair is trained on; empty: nothing


class SourceSettings(Settings):
    """How many of the pseudo-queries come from a source."""

    share: float = Field(1.0, gt=0, description="relative to the shares of the other sources")


class PseudoQuerySource(ABC):
    """A way to draw queries from a document; a subclass names the settings it takes."""

    Settings: ClassVar[type[SourceSettings]] = SourceSettings

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Up to `count` different queries; fewer, or none, where the document has no more."""

    def draw_all(
        self, documents: Sequence[Document], count: int, randoms: Sequence[np.random.Generator]
    ) -> list[list[PseudoQuery]]:
        """`draw` for every document; a source that works on batches overrides it."""
        return [
            self.draw(document, count, random)
            for document, random in zip(documents, randoms, strict=True)
        ]


def sources(chosen: Mapping[str, Any]) -> dict[str, PseudoQuerySource]:
    """The sources that settings name, by name; null leaves out one that a recipe had chosen."""
    found, under = {}, "pseudo_queries.sources"
    for name, source, values in PSEUDO_QUERIES.chosen(chosen, under, "share"):
        settings = source.Settings.parse(values, where="pseudo_queries", under=f"{under}.{name}")
        found[name] = source(settings)
    if not found:
        raise SettingsError(
            "pseudo_queries.sources: no source is left",
            "--set pseudo_queries.sources.sentence.share=1",
            ", ".join(PSEUDO_QUERIES.names()),
        )
    return found


def drawn(
    documents: Iterable[Document], chosen: Mapping[str, PseudoQuerySource], count: int, seed: int
) -> Iterator[tuple[str, list[PseudoQuery]]]:
    """By document id, `count` pseudo-queries drawn from the sources in their shares.

    A source that gives too few leaves its part to the others. What is drawn depends on the seed,
    the document's id and its text, not on its place in the corpus.
    """
    shares = np.array([source.settings.share for source in chosen.values()], dtype=float)
    for block in blocks(documents, _BLOCK):
        keys = [f"{document.id}\n{document.text}".encode() for document in block]
        randoms = [np.random.default_rng([seed, xxhash.xxh3_64_intdigest(key)]) for key in keys]
        offered = [source.draw_all(block, count, randoms) for source in chosen.values()]
        for document, random, *queries in zip(block, randoms, *offered, strict=True):
            yield document.id, _mixed(queries, shares, count, random)


def _mixed(
    offered: list[list[PseudoQuery]],
    shares: np.typing.NDArray[np.float64],
    count: int,
    random: np.random.Generator,
) -> list[PseudoQuery]:
    taken: dict[str, PseudoQuery] = {}
    queues = [list(queries) for queries in offered]
    while len(taken) < count and any(queues):
        weights = shares * [bool(queue) for queue in queues]
        query = queues[random.choice(len(queues), p=weights / weights.sum())].pop(0)
        taken.setdefault(query.text, query)
    return list(taken.values())


@pseudo_queries("title")
class Title(PseudoQuerySource):
    """The title of the document, which is left out of it.

    Titles are the closest thing to a query that most documents have.
    """

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """The title, or nothing where the document has none or nothing besides.

        The first passage of a document gives its title, each later one its heading.
        """
        title = document.title.strip()
        if isinstance(document, Passage) and document.number > 1:
            title = document.heading.rpartition(BETWEEN)[2]
        if not title or not document.text.strip() or not count:
            return []
        return [PseudoQuery(title, title)]


_FEWEST = 2  # sentences: one alone leaves no document


class SentenceSettings(SourceSettings):
    """Which sentences are drawn, and how many stay in their document."""

    left_in: float = Field(0.1, ge=0, le=1, description="share of sentences that are not left out")
    min_words: int = Field(4, ge=1, description="shorter sentences are not drawn")


@pseudo_queries("sentence")
class Sentence(PseudoQuerySource):
    """A sentence of the document, which is left out of it except for one in ten.

    Sentences by rule; a document of a single one has none to give.
    """

    Settings = SentenceSettings
    settings: SentenceSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Different sentences of enough words, in random order."""
        starts = sentence_starts(document.text)
        if len(starts) < _FEWEST:
            return []
        parts = [
            document.text[start:end].strip()
            for start, end in zip(starts, [*starts[1:], len(document.text)], strict=True)
        ]
        long = [part for part in parts if word_count(part) >= self.settings.min_words]
        chosen = [long[number] for number in random.permutation(len(long))[:count]]
        kept = random.random(len(chosen)) < self.settings.left_in
        return [
            PseudoQuery(text, "" if stays else text)
            for text, stays in zip(chosen, kept, strict=True)
        ]


class CropSettings(SourceSettings):
    """How long a stretch is."""

    min_words: int = Field(4, ge=1, description="of a stretch")
    max_words: int = Field(16, ge=1, description="of a stretch")
    left_in: float = Field(1.0, ge=0, le=1, description="share of stretches that are not left out")


@pseudo_queries("crop")
class Crop(PseudoQuerySource):
    """A random stretch of the document's words, left in it (as Contriever does) or out of it."""

    Settings = CropSettings
    settings: CropSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Stretches of random place and length; none of a document shorter than the shortest."""
        words = document.text.split()
        if len(words) <= self.settings.min_words:
            return []
        found = []
        for _ in range(count):
            longest = max(self.settings.min_words, min(self.settings.max_words, len(words) - 1))
            length = int(random.integers(self.settings.min_words, longest + 1))
            start = int(random.integers(0, len(words) - length + 1))
            text = " ".join(words[start : start + length])
            stays = random.random() < self.settings.left_in
            found.append(PseudoQuery(text, "" if stays else text))
        return found


class GeneratorSettings(SourceSettings):
    """Which model writes, from which prompt, and how freely."""

    model: str = Field(description="a folder or hub name, for example of doc2query or an LLM")
    prompt: str = Field("{text}", description="{title} and {text} stand for the document's own")
    max_length: int = Field(384, ge=16, description="tokens of the prompt; longer ones are cut")
    max_new_tokens: int = Field(32, ge=1, description="of a query")
    top_p: float = Field(0.95, gt=0, le=1, description="tokens are sampled from this share")
    batch_size: int = Field(16, ge=1, description="documents at once")


@pseudo_queries("generator")
class Generator(PseudoQuerySource):
    """Queries written by a language model: any seq2seq or causal model of transformers.

    Sampled queries; the first line of what the model writes counts.
    """

    Settings = GeneratorSettings
    settings: GeneratorSettings

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

        name = model_folder(self.settings.model, "pseudo_queries.generator.model")
        both_sides = read_config(name).is_encoder_decoder
        kind = AutoModelForSeq2SeqLM if both_sides else AutoModelForCausalLM
        model = load_pretrained(kind, name, use_safetensors=True)
        tokenizer = load_pretrained(AutoTokenizer, name, part="tokenizer", padding_side="left")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Different queries that the model writes for the document."""
        return self.draw_all([document], count, [random])[0]

    def draw_all(
        self, documents: Sequence[Document], count: int, randoms: Sequence[np.random.Generator]
    ) -> list[list[PseudoQuery]]:
        """Queries of every document, written for batches of documents at once."""
        found = []
        for start in range(0, len(documents), self.settings.batch_size):
            some = documents[start : start + self.settings.batch_size]
            seed = int(randoms[start].integers(2**63))
            found += [
                [PseudoQuery(text) for text in dict.fromkeys(texts) if text]
                for texts in self._written(some, count, seed)
            ]
        return found

    def _written(self, documents: Sequence[Document], count: int, seed: int) -> list[list[str]]:
        model, tokenizer = self._loaded
        chosen = self.settings
        prompts = [
            chosen.prompt.replace("{title}", document.title).replace("{text}", document.text)
            for document in documents
        ]
        given = tokenizer(
            prompts,
            truncation=True,
            max_length=chosen.max_length,
            padding=True,
            return_tensors="pt",
        ).to(model.device)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            tokens = model.generate(
                input_ids=given["input_ids"],
                attention_mask=given["attention_mask"],
                do_sample=True,
                top_p=chosen.top_p,
                max_new_tokens=chosen.max_new_tokens,
                num_return_sequences=count,
                pad_token_id=tokenizer.pad_token_id,
            )
        if not model.config.is_encoder_decoder:
            tokens = tokens[:, given["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        lines = [text.strip().partition("\n")[0].strip() for text in texts]
        return [lines[place : place + count] for place in range(0, len(lines), count)]


TRAIN, HELD_OUT = "train", "dev"
_MOST = 8  # queries of a document, where their number is not set
_LEAST = 32  # queries: fewer are no batch to learn from
_HASHES = 2**64


class _Drawn(NamedTuple):
    query: str
    document: str
    cut: str
    held_out: bool


@dataclass(eq=False)
class PseudoCollection(Collection):
    """The documents of a corpus, with queries of two splits: train, and dev of held-out ones."""

    corpus: Corpus
    again: Corpus  # once more, to draw from: problems are reported once
    settings: PseudoQuerySettings
    wanted: int  # queries that training takes at most
    seed: int
    file: Path | None = None  # where queries are kept and read from again; None: drawn anew

    def documents(self) -> Iterator[Document]:
        """Every document of the corpus."""
        return self.corpus.documents()

    def fingerprint(self) -> str:
        """A digest of the documents, from which queries follow by settings and seed."""
        return self.corpus.fingerprint()

    def count(self) -> int | None:
        """The number of documents where that is known without reading them."""
        return self.corpus.count()

    def splits(self) -> list[str]:
        """Queries to train on, and those of documents that are held out."""
        return [TRAIN, HELD_OUT]

    def queries(self) -> Iterator[Query]:
        """Every query; its id is its number."""
        return (Query(str(number), one.query) for number, one in enumerate(self._drawn))

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Each query's own document, relevant."""
        return {
            str(number): {one.document: 1}
            for number, one in enumerate(self._drawn)
            if one.held_out == (split == HELD_OUT)
        }

    def cuts(self) -> dict[str, str]:
        """By query id, the part of its document that is left out where the pair is trained on."""
        return {str(number): one.cut for number, one in enumerate(self._drawn) if one.cut}

    @cached_property
    def _drawn(self) -> list[_Drawn]:
        if self.file is not None and self.file.is_file():
            with suppress(ValueError, TypeError):  # damaged: drawn again, the same
                lines = self.file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
                return [_Drawn(**json.loads(line)) for line in lines]
        found = self._draw()
        if self.file is not None:
            with whole_file(self.file) as stream:
                for one in found:
                    stream.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
        return found

    def _draw(self) -> list[_Drawn]:
        chosen = sources(self.settings.sources)
        ids = [document.id for document in self.again.documents()]
        held_out = held_out_documents(ids, self.settings.held_out)
        count = self.settings.per_document
        limit = float(_HASHES)
        if count is None:
            count = min(_MOST, -(-self.wanted // len(ids)))
            # Of a large corpus, about as many documents as training takes, chosen by their ids.
            limit *= self.wanted / (count * len(ids))
        taken = (
            document
            for document in track(self.again.documents(), "draw queries", len(ids), "documents")
            if document.id in held_out or _hash(document.id, "taken") <= limit
        )
        found = [
            _Drawn(query.text, document, query.cut, document in held_out)
            for document, queries in drawn(taken, chosen, count, self.seed)
            for query in (queries[:1] if document in held_out else queries)
        ]
        if (trained := sum(not one.held_out for one in found)) < _LEAST:
            raise InputError(
                f"pseudo_queries: {trained} queries can be drawn from {len(ids):,} documents, and "
                f"{_LEAST} are needed",
                "give more or longer documents, or add crops as a source of pseudo-queries: a "
                "document of one sentence without a title gives no others",
            )
        return found


def held_out_documents(ids: Iterable[str], wanted: int) -> frozenset[str]:
    """`wanted` of the ids, at most a tenth and at least two, by hashes: the same in every run."""
    known = list(ids)
    count = min(wanted, max(2, len(known) // 10))
    return frozenset(heapq.nsmallest(count, known, key=lambda one: _hash(one, "held out")))


def _hash(document: str, purpose: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{purpose}\n{document}".encode())
