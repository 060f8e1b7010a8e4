"""Settings of `isthmus benchmark report`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isthmus.config import Settings
from isthmus.evaluation.significance import Correction


class ReportSettings(Settings):
    """How differences are tested, when a claim holds, and which texts are shown."""

    verb = "benchmark report"

    over: Literal["both", "queries"] = Field(
        "both",
        description="what the letters and verdicts generalise over: queries and pre-training seeds "
        "(by queries alone where there is one seed), or queries alone, as most papers do",
    )
    correction: Correction = Field(
        "holm", description="of p-values, over all comparisons of a table, or of a claim"
    )
    alpha: float = Field(0.05, ge=1e-6, le=0.5, description="level of the tests, after correction")
    confidence: float = Field(
        0.95, ge=0.5, le=0.999999, description="of the intervals of differences"
    )
    power: float = Field(0.8, ge=0.5, le=0.999, description="of the minimum detectable difference")
    smallest_effect: float = Field(
        0.005, gt=0, description="a difference of the measure below which it does not matter"
    )
    pairs: list[str] = Field(
        [], description="START:START whose wins and losses are shown; none: the best and the first"
    )
    examples: int = Field(5, ge=0, description="queries won and lost that are shown, each")
    texts: bool = Field(
        True, description="reads the collections for the texts of these queries; false: ids alone"
    )
