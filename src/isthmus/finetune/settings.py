"""Everything `isthmus finetune` can be told."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from isthmus.config import Settings
from isthmus.encoders.sparse import SparseForm
from isthmus.training.settings import TrainingSettings


class FinetuneSettings(Settings):
    """One stage: a starting point, a labelled collection, negatives, and how vectors compare."""

    model: str = Field(description="where to start: a run of isthmus, a folder or hub name")
    collection: str = Field(description="a judged collection: a BEIR folder, irds:ID, …")
    output: str = Field(description="the folder to write")
    split: str = Field("train", description="whose judgements to learn from")
    titles: bool = Field(True, description="whether titles are part of the text")
    problems: Literal["refuse", "skip"] = Field("refuse", description="what to do with bad input")
    encoder: Literal["dense", "sparse"] = "dense"
    pooling: Literal["cls", "mean"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    sparse: SparseForm = Field(SparseForm(), description="how a sparse encoder weighs terms")
    temperature: float = Field(1.0, gt=0, description="scores are divided by it (1 / scale)")
    query_max_length: int = Field(32, ge=4)
    document_max_length: int = Field(144, ge=4)
    negatives: dict[str, Any] | None = Field(None, description="null: only those of the batch")
    regularizers: dict[str, Any] = Field(
        {}, description="what keeps a sparse encoder's vectors sparse: NAME: {queries, documents}"
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings)

    @field_validator("negatives", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
