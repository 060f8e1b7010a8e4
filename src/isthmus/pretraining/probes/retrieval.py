"""Zero-label retrieval: a title finds its text, or a sentence the passage it was taken out of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.errors import InputError
from isthmus.nn.randomness import key
from isthmus.pretraining.probes._base import LEXICON_TERMS, Probe, on_device, represent
from isthmus.pretraining.probes._held_out import EPOCH, HeldOut
from isthmus.pretraining.registries import probe
from isthmus.pretraining.task import PretrainTask
from isthmus.training.task import Batch

_SHORTEST_QUERY = 4  # tokens
Tokens = list[list[int]]


class RetrievalSettings(Settings):
    """What serves as the query, and how much of a lexicon counts."""

    query: Literal["auto", "title", "sentence"] = "auto"
    terms: int = Field(
        LEXICON_TERMS,
        ge=1,
        description="of a lexicon's weights, the largest, as an index keeps them",
    )


@probe("retrieval")
class Retrieval(Probe):
    """Zero-label retrieval: a title finds its text, or a sentence the passage it was taken out of.

    MRR@10 of inner products among the held-out passages.
    """

    Settings = RetrievalSettings
    settings: RetrievalSettings
    uses_head = False  # but for a lexicon
    better = "higher"

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Makes the queries, the passages that they look for, and groups of equal titles."""
        titled = _titled(held_out) if self.settings.query != "sentence" else []
        if self.settings.query == "title" and not titled:
            raise _no_query("no titles", "probes.measure.retrieval.query")
        if titled and (self.settings.query == "title" or 2 * len(titled) >= len(held_out.rows)):
            titles, texts = zip(*titled, strict=True)
            queries, passages = (_tokens(side, held_out) for side in (titles, texts))
            number = {title: group for group, title in enumerate(dict.fromkeys(titles))}
            self.groups = torch.tensor([number[title] for title in titles])
        else:
            queries, passages = _sentences(held_out)
            self.groups = torch.arange(len(queries))
        if not queries and decides:
            raise _no_query("neither titles nor passages of two sentences", "probes.best_by")
        self.queries, self.passages = map(held_out.frame.batches, (queries, passages))

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether the model was better before."""
        values = [numbers[""] for numbers in seen]
        if len(values) < 2 or not values[0] > max(values[1:]):
            return None
        return (
            "retrieval was best before training: too few steps, or the recipe trains the vector of "
            "another pooling than the model was made for (a notice at the start says so, and how "
            "to keep it); --set probes.best_by=retrieval keeps the best model"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over the queries; no number where the documents gave none."""
        if not self.queries:
            return {"": math.nan}

        def vectors(batches: list[Batch]) -> Tensor:
            return torch.cat(
                [
                    represent(task, batch, held_out.vector, self.settings.terms)
                    for batch in on_device(task, batches)
                ]
            )

        scores = vectors(self.queries).float() @ vectors(self.passages).float().T
        wanted = self.groups[:, None] == self.groups
        return {"": mean_reciprocal_rank(scores, wanted.to(scores.device))}


def mean_reciprocal_rank(scores: Tensor, wanted: Tensor, depth: int = 10) -> float:
    """MRR@depth; of equal scores the wanted one comes last: a collapsed vector gets nothing."""
    best = scores.masked_fill(~wanted, -torch.inf).amax(1, keepdim=True)
    # Not `>=`: what is no number is before nothing, and would put the wanted one first.
    ranks = 1 + (~(scores < best) & ~wanted).sum(1)
    return float(torch.where(ranks <= depth, 1 / ranks, 0).mean())


def _titled(held_out: HeldOut) -> list[tuple[str, str]]:
    """Title and text of the held-out documents that have both."""
    left = {held_out.examples.corpus[row].id for row in held_out.rows}
    found = []
    for document in held_out.documents:
        if document.id in left:
            left.discard(document.id)
            if document.title.strip() and document.text.strip():
                found.append((document.title, document.text))
        if not left:
            break
    return found


def _tokens(texts: Sequence[str], held_out: HeldOut) -> Tokens:
    return [row.ids for row in held_out.frame.tokenizer.split(list(texts))]


def _sentences(held_out: HeldOut) -> tuple[Tokens, Tokens]:
    """A sentence of each document, drawn by its row, and the passage that it was taken out of."""
    queries, passages = [], []
    for row in held_out.rows:
        document = held_out.examples.corpus[row]
        tokens = document.tokens[: held_out.frame.room].tolist()
        edges = [0, *(s for s in document.sentences.tolist() if 0 < s < len(tokens)), len(tokens)]
        spans = [
            (start, end)
            for start, end in pairwise(edges)
            if end - start >= _SHORTEST_QUERY and len(tokens) - (end - start) >= _SHORTEST_QUERY
        ]
        if spans:
            start, end = spans[key(held_out.examples.seed, EPOCH, int(row)) % len(spans)]
            queries.append(tokens[start:end])
            passages.append(tokens[:start] + tokens[end:])
    return queries, passages


def _no_query(missing: str, where: str) -> InputError:
    return InputError(
        f"{where}: the retrieval probe has no queries, as the held-out documents have {missing}",
        "--set probes.best_by=null, or leave the retrieval probe out of probes.measure",
    )
