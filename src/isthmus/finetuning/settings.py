"""The settings of `isthmus finetune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model, field_validator

from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.encoding import Pooling, PromptSettings, Similarity, SparseForm
from isthmus.config.recipes import merged
from isthmus.config.settings import ResolvedSettings
from isthmus.text.passages import Chosen
from isthmus.training.settings import Steps, TrainingSettings

USUAL_SPLITS = ("dev", "validation", "valid")
SHORTEST = 10
"""Fewest steps between two evaluations, where their number is a fraction of all steps."""
HELD_OUT_DOCUMENTS = 256


def _several(value: float) -> float:
    if value >= 1 and (value < 2 or value != int(value)):
        raise ValueError("a share below 1, or a whole number of queries from 2 on")
    return value


class DevelopmentSettings(Settings):
    """Held-out queries, the documents to rank, how often to evaluate, and when to stop."""

    split: str | None = Field(
        None,
        description="Split whose queries are evaluated on; null: "
        f"{' or '.join(USUAL_SPLITS)}, where there is one",
    )
    held_out: Annotated[float, AfterValidator(_several)] | None = Field(
        None,
        gt=0,
        description="Number, or below 1 the fraction, of training queries that are evaluated on "
        "instead of a split, and not trained on",
    )
    queries: int = Field(
        300,
        ge=1,
        description="Maximum number of queries, drawn from the split or from the held-out ones",
    )
    documents: int = Field(
        2000,
        ge=0,
        description="Number of documents drawn from the collection, in addition to those that the "
        "queries need",
    )
    bm25: int = Field(
        10,
        ge=0,
        description="Number of documents per query that BM25 ranks highest, as hard distractors",
    )
    measure: str = Field(
        "RR@10", description="Measure that is maximised: any of `isthmus evaluate`"
    )
    every: Steps = Field(
        0.1,
        description="Steps between two evaluations; below 1: a fraction of all steps, and "
        f"{SHORTEST} at least",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Number of evaluations without a better measure after which training stops; "
        "null: never",
    )


class MergeSettings(Settings):
    """How much of the trained weights the average holds."""

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Weight of the trained model in the average; null: the largest, up to "
        "max_share, with which held-out documents move by at most max_change; none where "
        "queries drawn from them lose",
    )
    max_share: float = Field(0.5, gt=0, le=1, description="Largest weight that is tried")
    max_change: float = Field(
        0.01,
        ge=0,
        description="Largest change of held-out documents: 1 - their mean cosine to their vectors "
        "before training, over that of two different documents",
    )


class PseudoQuerySettings(Settings):
    """Which sources queries are drawn from, how many, and which documents are left out."""

    sources: dict[str, Any] = Field(
        min_length=1, description="Sources of queries, each as NAME: {share}; null leaves one out"
    )
    per_document: int | None = Field(
        None,
        ge=1,
        description="Number of queries per document; null: as many as training takes, at most 8",
    )
    held_out: int = Field(
        HELD_OUT_DOCUMENTS,
        ge=1,
        description="Number of documents that are not trained on, at most a tenth: the split dev",
    )


class FinetuneSettings(ReadingSettings, PromptSettings):
    """One stage: a starting point, a labelled collection, negatives, and how vectors compare."""

    verb = "finetune"

    model: str = Field(description="Model to train: a run, folder, hub name or package:NAME")
    collection: str = Field(
        description="Collection with a training split: a BEIR folder, irds:ID, …"
    )
    output: str = Field(description="Folder to write")
    split: str = Field("train", description="Split whose judgements are trained on")
    queries: int | float | None = Field(
        None,
        gt=0,
        description="Number, or below 1 the fraction, of training queries, drawn by "
        "training.seed; null: all",
    )
    pseudo_queries: PseudoQuerySettings | None = Field(
        None,
        description="Queries that are drawn from the documents instead of labelled ones; null: "
        "labelled ones",
    )
    titles: bool = Field(True, description="Whether titles are part of the text")
    passages: Chosen = Field(
        None,
        description="Whether long documents are trained on in passages, of a relevant one the "
        "passage nearest to the query by BM25, or how they are cut; null: yes for a folder of "
        "files, no otherwise",
    )
    encoder: str = Field(
        "dense",
        description="Type of the encoder: dense, sparse, or cross (a re-ranker, which reads query "
        "and document together)",
    )
    pooling: Pooling = Field("cls", description="Pooling of token states into the vector of a text")
    similarity: Similarity = Field(
        "dot", description="Similarity of two vectors; cosine: they have length 1"
    )
    sparse: SparseForm = Field(
        SparseForm(), description="Form of the term weights of a sparse encoder"
    )
    temperature: float | None = Field(
        1.0,
        gt=0,
        description="Number that scores are divided by (1 / scale); null: 0.05 for cosine, 1 for "
        "dot products",
    )
    query_max_length: int = Field(
        32, ge=4, description="Maximum number of tokens of a query, special ones included"
    )
    document_max_length: int = Field(
        144, ge=4, description="Maximum number of tokens of a document, special ones included"
    )
    training_max_length: int | None = Field(
        None,
        ge=4,
        description="Maximum number of tokens of a document in training; null: document_max_length",
    )
    negatives: dict[str, Any] | list[dict[str, Any]] | None = Field(
        None, description="Source of negatives, or a list of them; null: those of the batch alone"
    )
    audit: bool = Field(
        True, description="Whether negatives.html is written, a page about the negatives"
    )
    losses: dict[str, Any] = Field(
        {},
        description="Losses, each as NAME: {weight}; none given: contrastive, of a cross-encoder "
        "listwise",
    )
    teacher: dict[str, Any] | None = Field(
        None, description="Teacher whose scores kl and margin_mse distil"
    )
    regularizers: dict[str, Any] = Field(
        {},
        description="Regularizers of a sparse encoder's term weights, each as NAME: {queries, "
        "documents}",
    )
    start_terms: int | None = Field(
        1000,
        ge=1,
        description="Number of terms of an average document before training, where a sparse "
        "encoder would have more: the bias of its head is lowered, which changes no "
        "probability; null: unchanged",
    )
    mini_batch_size: int | None = Field(
        None,
        ge=1,
        description="Number of texts whose activations are kept at a time (gradient caching): "
        "less memory, a second forward pass, the same gradients; null: the batch",
    )
    development: DevelopmentSettings | None = Field(
        DevelopmentSettings(),
        description="Held-out queries that choose the model that becomes final; null: the last one",
    )
    merge: MergeSettings | None = Field(
        None, description="Average of the trained weights with the original ones; null: as trained"
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings)

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


def resolved_stages(
    values: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]]
) -> ResolvedSettings:
    """The settings of every stage, the common ones among them, and what each source says."""
    names = [name for name, own in values["stages"].items() if own is not None]

    def spread(layer: Mapping[str, Any]) -> dict[str, Any]:
        common = {key: value for key, value in layer.items() if key != "stages"}
        own = layer.get("stages") or {}
        each = {name: merged(common, own.get(name) or {}) for name in names}
        return {"stages": each} if any(each.values()) else {}

    kinds: dict[str, Any] = dict.fromkeys(names, (FinetuneSettings, ...))
    every: Any = create_model("Stages", __base__=Settings, **kinds)
    whole = create_model("StagedSettings", __base__=Settings, stages=(every, ...))
    found = whole.parse(spread(FinetuneSettings.with_names(values)), "stages")
    return ResolvedSettings(found, {source: spread(layer) for source, layer in layers.items()})
