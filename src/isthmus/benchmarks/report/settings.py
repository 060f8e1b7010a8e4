"""Settings of `isthmus benchmark report`."""

from __future__ import annotations

from pydantic import Field

from isthmus.config import Settings
from isthmus.evaluation.significance import Correction


class ReportSettings(Settings):
    """How differences are tested, and when a claim holds."""

    verb = "benchmark report"

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
