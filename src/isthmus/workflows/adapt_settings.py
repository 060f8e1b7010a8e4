"""Settings of the command `isthmus adapt`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from isthmus.collections.problems import ReadingSettings
from isthmus.config.encoding import EncodingChoice
from isthmus.evaluation import EvaluationSettings
from isthmus.indexes.manifest import Bm25Settings
from isthmus.text.passages import Chosen


class AdaptSettings(ReadingSettings, EncodingChoice):
    """Which documents and which encoder, how it is trained, and what the report measures."""

    verb = "adapt"

    documents: str = Field(description="Documents to train on: a path, beir:PATH, irds:ID, …")
    model: str = Field(description="Embedding model to adapt: a folder, hub name or package:NAME")
    output: str = Field(description="Output folder")
    eval_on: list[str] = Field(
        [], description="Collections to report on; empty: that of the documents, if it has queries"
    )
    split: str | None = Field(
        None, description="Split of the collections; null: test, or else dev or validation"
    )
    train_on: str | None = Field(
        None, description="Collection whose training split is trained on after the documents"
    )
    passages: Chosen = Field(
        None,
        description="Whether long documents are read in passages, or how these are cut; null: in "
        "the index yes, in training for a folder of files",
    )
    bm25: Bm25Settings | None = Field(
        None, description="Settings of BM25 in the index: language, k1, b, …"
    )
    finetune: dict[str, Any] = Field(
        description="Settings of `isthmus finetune` with stages, of which `labelled` is that of "
        "train_on"
    )
    evaluation: EvaluationSettings = EvaluationSettings(
        measures=("RR@10", "nDCG@10", "R@100"), correction="holm"
    )
