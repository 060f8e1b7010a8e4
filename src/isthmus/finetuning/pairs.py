"""Labelled pairs as training examples: a query, a positive, and this epoch's negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
import xxhash
from torch import Tensor

from isthmus.collections import Collection, Problems
from isthmus.encoders.encoder import EncoderSettings, pad
from isthmus.errors import InputError, SettingsError
from isthmus.finetuning.candidates import Rows, Scores
from isthmus.nn.packing import steady_width, token_places
from isthmus.progress import notice
from isthmus.records import Query, document_of
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch, Examples

_FEW = 30  # queries: one of them moves their mean by a thirtieth
_SPELT = 6  # tokens of a cut whose ends need not match
_LEAST_LEFT = 3  # tokens of a document from which something was cut


@dataclass(frozen=True)
class LabelledQueries:
    """Queries with the rows of their relevant documents, in a fixed order."""

    queries: list[Query]
    positives: list[list[int]]
    cuts: list[str] | None = None  # what is left out of each query's positives; None: nothing
    others: list[list[int]] | None = None  # passages of relevant documents besides; None: whole
    documents: npt.NDArray[np.int64] | None = None  # the number of that of every row; None: whole

    @property
    def relevant(self) -> list[list[int]]:
        """Per query, the rows of its relevant documents, all passages: none may be a negative."""
        if self.others is None:
            return self.positives
        return [own + more for own, more in zip(self.positives, self.others, strict=True)]

    def some(self, numbers: npt.ArrayLike) -> LabelledQueries:
        """The queries of these numbers, in the order they have here."""
        chosen = np.sort(numbers).tolist()
        return LabelledQueries(
            [self.queries[number] for number in chosen],
            [self.positives[number] for number in chosen],
            None if self.cuts is None else [self.cuts[number] for number in chosen],
            None if self.others is None else [self.others[number] for number in chosen],
            self.documents,
        )


def labelled_queries(
    collection: Collection, split: str, rows: Mapping[str, int], problems: Problems
) -> LabelledQueries:
    """The judged queries of a split that have a relevant document among the rows of ids."""
    judgements = collection.judgements(split)
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
            "check that judgements, queries and corpus belong together",
        )
    return LabelledQueries(queries, positives)


def with_other_passages(labelled: LabelledQueries, rows: Mapping[str, int]) -> LabelledQueries:
    """The queries with all other passages of their relevant documents; `rows` are of passages."""
    passages: dict[str, list[int]] = {}
    document = {}
    for passage, row in rows.items():
        document[row] = document_of(passage)
        passages.setdefault(document[row], []).append(row)
    others = [
        [row for own in positives for row in passages[document[own]] if row not in positives]
        for positives in labelled.positives
    ]
    numbers = {name: number for number, name in enumerate(passages)}
    documents = np.array([numbers[document[row]] for row in range(len(document))], dtype=np.int64)
    return replace(labelled, others=others, documents=documents)


def drawn_queries(labelled: LabelledQueries, wanted: float | None, seed: int) -> LabelledQueries:
    """A sample of `wanted` queries, or below 1 of that share of them; None: all.

    With one seed, a smaller sample is a part of a larger one.
    """
    total = len(labelled.queries)
    if wanted is None:
        return labelled
    count = max(1, round(wanted * total)) if wanted < 1 else int(wanted)
    if count > total:
        notice(f"queries = {count:,}, but the split has {total:,}: all are trained on")
    return labelled.some(np.random.default_rng([seed, 3]).permutation(total)[:count])


def held_out_queries(
    labelled: LabelledQueries, wanted: float
) -> tuple[LabelledQueries, LabelledQueries]:
    """Queries to train on, and `wanted` others, or below 1 that share of them.

    Chosen by hashes of ids: every stage of a pipeline, whatever its seed, holds out the same.
    """
    total = len(labelled.queries)
    count = max(1, round(wanted * total)) if wanted < 1 else int(wanted)
    if count >= total:
        raise SettingsError(
            f"development.held_out = {wanted:g} leaves none of {total:,} queries to train on",
            f"choose less than {total:,}, or a fraction: --set development.held_out=0.1",
        )
    hashes = [xxhash.xxh3_64_intdigest(query.id.encode()) for query in labelled.queries]
    order = np.argsort(np.array(hashes, dtype=np.uint64), kind="stable")
    message = f"{count:,} of {total:,} training queries are held out to measure by"
    notice(message if count >= _FEW else f"{message}: so few that chance chooses the model")
    return labelled.some(order[count:]), labelled.some(order[:count])


@dataclass(frozen=True)
class TaughtScores:
    """A teacher's scores of every query's positives and negatives, in their order."""

    positives: Scores  # NaN where a query has fewer than others
    negatives: Scores


class Group(NamedTuple):
    """A query's tokens and the rows of its passages, positive first, with the teacher's scores."""

    query: list[int]
    rows: list[int]
    teacher: list[float]  # empty where there is none
    cut: list[int]  # tokens that are left out of the positive


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
        teacher: TaughtScores | None = None,
        *,
        alike: bool,
        max_length: int | None = None,
    ) -> None:
        self.labelled = labelled
        self.negatives = negatives
        self.group = group
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.settings = settings
        self.teacher = teacher
        self.alike = alike
        self.query_tokens = tokenizer.encode(
            settings.as_queries(query.text for query in labelled.queries),
            settings.query_max_length,
        )
        cuts = labelled.cuts or [""] * len(labelled.queries)
        self.cuts = [encoding.ids for encoding in tokenizer.split(cuts)]
        (prompt,) = tokenizer.split([settings.prompts()[1]])
        self._least_left = _LEAST_LEFT + len(prompt.ids)
        self._max_length = max_length
        first = np.array([rows[0] for rows in labelled.positives])
        self._lengths: npt.NDArray[np.int32] = np.minimum(corpus.lengths[first], self.max_length)

    @property
    def max_length(self) -> int:
        """The number of tokens that training reads of a document."""
        longest = self.settings.document_max_length
        return longest if self._max_length is None else min(self._max_length, longest)

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """The number of tokens of each query's first positive."""
        return self._lengths

    def __getitem__(self, position: tuple[int, int]) -> Group:
        """The query of a (epoch, number) pair with that epoch's positive and negatives."""
        epoch, number = position
        relevant = self.labelled.positives[number]
        positive = epoch % len(relevant)
        rows, taught = [relevant[positive]], []
        if self.teacher is not None:
            taught.append(float(self.teacher.positives[number, positive]))
        if self.negatives is not None:
            size = self.group - 1
            start = epoch * size % self.negatives.shape[1]
            rows += self.negatives[number, start : start + size].tolist()
            if self.teacher is not None:
                taught += self.teacher.negatives[number, start : start + size].tolist()
        return Group(self.query_tokens[number], rows, taught, self.cuts[number])

    def collate(self, examples: list[Group]) -> Batch:
        """Query and passage matrices; passages are flattened, a whole group per query.

        `tokens` are the places of tokens, without padding: in one matrix of queries above passages
        where both are encoded alike, otherwise in the matrix of passages.
        """
        rows = [row for example in examples for row in example.rows]
        limit = self.max_length
        texts = [
            without(self.corpus.tokens(row), [] if place else example.cut, self._least_left)
            for example in examples
            for place, row in enumerate(example.rows)
        ]
        documents = [self.tokenizer.frame(text, limit) for text in texts]
        query_ids, query_mask = self._padded(
            [example.query for example in examples], self.settings.query_max_length
        )
        ids, mask = self._padded(documents, limit)
        read = one_matrix([query_mask, mask], 0) if self.alike else mask
        batch = {
            "query_ids": query_ids,
            "query_mask": query_mask,
            "passage_ids": ids,
            "passage_mask": mask,
            "tokens": token_places(read, self.steady),
            "keys": torch.from_numpy(self.corpus.keys[rows]),
        }
        if self.labelled.documents is not None:
            batch["documents"] = torch.from_numpy(self.labelled.documents[rows])
        if self.teacher is not None:
            batch["teacher"] = torch.tensor([example.teacher for example in examples])
        return batch

    def _padded(
        self, rows: Sequence[Sequence[int] | npt.NDArray[np.integer]], limit: int
    ) -> tuple[Tensor, Tensor]:
        ids, mask = pad(rows, self.tokenizer.pad_id)
        if not self.steady:
            return ids, mask
        more = steady_width(ids.shape[1], limit) - ids.shape[1]
        wide = functional.pad(ids, (0, more), value=self.tokenizer.pad_id)
        return wide, functional.pad(mask, (0, more))


def without(
    tokens: npt.NDArray[np.int32], cut: Sequence[int], least: int = _LEAST_LEFT
) -> npt.NDArray[np.int32]:
    """The tokens without the first stretch that equals `cut`; all, unless `least` are left then.

    The first and last token of the cut may be spelt otherwise within a text (a leading space).
    """
    inner = np.array(cut[1:-1] if len(cut) > _SPELT else cut, dtype=np.int32)
    if not 0 < len(inner) <= len(tokens):
        return tokens
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(inner))
    found = np.flatnonzero((windows == inner).all(1))
    if not len(found):
        return tokens
    margin = (len(cut) - len(inner)) // 2
    start = max(0, int(found[0]) - margin)
    left = np.concatenate([tokens[:start], tokens[int(found[0]) + len(inner) + margin :]])
    return left if len(left) >= least else tokens


def one_matrix(parts: Sequence[Tensor], filler: int) -> Tensor:
    """The rows of all parts, as wide as the widest of them."""
    width = max(part.shape[1] for part in parts)
    wide = [functional.pad(part, (0, width - part.shape[1]), value=filler) for part in parts]
    return torch.cat(wide)
