"""What a stage reads: a collection, whole or in passages, and the queries of its splits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path

from isthmus.collections import Collection, Corpus, Problems, open_collection, open_corpus
from isthmus.config.models import model_folder, named_at
from isthmus.errors import InputError, SettingsError, choices
from isthmus.finetuning.candidates import PassageCorpus, TrainingCorpus, searched
from isthmus.finetuning.development import is_test
from isthmus.finetuning.kinds import Kind
from isthmus.finetuning.negatives import listed
from isthmus.finetuning.pairs import (
    LabelledQueries,
    drawn_queries,
    held_out_queries,
    labelled_queries,
    with_other_passages,
)
from isthmus.finetuning.pseudo_queries import PseudoCollection
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.indexes.index import Index
from isthmus.progress import track
from isthmus.records import Query
from isthmus.retrieval.index import BM25, IndexSettings
from isthmus.retrieval.passage_cutter import cutter_for
from isthmus.text.corpus import tokenise
from isthmus.text.passages import Cutter, PassageSettings
from isthmus.text.tokenizer import Tokenizer


def stage_cutter(settings: FinetuneSettings) -> Cutter:
    """What cuts documents into passages as long as the encoder to be trained reads."""
    chosen = settings.passages
    with named_at("model"):
        folder = model_folder(settings.model)
        tokenizer = Tokenizer.load(folder)
    kind: Kind = KINDS.load(settings.encoder)(settings.model_dump())
    cut = chosen if isinstance(chosen, PassageSettings) else PassageSettings()
    return cutter_for(cut, tokenizer, kind.settings_for(folder).room(tokenizer))


class PassageCollection(PassageCorpus, Collection):
    """The passages of a judged collection: of a relevant document, the one nearest to the query.

    That is the one of highest BM25 score, or the first if none shares a word with the query.
    """

    def __init__(self, collection: Collection, settings: FinetuneSettings) -> None:
        super().__init__(collection, partial(stage_cutter, settings))
        self.judged = collection
        self._settings = settings
        self._splits: dict[str, dict[str, dict[str, int]]] = {}

    def queries(self) -> Iterator[Query]:
        """Every query of every split."""
        return self.judged.queries()

    def splits(self) -> list[str]:
        """The names that `judgements` accepts."""
        return self.judged.splits()

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and passage id; ids that the corpus does not have stay."""
        if split not in self._splits:
            self._splits[split] = self._nearest(self.judged.judgements(split))
        return self._splits[split]

    def _nearest(self, judgements: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        settings = self._settings
        source = f"{self.fingerprint()} {settings.kept}"
        texts = {query.id: query.text for query in self.queries()}
        chosen = IndexSettings(titles=settings.titles, passages=False, **dict(settings.reading))
        again = open_corpus(settings.collection, chosen.account())  # problems are reported once
        corpus = PassageCorpus(again, lambda: self.cutter)
        folder = searched(corpus, source, f"nearest {settings.titles}", BM25, chosen)
        index = Index.open(folder)
        found: dict[str, dict[str, int]] = {}
        for query_id, judged in track(judgements.items(), "choose passages", len(judgements)):
            nearest = _best(index, texts.get(query_id), judged)
            found[query_id] = {nearest.get(one, one): grade for one, grade in judged.items()}
        return found


def _best(index: Index, query: str | None, documents: Iterable[str]) -> dict[str, str]:
    """The id of each document's passage of highest BM25 score, or of its first passage."""
    passages = {
        passage: document for document in documents for passage in _passages(index, document)
    }
    found = {document: passage for passage, document in reversed(passages.items())}
    if query is not None and passages and index.has_tokens(BM25, query):
        masks = index.masks_of(passages)
        (ranking,) = index.search(BM25, [query], len(passages), ["query"], masks)
        found |= {passages[one]: one for one in reversed(ranking.document_ids)}
    return found


def _passages(index: Index, document: str) -> Iterator[str]:
    """The ids of the passages of a document; none of one that the corpus does not have."""
    names = (f"{document}#{number}" for number in count(1))
    return takewhile(lambda one: index.row(one) is not None, names)


def in_passages(settings: FinetuneSettings, corpus: Corpus) -> bool:
    """Whether a stage is trained on passages; what ranks or scores whole documents is refused."""
    on = corpus.in_passages if settings.passages is None else settings.passages is not False
    named = [("negatives", one) for one in listed(settings.negatives)]
    for place, values in [*named, ("teacher", settings.teacher)]:
        if on and values and "file" in values:
            raise SettingsError(
                f"{place}.file is of whole documents, and training is on passages",
                "--set passages=false, or choose a source without a file",
            )
    return on


_PSEUDO_QUERIES_FILE = "pseudo_queries.jsonl"
_LEAST_DRAWN = 1024  # queries, however short training is
_UNKNOWN_STEPS = 1000  # queries are drawn for so many where epochs say how long training goes on


def stage_collection(
    settings: FinetuneSettings, problems: Problems, output: Path | None = None
) -> Collection:
    """The judged collection that a stage names, or its documents with queries drawn from them.

    `output` is the folder that keeps drawn queries, where there is one already.
    """
    if settings.pseudo_queries is None:
        judged = open_collection(settings.collection, problems)
        return PassageCollection(judged, settings) if in_passages(settings, judged) else judged
    training = settings.training
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    size = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    wanted = max(_LEAST_DRAWN, size * (training.max_steps or _UNKNOWN_STEPS))
    corpus = open_corpus(settings.collection, problems)
    again = open_corpus(settings.collection, Problems("skip", settings.line_limit))
    if in_passages(settings, corpus):
        corpus, again = (
            PassageCorpus(one, partial(stage_cutter, settings)) for one in (corpus, again)
        )
    file = None if output is None else output / _PSEUDO_QUERIES_FILE
    return PseudoCollection(corpus, again, settings.pseudo_queries, wanted, training.seed, file)


def cutter_of(collection: Collection) -> Cutter | None:
    """What cuts the documents of a collection; None where they are whole."""
    corpus = collection.corpus if isinstance(collection, PseudoCollection) else collection
    return corpus.cutter if isinstance(corpus, PassageCorpus) else None


def tokenised_corpus(
    collection: Collection,
    settings: FinetuneSettings,
    fingerprint: str,
    tokenizer: Tokenizer,
    prompt: str = "",
) -> TrainingCorpus:
    """The documents that a stage reads, in tokens; `fingerprint` is the collection's."""
    source = f"{fingerprint} {settings.kept}"
    return TrainingCorpus(
        settings.collection,
        collection,
        source,
        tokenise(collection.documents(), source, tokenizer.serialised, settings.titles, prompt),
        settings.titles,
        settings.reading,
        cutter_of(collection),
    )


def training_queries(
    collection: Collection, settings: FinetuneSettings, rows: Mapping[str, int], problems: Problems
) -> tuple[LabelledQueries, LabelledQueries | None]:
    """The queries that are trained on, and those of the split that are held out, if any are."""
    labelled = labelled_queries(collection, settings.split, rows, problems)
    if cutter_of(collection) is not None:
        labelled = with_other_passages(labelled, rows)
    if isinstance(collection, PseudoCollection):
        cuts = collection.cuts()
        labelled = replace(labelled, cuts=[cuts.get(query.id, "") for query in labelled.queries])
    held_out = None
    if settings.development is not None and settings.development.held_out is not None:
        labelled, held_out = held_out_queries(labelled, settings.development.held_out)
    return drawn_queries(labelled, settings.queries, settings.training.seed), held_out


def check_split(collection: Collection, settings: FinetuneSettings) -> None:
    """Raises on a split that the collection does not have; offers no split for testing instead."""
    splits = collection.splits()
    if settings.split in splits:
        return
    others = [split for split in splits if not is_test(split)]
    kept = ", ".join(split for split in splits if is_test(split))
    raise InputError(
        f"the collection {settings.collection} has no split {settings.split!r}"
        + (f"; it has only {kept}, to measure by" if kept and not others else ""),
        ("--set split=NAME, or " if others else "")
        + (
            f"write judgements to train on as qrels/{settings.split}.tsv, of other queries "
            "than those you measure by"
        ),
        choices(settings.split, others),
    )
