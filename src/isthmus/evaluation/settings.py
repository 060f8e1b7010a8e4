"""What an evaluation measures, and how it tests differences."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from isthmus.collections.problems import ReadingSettings
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.statistics import Correction, Test

USUAL_MEASURES = ("nDCG@10", "RR@10", "R@100")


class EvaluationSettings(ReadingSettings):
    """Measures, test, correction, level, samples and seed: what a report's numbers depend on."""

    verb = "evaluate"

    # A list in YAML, hence not strict; its names still are.
    measures: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=USUAL_MEASURES,
        min_length=1,
        description="Names as in ir_measures, R_cap@k, and Answer@k for queries with answers",
    )
    test: Test = Field(
        "t_test", description="Test of differences, paired and two-sided over queries"
    )
    correction: Correction = Field(
        "bonferroni", description="Correction of p-values for the number of comparisons"
    )
    alpha: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Level: a difference with a smaller corrected p-value is significant",
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Level of the intervals")
    bootstrap_samples: int = Field(
        default=10_000, ge=1, description="Bootstrap samples of the queries, for the intervals"
    )
    randomisation_samples: int = Field(
        default=10_000, ge=1, description="Random sign changes of the randomisation test"
    )
    seed: int = Field(default=0, ge=0, description="Seed of bootstrap and randomisation")
    drop_self: bool = Field(
        default=False,
        description="Whether results with the query's own id are dropped (ArguAna, Quora)",
    )
    by: Literal["document"] | None = Field(
        default=None,
        description="document: results are passages (DOCUMENT#NUMBER), and each document takes the "
        "rank of its best passage; null: ids count unchanged",
    )

    @field_validator("measures")
    @classmethod
    def _printed_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(parse_measure(name, answers=True)) for name in names))
