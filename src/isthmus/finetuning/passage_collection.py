"""Long documents in training: collections whose documents are passages of those of another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import xxhash

from isthmus.collections import Collection, Corpus
from isthmus.config.models import model_folder, named_at
from isthmus.errors import SettingsError
from isthmus.finetuning.kinds._base import KINDS, Kind
from isthmus.finetuning.mining.candidates import searched
from isthmus.finetuning.negatives._base import listed
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.progress import track
from isthmus.records import Document, Query
from isthmus.retrieval.passage_cutter import cutter_for
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings
from isthmus.text.passages import Cutter, PassageSettings
from isthmus.text.tokenizer import Tokenizer


class PassageCorpus(Corpus):
    """The passages of a corpus, as long as the encoder to be trained reads."""

    def __init__(self, corpus: Corpus, settings: FinetuneSettings) -> None:
        self.whole = corpus
        self._settings = settings

    @cached_property
    def cutter(self) -> Cutter:
        """What cuts the documents."""
        chosen = self._settings.passages
        with named_at("model"):
            folder = model_folder(self._settings.model)
            tokenizer = Tokenizer.load(folder)
        kind: Kind = KINDS.load(self._settings.encoder)(self._settings.model_dump())
        settings = chosen if isinstance(chosen, PassageSettings) else PassageSettings()
        return cutter_for(settings, tokenizer, kind.settings_for(folder).room(tokenizer))

    @property
    def passages(self) -> PassageSettings:
        """The settings with which an index has the same passages, whatever its encoder."""
        cut = self.cutter.cut
        return PassageSettings(length=cut.length, overlap=cut.overlap, model=self._settings.model)

    def documents(self) -> Iterator[Document]:
        """Every passage of every document."""
        return self.cutter.passages(self.whole.documents())

    def fingerprint(self) -> str:
        """A digest of the documents and of how they are cut."""
        cut = self.cutter.cut.model_dump_json(exclude={"model"})
        return xxhash.xxh3_128_hexdigest(f"{self.whole.fingerprint()} {cut}".encode())


class PassageCollection(PassageCorpus, Collection):
    """The passages of a judged collection: of a relevant document, the one nearest to the query.

    That is the one of highest BM25 score, or the first if none shares a word with the query.
    """

    def __init__(self, collection: Collection, settings: FinetuneSettings) -> None:
        super().__init__(collection, settings)
        self.judged = collection
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
        chosen = IndexSettings(
            titles=settings.titles, texts=False, passages=self.passages, **dict(settings.reading)
        )
        folder = searched(settings.collection, source, f"nearest {settings.titles}", None, chosen)
        searcher = open_searcher(folder)
        found: dict[str, dict[str, int]] = {}
        for query_id, judged in track(judgements.items(), "choose passages", len(judgements)):
            known = [one for one in judged if searcher.index.store.row(one) is not None]
            nearest = searcher.documents(known, texts.get(query_id))
            ids = {one: passage.id for one, passage in zip(known, nearest, strict=True)}
            found[query_id] = {ids.get(one, one): relevance for one, relevance in judged.items()}
        return found


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
