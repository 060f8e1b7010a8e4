"""What an evaluation measures, and how it tests differences."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from isthmus.collections.problems import ReadingSettings
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.significance import Correction, Test


class EvaluationSettings(ReadingSettings):
    """Measures, test, correction, level, samples and seed: what a report's numbers depend on."""

    verb = "evaluate"

    # A list in YAML, hence not strict; its names still are.
    measures: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=("RR@10", "nDCG@10", "R@100", "Success@100"),
        min_length=1,
        description="names as in ir_measures, R_cap@k, and Answer@k where there are answers; of a "
        "split with answers alone Answer@5, @20 and @100",
    )
    test: Test = Field("t_test", description="paired and two-sided, over queries")
    correction: Correction = Field(
        "bonferroni", description="of p-values, for as many comparisons as there are"
    )
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="a difference with a smaller p-value is significant"
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="of the bootstrap intervals")
    bootstrap_samples: int = Field(
        default=10_000, ge=1, description="of queries, from which the intervals come"
    )
    randomisation_samples: int = Field(
        default=10_000, ge=1, description="random exchanges of two runs' scores in that test"
    )
    seed: int = Field(default=0, ge=0, description="of the bootstrap and the randomisation test")
    drop_self: bool = Field(
        default=False,
        description="drops a result whose document id is the query's (ArguAna, Quora)",
    )
    by: Literal["document"] | None = Field(
        default=None,
        description="document: results are passages, DOCUMENT#NUMBER, and a document counts as its "
        "best one; null: ids count as they are",
    )

    problems: Literal["refuse", "skip"] = Field(
        default="refuse", description="what to do with broken lines of run files and judgements"
    )

    @field_validator("measures")
    @classmethod
    def _printed_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(parse_measure(name, answers=True)) for name in names))
