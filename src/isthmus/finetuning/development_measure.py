"""The development measure: how well held-out queries find their documents while training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from isthmus.evaluation.measures import parse_measure
from isthmus.finetuning.development_set import (
    SHORTEST,
    DevelopmentSet,
    DevelopmentSettings,
    Places,
)
from isthmus.finetuning.mining.candidates import Scores
from isthmus.progress import notice, waiting
from isthmus.records import Ranking
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.checkpoints import restoring
from isthmus.training.curves import report_curves
from isthmus.training.evaluation_callback import (
    BEST,
    Best,
    Better,
    EvaluationCallback,
    best_evaluation,
)
from isthmus.training.trainer import Trainer

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
