"""A target that a finished model missed is said, with both numbers."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.finetuning.regularizers._base import regularizers
from isthmus.finetuning.sparsity import check_targets


def checked(chosen: dict[str, Any], active: dict[str, float]) -> None:
    check_targets(regularizers(chosen), active)


def test_what_is_near_needs_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    for queries, documents in ((10.1, 42), (14.9, 62)):
        chosen = {"flops": {"target": {"queries": queries, "documents": documents}}}
        checked(chosen, {"queries": 12.0, "documents": 50.0})
    assert capsys.readouterr().err == ""


def test_what_is_missed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {"flops": {"target": {"documents": 41}}, "l1": {"target": {"queries": 16}}}
    checked(chosen, {"queries": 12.0, "documents": 50.0})
    many, few = capsys.readouterr().err.splitlines()
    assert many.startswith(
        "documents have 50.0 terms on average in the finished model; "
        "regularizers.flops.target.documents = 41 is MISSED: train longer"
    )
    assert "a higher weight (regularizers.flops.documents; it came to 0.001)" in many
    assert few.startswith("queries have 12.0 terms")
    assert "a lower weight (regularizers.l1.queries" in few
