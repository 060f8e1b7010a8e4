"""The work that an adaptation expects: of passages where documents are cut into them."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.encoders.dense import DenseSettings
from isthmus.finetuning.merge import TRYING
from isthmus.progress import Part
from isthmus.workflows.adapt import stages
from isthmus.workflows.adapt_settings import AdaptSettings
from isthmus.workflows.workload import work

KNOWN = DenseSettings(pooling="mean", similarity="cosine", document_max_length=256)
PLACES = {"documents": "notes", "model": "m", "output": "o"}


def parts(in_passages: bool, judged: bool = False, **values: Any) -> list[Part]:
    """Of 72 files of 3,000 tokens each."""
    settings = AdaptSettings.given({**PLACES, **values}, recipe="adapt-quick")
    return work(settings, stages(settings, KNOWN, "m"), [3000.0] * 72, in_passages, judged, 0)


def test_long_files_are_work_by_their_passages() -> None:
    whole, cut = parts(in_passages=False), parts(in_passages=True)
    assert [part.beginning for part in cut] == ["fine-tune", TRYING] + ["indexing notes"] * 2
    assert whole[-1] == Part("indexing notes", 72 * 256, 72)
    # Two thirds of 256 tokens each: 18 of every file.
    assert cut[-1].work == pytest.approx(72 * 3000)
    assert cut[-1].items == 72 * 18
    assert cut[0].work == whole[0].work  # that many steps, of texts as long
    # A tenth of the passages is held out: read by five shares, and with 200 more by both measures.
    assert cut[1].work == pytest.approx((5 * 129.6 + 2 * 329.6) * 3000 / 18)


def test_a_passage_may_be_shorter_than_what_the_encoder_reads() -> None:
    assert parts(in_passages=True, passages={"length": 120})[-1].items == 72 * 38


def test_nothing_is_tried_of_a_share_that_is_said() -> None:
    dense = {"merge": {"share": 0.5}}
    assert TRYING not in [part.beginning for part in parts(in_passages=True, dense=dense)]
