"""Everything `isthmus finetune` can be told."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from isthmus.config import Settings
from isthmus.training.settings import TrainingSettings


class FinetuneSettings(Settings):
    """One stage: a starting point, a labelled collection, negatives, and how vectors compare."""

    model: str = Field(description="where to start: a run of isthmus, a folder or hub name")
    collection: str = Field(description="a judged collection: a BEIR folder, irds:ID, …")
    output: str = Field(description="the folder to write")
    split: str = Field("train", description="whose judgements to learn from")
    titles: bool = Field(True, description="whether titles are part of the text")
    problems: Literal["refuse", "skip"] = Field("refuse", description="what to do with bad input")
    pooling: Literal["cls", "mean"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    temperature: float = Field(1.0, gt=0, description="scores are divided by it (1 / scale)")
    query_max_length: int = Field(32, ge=4)
    document_max_length: int = Field(144, ge=4)
    negatives: dict[str, Any] | None = Field(None, description="null: only those of the batch")
    training: TrainingSettings = Field(default_factory=TrainingSettings)

    @field_validator("negatives", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
