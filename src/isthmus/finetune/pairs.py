"""Labelled pairs as training examples: a query, a positive, and this epoch's negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from isthmus.collections import Collection, Problems
from isthmus.encoders.encoder import EncoderSettings, pad
from isthmus.errors import InputError
from isthmus.finetune.mining import Rows
from isthmus.records import Query
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch, Examples


@dataclass(frozen=True)
class LabelledQueries:
    """Queries with the rows of their relevant documents, in a fixed order."""

    queries: list[Query]
    positives: list[list[int]]


def labelled_queries(
    collection: Collection, split: str, corpus: TokenisedCorpus, problems: Problems
) -> LabelledQueries:
    """The judged queries of a split that have a relevant document in the corpus."""
    judgements = collection.judgements(split)
    rows = corpus.row_of_id()
    texts = {query.id: query for query in collection.queries() if query.id in judgements}
    queries, positives = [], []
    for query_id, judged in judgements.items():
        relevant = [document for document, relevance in judged.items() if relevance > 0]
        if not relevant:
            continue
        where = f"split {split!r}, query {query_id!r}"
        if query_id not in texts:
            problems.report(
                "unknown query", where, "judged but not among the queries", "add the query's text"
            )
            continue
        known = [rows[document] for document in relevant if document in rows]
        for document in relevant:
            if document not in rows:
                problems.report(
                    "unknown document",
                    where,
                    f"the relevant document {document!r} is not in the corpus",
                    "check that judgements and corpus belong together",
                )
        if known:
            queries.append(texts[query_id])
            positives.append(known)
    if not queries:
        raise InputError(
            f"the split {split!r} has no query with a relevant document in the corpus",
            where=f"split {split!r}",
            allowed="a split with relevance above 0 for documents of the corpus",
            remedy="check that judgements, queries and corpus belong together",
        )
    return LabelledQueries(queries, positives)


class PairExamples(Examples):
    """Groups of one positive and n negatives per query; positives and negatives rotate by epoch."""

    def __init__(
        self,
        labelled: LabelledQueries,
        negatives: Rows | None,
        group: int,
        corpus: TokenisedCorpus,
        tokenizer: Tokenizer,
        settings: EncoderSettings,
    ) -> None:
        self.labelled = labelled
        self.negatives = negatives
        self.group = group
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.settings = settings
        self.query_tokens = tokenizer.encode(
            [query.text for query in labelled.queries], settings.query_max_length
        )
        first = np.array([rows[0] for rows in labelled.positives])
        self._lengths: npt.NDArray[np.int32] = np.minimum(
            corpus.lengths[first], settings.document_max_length
        )

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """The positive's tokens."""
        return self._lengths

    def __getitem__(self, position: tuple[int, int]) -> tuple[list[int], list[int]]:
        """The query's tokens and the rows of its group, positive first."""
        epoch, number = position
        relevant = self.labelled.positives[number]
        group = [relevant[epoch % len(relevant)]]
        if self.negatives is not None:
            size = self.group - 1
            start = epoch * size % self.negatives.shape[1]
            group += [int(row) for row in self.negatives[number, start : start + size]]
        return self.query_tokens[number], group

    def collate(self, examples: list[tuple[list[int], list[int]]]) -> Batch:
        """Query and passage matrices; passages are flattened, a whole group per query."""
        rows = [row for _, group in examples for row in group]
        query_ids, query_mask = pad([query for query, _ in examples], self.tokenizer.pad_id)
        ids, mask = pad([self._document(row) for row in rows], self.tokenizer.pad_id)
        return {
            "query_ids": query_ids,
            "query_mask": query_mask,
            "passage_ids": ids,
            "passage_mask": mask,
            "keys": torch.from_numpy(self.corpus.keys[rows]),
        }

    def _document(self, row: int) -> Sequence[int]:
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        room = self.settings.document_max_length - len(prefix) - len(suffix)
        return [*prefix, *self.corpus[row].tokens[:room].tolist(), *suffix]
