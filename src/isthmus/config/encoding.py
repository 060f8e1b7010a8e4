"""How an encoder encodes, where its own files say nothing or something else, and with what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from isthmus.config.settings import Settings

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]
"""How the states of a text become its vector, by the names of sentence-transformers."""
Similarity = Literal["dot", "cosine"]
Backend = Literal["torch", "torch-float32", "onnx-int8"]


def _quoted(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError(
            "in YAML a colon makes a mapping of it, unless it stands in quotes inside those of the "
            "shell: 'query_prompt=\"query: \"'"
        )
    return value


Prompt = Annotated[str, BeforeValidator(_quoted)]
"""A text that is put before others."""


class EncodingSettings(Settings):
    """How documents become vectors; queries are always encoded by torch."""

    backend: Backend = Field(
        "torch",
        description="torch: in bf16 where the chip does; torch-float32: in full, queries too, as "
        "sentence-transformers does by default; onnx-int8: in 8-bit integers, for CPUs that are "
        "slow in bf16",
    )


class PromptSettings(Settings):
    """What is put before texts, and how much of a vector is kept; null: as the model says."""

    query_prompt: Prompt | None = Field(
        None, description='Text put before every query, such as "query: "; null: that of the model'
    )
    document_prompt: Prompt | None = Field(
        None,
        description='Text put before every document, such as "passage: "; null: that of the model',
    )
    include_prompt: bool | None = Field(
        None, description="Whether prompts are pooled with the text; null: as the model was made"
    )
    truncate_dim: int | None = Field(
        None,
        ge=1,
        description="Number of leading dimensions of a vector that are kept (Matryoshka); null: "
        "those of the model",
    )


class EncodingChoice(PromptSettings):
    """How a model encodes; null: as the files beside it say, or its family is known for."""

    encoder: Literal["dense", "sparse"] | None = Field(
        None, description="what a plain model is: dense, or sparse as SPLADE; null: as it says"
    )
    pooling: Pooling | None = Field(
        None, description="what becomes a text's vector; null: as the model says"
    )
    similarity: Similarity | None = Field(
        None, description="cosine: of vectors of length 1; null: as the model says"
    )
    query_max_length: int | None = Field(None, ge=4, description="null: as the model says")
    document_max_length: int | None = Field(None, ge=4, description="null: as the model says")

    def chosen(self) -> dict[str, Any]:
        """Those that are set, by name."""
        values = {name: getattr(self, name) for name in EncodingChoice.model_fields}
        return {name: value for name, value in values.items() if value is not None}


class SparseForm(Settings):
    """How a text becomes weighted terms."""

    form: Literal["splade", "lexmae"] = Field(
        "splade",
        description="Form of term weights; lexmae: positions of special tokens give no weight",
    )
    activation: Literal["relu", "log1p_relu"] = Field(
        "relu",
        description="Activation of term weights; log1p_relu: a second logarithm, as OpenSearch's "
        "models have",
    )
    pooling_strategy: Literal["max", "sum"] = Field(
        "max", description="Pooling of a term's weights over positions: the largest, or their sum"
    )
    query: Literal["encoder", "terms"] = Field(
        "encoder",
        description="Encoding of queries; terms: a trained weight per term, no transformer reads "
        "the query",
    )
    query_terms: int | None = Field(
        None, ge=1, description="Number of terms of a query that are kept, the heaviest; null: all"
    )
    document_terms: int | None = Field(
        None,
        ge=1,
        description="Number of terms of a document that are kept, the heaviest; null: all",
    )
