"""The development set that chooses among steps, and its measure while training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from isthmus.collections import Collection
from isthmus.errors import SettingsError, choices
from isthmus.evaluation.measures import parse_measure, per_query
from isthmus.finetuning.candidates import NOTHING, Scores, TrainingCorpus, candidates
from isthmus.finetuning.negatives import Bm25
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.settings import SHORTEST, USUAL_SPLITS, DevelopmentSettings
from isthmus.progress import notice, waiting
from isthmus.records import Judgements, Query, Ranking, Run
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.checkpoints import restoring
from isthmus.training.evaluation import (
    BEST,
    Best,
    Better,
    EvaluationCallback,
    best_evaluation,
    report_curves,
)
from isthmus.training.trainer import Trainer

Places = npt.NDArray[np.int64]


def check_development(settings: DevelopmentSettings | None, retrieves: bool) -> None:
    """Raises on what cannot be measured; `retrieves` is False for an encoder that only re-ranks."""
    if settings is None:
        return
    parse_measure(settings.measure, "development.measure")
    if settings.held_out is not None and settings.split is not None:
        raise SettingsError(
            f"development.split = {settings.split!r} and development.held_out = "
            f"{settings.held_out:g} each say which queries to evaluate on",
            "leave development.held_out out, or --set development.split=null",
        )
    if not retrieves and not settings.bm25:
        raise SettingsError(
            "development.bm25 = 0 leaves a cross-encoder nothing to rank but the relevant "
            "documents",
            "leave development.bm25 out (default 10)",
        )


def is_test(split: str) -> bool:
    """Whether a split is, by its name, there to test the finished model."""
    return split.lower().startswith("test")


def development_split(
    settings: DevelopmentSettings | None, collection: Collection, trained: str
) -> str | None:
    """The split to measure on: the one trained on, where some of its queries are held out.

    None, and a notice, where the collection has none and the settings name none.
    """
    if settings is None:
        return None
    if settings.held_out is not None:
        return trained
    splits = [split for split in collection.splits() if split != trained]
    offered = [split for split in splits if not is_test(split)]
    fix = "--set development.held_out=0.1 measures on a tenth of the training queries"
    if offered:
        fix = f"--set development.split=NAME measures on another; {fix}"
    usual = " or ".join(USUAL_SPLITS)
    found = settings.split or next((split for split in USUAL_SPLITS if split in splits), None)
    if found is None and settings.patience is None:
        notice(
            f"no development measure: the collection has no split {usual}; the last model becomes "
            f"final ({fix})"
        )
    elif found not in splits:
        what = f"development.split = {found!r} is no split of the collection"
        if found is None:
            what = f"development.patience has nothing to watch: there is no split {usual}"
        elif found == trained:
            what = f"development.split = {found!r} is the split that is trained on"
        raise SettingsError(
            what,
            f"{fix}, or --set development=null",
            choices(found or "", offered),
        )
    return found


@dataclass(frozen=True)
class DevelopmentSet:
    """Queries, the rows of the documents among which they search, and what is relevant."""

    queries: list[Query]
    judgements: Judgements
    rows: Places
    own: list[Places]  # of each query, where its positives and BM25's best stand in `rows`

    def mean(self, measure: str, rankings: Iterable[Ranking]) -> float:
        """A measure's mean over the queries that are ranked."""
        ranked = {ranking.query_id: ranking for ranking in rankings}
        judged = {query: self.judgements[query] for query in ranked}
        (values,) = per_query(Run("development", ranked), judged, [measure]).values()
        return float(np.mean(list(values.values())))


def draw_development_set(
    corpus: TrainingCorpus,
    split: str,
    labelled: LabelledQueries,
    settings: DevelopmentSettings,
    seed: int,
) -> DevelopmentSet:
    """Queries drawn by the seed, with their positives, BM25's best, and random documents.

    Unjudged copies of a relevant text, and other passages of a relevant document, are left out.
    """
    generator = np.random.default_rng([seed, 2])
    drawn = np.sort(generator.permutation(len(labelled.queries))[: settings.queries])
    queries = [labelled.queries[number] for number in drawn]
    positives = [np.array(labelled.positives[number]) for number in drawn]
    relevant = np.unique(np.concatenate(positives))
    keys = corpus.tokenised.keys
    copies = np.isin(keys, keys[relevant])
    for number in drawn:
        copies[labelled.relevant[number]] = True
    copies[relevant] = False
    best = np.empty((len(queries), 0), dtype=np.int32)
    if settings.bm25:
        ranker = Bm25(Bm25.Settings()).open(corpus)
        best = candidates(ranker, corpus, queries, settings.bm25).rows
    found = [row[(row != NOTHING) & ~copies[row]] for row in best]
    needed = np.union1d(relevant, np.concatenate(found))
    others = generator.permutation(np.setdiff1d(np.flatnonzero(~copies), needed))
    rows = np.union1d(needed, others[: settings.documents])
    own = [np.searchsorted(rows, np.union1d(*pair)) for pair in zip(positives, found, strict=True)]
    judgements = corpus.collection.judgements(split)
    return DevelopmentSet(queries, {query.id: judgements[query.id] for query in queries}, rows, own)


TOPIC = "development"
_DEPTH = 1000  # of measures that name no cutoff


class Development:
    """Ranks the documents of a development set for its queries, with the model as it is now.

    `rank` gives, to a depth, places in `chosen.rows` and their scores for each query.
    """

    better: ClassVar[Better] = "higher"
    drawn: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        rank: Callable[[int], Iterable[tuple[Places, Scores]]],
        corpus: TokenisedCorpus,
        chosen: DevelopmentSet,
        settings: DevelopmentSettings,
    ) -> None:
        self.rank = rank
        self.corpus = corpus
        self.chosen = chosen
        self.settings = settings
        parsed = parse_measure(settings.measure, "development.measure")
        self.name = str(parsed)
        self.depth = int(parsed.params.get("cutoff", _DEPTH))
        self._first: float = 0

    def watch(self, trainer: Trainer, first_step: float = 0) -> None:
        """Lets a trainer evaluate, keep the best model, and stop when it gets no better.

        No model before `first_step` is kept; below 1, it is a share of all steps.
        """
        self._first = first_step
        best = Best(self.name, self.better, self.settings.patience, from_step=first_step)
        callback = EvaluationCallback(
            trainer, TOPIC, self, self.settings.every, best, at_least=SHORTEST
        )
        trainer.add_callback(callback)

    def take_best(self, trainer: Trainer) -> dict[str, Any]:
        """Loads the best model's weights into the trained task; returns its step and measure."""
        output = Path(trainer.args.output_dir)
        message = report_curves(trainer.state.log_history, TOPIC, {self.name: self}, output, TOPIC)
        counts = {"queries": len(self.chosen.queries), "documents": len(self.chosen.rows)}
        result: dict[str, Any] = {"measure": self.name, **counts}
        if (output / BEST).is_dir():  # not where the model never gave a number
            with restoring(output / BEST):
                trainer.task.restore(output / BEST)
                best = best_evaluation(output, TOPIC)
                result |= {"step": int(best["step"]), "value": float(best[self.name])}
            message += f"\nfinal: the best by {self.name}, step {best['step']:,}"
            if 0 < self._first < 1:
                first = math.ceil(self._first * trainer.state.max_steps)
                message += (
                    f", of those from step {first:,} on ({best[self.name]:.4f}; earlier ones were "
                    "not to be kept)"
                )
            if best["step"] == 0:
                message += ": NOT TRAINED, the model was best before the first step"
        notice(message)
        return result

    def __call__(self) -> dict[str, float]:
        """The mean over the queries; NaN where a score is NaN."""
        chosen = self.chosen
        what = f"{len(chosen.queries):,} queries, {len(chosen.rows):,} documents"
        with waiting(f"measuring {self.name} of the model on the development set: {what}"):
            rankings = []
            ranked = self.rank(self.depth)
            for query, (places, scores) in zip(chosen.queries, ranked, strict=True):
                if np.isnan(scores).any():
                    return {self.name: math.nan}
                ids = [self.corpus[row].id for row in chosen.rows[places]]
                rankings.append(Ranking(query.id, tuple(ids), tuple(scores.tolist())))
            return {self.name: chosen.mean(self.name, rankings)}
