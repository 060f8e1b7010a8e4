"""BM25: bm25s scores the terms, this module says what a term is and how ties are ordered."""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import Stemmer

from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.indexes.building import complete, refuse_empty, start_anew
from isthmus.indexes.documents import DocumentStore, DocumentWriter, blocks
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import Bm25Settings, Description, Manifest, read_manifest
from isthmus.indexes.selection import best
from isthmus.indexes.without_jax import STOPWORDS_EN, bm25s
from isthmus.records import Document, Ranking

_WORD = re.compile(r"\b\w\w+\b")
_BLOCK = 1024


class Analyzer:
    """Text to terms, the same way for documents and queries: lower case, stop words, stems."""

    def __init__(self, settings: Bm25Settings) -> None:
        self._stopwords = frozenset(STOPWORDS_EN if settings.stopwords == "english" else ())
        self._stemmer = Stemmer.Stemmer("english") if settings.stemmer == "english" else None

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order, with repetitions."""
        words = [word for word in _WORD.findall(text.lower()) if word not in self._stopwords]
        return self._stemmer.stemWords(words) if self._stemmer is not None else words


class Bm25Index:
    """An inverted index of BM25 scores, memory-mapped."""

    def __init__(self, manifest: Manifest, store: DocumentStore, scorer: bm25s.BM25) -> None:
        assert manifest.bm25 is not None
        self.manifest = manifest
        self.store = store
        self._scorer = scorer
        self._analyzer = Analyzer(manifest.bm25)

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        folder: Path,
        description: Description,
        request: Mapping[str, Any],
    ) -> Path:
        """A finished index of the documents under the name `folder`.

        Interrupted, it starts anew: splitting texts is all the work there is, and it is quick.
        """
        settings = description.bm25
        assert settings is not None
        analyzer = Analyzer(settings)
        vocabulary: dict[str, int] = {}
        texts: list[array[int]] = []
        with writing(folder):
            index = start_anew(folder)
            with DocumentWriter(index, description.texts) as writer:
                for block in blocks(documents, _BLOCK):
                    for document in block:
                        terms = analyzer.terms(document.contents(description.titles))
                        numbers = (vocabulary.setdefault(t, len(vocabulary)) for t in terms)
                        texts.append(array("i", numbers))
                    writer.add(block)
                refuse_empty(len(texts), description)
                writer.finish()
            if not vocabulary:
                raise InputError(
                    "no document of the corpus has a word to search for",
                    where=description.corpus.spec,
                    allowed="words of two letters or digits and more, other than stop words",
                    remedy="check the format of the corpus, or set bm25.stopwords=none",
                )
            scorer = bm25s.BM25(k1=settings.k1, b=settings.b, method=settings.variant)
            scorer.index((texts, vocabulary), create_empty_token=False, show_progress=False)
            scorer.save(index, show_progress=False)
            return complete(folder, description, request, len(texts))

    @classmethod
    def open(cls, folder: Path) -> Bm25Index:
        """The index in a folder; scores stay on disk until a query needs them.

        bm25s writes .npy arrays and JSON; neither can carry code (pickled arrays are refused).
        """
        manifest = read_manifest(folder, "bm25")
        with parsing(folder, folder):
            scorer = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
        return cls(manifest, DocumentStore(folder), scorer)

    def __len__(self) -> int:
        return len(self.store)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left after stop words are dropped."""
        return bool(self._analyzer.terms(text))

    def search(
        self,
        texts: Sequence[str],
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest score per query, equal ones by document id.

        Documents that share no term with the query score 0 and are not part of the answer. `among`
        leaves only the documents of these ids; ids that the index does not hold are nobody's.
        """
        assert depth > 0
        assert len(texts) == len(query_ids)
        rows = None if among is None else np.unique(self.store.locate(list(among)))
        answers = [self._answer(text, depth, rows) for text in texts]
        return self.store.rankings(query_ids, answers)

    def _answer(
        self, text: str, depth: int, among: npt.NDArray[np.int64] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        numbers = self._scorer.get_tokens_ids(self._analyzer.terms(text))
        if not numbers:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        scores = self._scorer.get_scores_from_ids(numbers)
        rows = np.arange(len(scores)) if among is None else among[among >= 0]
        rows = rows[scores[rows] > 0]
        chosen = rows[best(scores[rows], self.store.ranks[rows], depth)]
        return chosen, scores[chosen]
