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
        description="the queries to evaluate on; null: "
        f"{' or '.join(USUAL_SPLITS)}, where there is one",
    )
    held_out: Annotated[float, AfterValidator(_several)] | None = Field(
        None,
        gt=0,
        description="instead of a split: so many of the training queries, or below 1 that share "
        "of them, which are then not trained on",
    )
    queries: int = Field(300, ge=1, description="drawn from the split, or from what is held out")
    documents: int = Field(
        2000, ge=0, description="drawn from the corpus, beside what the queries need"
    )
    bm25: int = Field(
        10, ge=0, description="each query's best by BM25, so that finding the right one is not easy"
    )
    measure: str = Field("RR@10", description="any measure of `isthmus evaluate`")
    every: Steps = Field(
        0.1,
        description="steps between two evaluations; below 1: a share of all steps, and "
        f"{SHORTEST} at least",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="evaluations without a better measure before training stops; null: never",
    )


class MergeSettings(Settings):
    """How much of the trained weights the average holds."""

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="of the trained weights; null: the largest, up to max_share, with which "
        "held-out documents move by at most max_change, or none where queries drawn from them lose",
    )
    max_share: float = Field(0.5, gt=0, le=1, description="the largest that is tried")
    max_change: float = Field(
        0.01,
        ge=0,
        description="1 - the mean cosine of documents to their vectors before training, over that "
        "of two different documents: 0 is no change, 1 as far away as another document",
    )


class PseudoQuerySettings(Settings):
    """Which sources queries are drawn from, how many, and which documents are left out."""

    sources: dict[str, Any] = Field(min_length=1, description="NAME: {share}; null leaves one out")
    per_document: int | None = Field(
        None, ge=1, description="null: as many as training takes, at most 8"
    )
    held_out: int = Field(
        HELD_OUT_DOCUMENTS,
        ge=1,
        description="documents not trained on, at most a tenth: the split dev",
    )


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
