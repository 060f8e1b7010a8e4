"""Settings of `isthmus research report`."""

from __future__ import annotations

from pydantic import Field

from isthmus.config import Settings


class ReportSettings(Settings):
    """How differences are tested, and when a claim is supported."""

    verb = "report"

    alpha: float = Field(
        0.05, ge=1e-6, le=0.5, description="Level of the tests after correction, and of intervals"
    )
    smallest_effect: float = Field(
        0.005, gt=0, description="Difference of the measure below which it does not matter"
    )
