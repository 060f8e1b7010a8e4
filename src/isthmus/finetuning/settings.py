"""The settings of `isthmus finetune`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from isthmus.collections.problems import ReadingSettings
from isthmus.config.encoding import Pooling, PromptSettings, Similarity
from isthmus.encoders.sparse import SparseForm
from isthmus.finetuning.development import DevelopmentSettings
from isthmus.finetuning.kinds._base import KINDS
from isthmus.finetuning.merge import MergeSettings
from isthmus.finetuning.pseudo_queries._base import PseudoQuerySettings
from isthmus.retrieval.passage_cutter import Chosen
from isthmus.training.settings import TrainingSettings


class FinetuneSettings(ReadingSettings, PromptSettings):
    """One stage: a starting point, a labelled collection, negatives, and how vectors compare."""

    verb = "finetune"

    model: str = Field(description="where to start: a run of isthmus, a folder or hub name")
    collection: str = Field(description="a judged collection: a BEIR folder, irds:ID, …")
    output: str = Field(description="the folder to write")
    split: str = Field("train", description="whose judgements to learn from")
    queries: int | float | None = Field(
        None, gt=0, description="drawn from the split by training.seed; below 1: a share; null: all"
    )
    pseudo_queries: PseudoQuerySettings | None = Field(
        None,
        description="queries drawn from the documents in the place of judged ones: no labels",
    )
    titles: bool = Field(True, description="whether titles are part of the text")
    passages: Chosen = Field(
        None,
        description="whether training is on passages of long documents, of a relevant one the "
        "nearest to the query by BM25, or how they are cut; null: yes for a folder of files, no "
        "otherwise",
    )
    encoder: str = Field(
        "dense",
        description="dense, sparse, or cross: a re-ranker, which reads query and document together",
    )
    pooling: Pooling = Field("cls", description="what becomes a text's vector")
    similarity: Similarity = Field(
        "dot", description="how two vectors compare; cosine: they have length 1"
    )
    sparse: SparseForm = Field(SparseForm(), description="how a sparse encoder weighs terms")
    temperature: float = Field(1.0, gt=0, description="scores are divided by it (1 / scale)")
    query_max_length: int = Field(32, ge=4, description="tokens, special ones included")
    document_max_length: int = Field(144, ge=4, description="tokens, special ones included")
    training_max_length: int | None = Field(
        None,
        ge=4,
        description="tokens of a document that training reads; null: document_max_length",
    )
    negatives: dict[str, Any] | list[dict[str, Any]] | None = Field(
        None, description="a source, or a list of them; null: only those of the batch"
    )
    audit: bool = Field(True, description="whether negatives.html shows what they are like")
    losses: dict[str, Any] = Field(
        {}, description="NAME: {weight}; left out: contrastive, of a cross-encoder listwise"
    )
    teacher: dict[str, Any] | None = Field(None, description="whose scores kl and margin_mse learn")
    regularizers: dict[str, Any] = Field(
        {}, description="what keeps a sparse encoder's vectors sparse: NAME: {queries, documents}"
    )
    start_terms: int | None = Field(
        1000,
        ge=1,
        description="terms of an average document before training, where a sparse encoder would "
        "have more: the head's bias is lowered, which changes no probability; null: as it is",
    )
    mini_batch_size: int | None = Field(
        None,
        ge=1,
        description="texts whose activations are held at once, whatever the batch: gradients stay "
        "those of the whole batch, at the price of a second forward pass; null: all of them",
    )
    development: DevelopmentSettings | None = Field(
        DevelopmentSettings(),
        description="held-out queries that say which model becomes final; null: the last one",
    )
    merge: MergeSettings | None = Field(
        None, description="average the trained weights with those at the start; null: as trained"
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings)

    @model_validator(mode="before")
    @classmethod
    def _losses_of_the_kind(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("losses"):
            return values
        kind = values.get("encoder", cls.model_fields["encoder"].default)
        known = isinstance(kind, str) and kind in KINDS.names()  # resolve_stage refuses others
        return {**values, "losses": {KINDS.load(kind).usual_loss: {}}} if known else values

    @field_validator("queries")
    @classmethod
    def _whole_queries(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError("a whole number of queries, or a share below 1")
        return value

    @field_validator("negatives", "teacher", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [{"name": one} if isinstance(one, str) else one for one in value]
        return {"name": value} if isinstance(value, str) else value
