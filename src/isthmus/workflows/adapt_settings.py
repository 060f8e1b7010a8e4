"""Settings of the verb `isthmus adapt`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from isthmus.collections.problems import ReadingSettings
from isthmus.config.encoding import EncodingChoice
from isthmus.evaluation import EvaluationSettings
from isthmus.indexes.manifest import Bm25Settings
from isthmus.text.passages import Chosen


class AdaptSettings(ReadingSettings, EncodingChoice):
    """Which documents, which encoder, how it learns them, and what the report measures."""

    verb = "adapt"

    documents: str = Field(description="what to learn: a path, beir:PATH, hf:NAME, irds:ID, …")
    model: str = Field(description="a finished retriever: a folder, hub name or package:NAME")
    output: str = Field(description="the folder to write")
    collection: str | None = Field(
        None, description="judged queries to report on; null: those of the documents, if any"
    )
    split: str | None = Field(None, description="of the collection; null: test, or else dev")
    guard: str | None = Field(
        None, description="another collection, on which the report checks that nothing is lost"
    )
    labels: str | None = Field(
        None, description="a judged collection whose training split is learnt from afterwards"
    )
    passages: Chosen = Field(
        None,
        description="whether long documents are learnt and indexed by passages, or how these are "
        "cut; null: yes for a folder of files, no otherwise",
    )
    bm25: Bm25Settings | None = Field(
        None, description="of the index that the report compares with: its language, k1, b, …"
    )
    dense: dict[str, Any] = Field(description="settings of `isthmus finetune`, without labels")
    dot: dict[str, Any] = Field({}, description="what differs where inner products compare")
    sparse: dict[str, Any] = Field({}, description="what differs for a sparse encoder, besides")
    finetune: dict[str, Any] = Field({}, description="what differs where labels are learnt from")
    evaluation: EvaluationSettings = EvaluationSettings(
        measures=("RR@10", "nDCG@10", "R@100"), correction="holm"
    )
