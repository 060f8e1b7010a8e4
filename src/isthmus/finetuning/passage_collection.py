"""Long documents in training: collections whose documents are passages of those of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, takewhile

from isthmus.collections import Collection, Corpus, open_corpus
from isthmus.config.models import model_folder, named_at
from isthmus.errors import SettingsError
from isthmus.finetuning.kinds import Kind
from isthmus.finetuning.mining.candidates import PassageCorpus, searched
from isthmus.finetuning.negatives import listed
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.indexes.index import Index
from isthmus.progress import track
from isthmus.records import Query
from isthmus.retrieval.index import BM25, IndexSettings
from isthmus.retrieval.passage_cutter import cutter_for
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
