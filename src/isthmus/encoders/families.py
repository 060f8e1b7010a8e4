"""Families of models whose way of encoding is known from their papers and model cards.

Their files often leave it out: E5's do not hold its prompts, a plain folder of GTE not its pooling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Family:
    """Models that encode alike: what their names look like, and settings that hold for them."""

    title: str
    names: str  # a regular expression of the last part of a name
    settings: Mapping[str, Any]
    prompts: Mapping[str, str] = field(default_factory=dict)
    kind: str = "dense"
    architecture: str | None = None  # a class in config.json that only this family has
    max_length: int = 512
    modules: str = ""  # after pooling, whose weights only sentence-transformers' layout holds


def _dense(pooling: str, similarity: str) -> dict[str, Any]:
    return {"pooling": pooling, "similarity": similarity}


FAMILIES = (
    Family(
        "E5",
        r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?",
        _dense("mean", "cosine"),
        {"query_prompt": "query: ", "document_prompt": "passage: "},
    ),
    Family(
        "E5 with instructions",
        r"multilingual-e5-large-instruct",
        _dense("mean", "cosine"),
        {"query_prompt": f"Instruct: {_WEB_SEARCH}\nQuery: "},
    ),
    Family(
        "BGE",
        r"bge-(small|base|large)-en(-v1\.5)?",
        _dense("cls", "cosine"),
        {"query_prompt": "Represent this sentence for searching relevant passages: "},
    ),
    Family(
        "BGE for Chinese",
        r"bge-(small|base|large)-zh(-v1\.5)?",
        _dense("cls", "cosine"),
        {"query_prompt": "为这个句子生成表示以用于检索相关文章："},
    ),
    Family("BGE-M3", r"bge-m3", _dense("cls", "cosine"), max_length=8192),
    Family("GTE", r"gte-(small|base|large)", _dense("mean", "cosine")),
    Family("GTE", r"gte-modernbert-base", _dense("cls", "cosine"), max_length=8192),
    Family(
        "GTR",
        r"gtr-t5-(base|large|xl|xxl)",
        _dense("mean", "cosine"),
        modules="Dense",
    ),
    Family(
        "Sentence-T5",
        r"sentence-t5-(base|large|xl|xxl)",
        _dense("mean", "cosine"),
        max_length=256,
        modules="Dense",
    ),
    Family(
        "Contriever",
        r"m?contriever(-msmarco)?",
        _dense("mean", "dot"),
        architecture="Contriever",
    ),
    Family(
        "SPLADE",
        r"splade-v3(-distilbert)?|splade-cocondenser-(self|ensemble)distil|splade_v2_(max|distil)"
        r"|splade_pp_en_v[12]",
        {},
        kind="sparse",
        max_length=256,
    ),
    Family(
        "OpenSearch's sparse encoders",
        r"opensearch-neural-sparse-encoding-(v1|v2-distill)",
        {},
        kind="sparse",
    ),
    Family(
        "OpenSearch's sparse encoders of documents",
        r"opensearch-neural-sparse-encoding-doc-(v1|v2-distill|v2-mini)",
        {"query": "terms"},
        kind="sparse",
    ),
    Family(
        "OpenSearch's sparse encoders of documents",
        r"opensearch-neural-sparse-encoding-doc-v3-distill",
        {"query": "terms", "activation": "log1p_relu"},
        kind="sparse",
    ),
)


def family_of(name: str, folder: str, config: Mapping[str, Any]) -> tuple[Family, str] | None:
    """The family of a model and how it was recognised; None where that is not certain.

    `config` is that of transformers: of the class it names, and of the name it was made from.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if family.architecture is not None and architectures == [family.architecture]:
            return family, f"its architecture {family.architecture}"
    origin = config.get("_name_or_path")
    for found in _names(name, folder, origin if isinstance(origin, str) else ""):
        for family in FAMILIES:
            if re.fullmatch(family.names, found, re.IGNORECASE):
                return family, f"the name {found}"
    return None


def _names(*paths: str) -> Iterator[str]:
    """The last part of each path, and of the name that a folder of the hub's cache stands for."""
    for path in filter(None, paths):
        parts = Path(path).parts
        yield from (part.rpartition("--")[2] for part in parts if part.startswith("models--"))
        yield from parts[-1:]
