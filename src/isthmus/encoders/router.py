"""An encoder with learned query terms as sentence-transformers reads it: a router of two sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from isthmus.config.output import write_json
from isthmus.encoders.query_terms import QueryTerms
from isthmus.text.tokenizer import Tokenizer

_QUERY, _MODEL, _POOLING = "query_0_SparseStaticEmbedding", ".", "document_1_SpladePooling"


def write_router(
    folder: Path,
    terms: QueryTerms,
    tokenizer: Tokenizer,
    query_max_length: int,
    pooling: Mapping[str, Any],
) -> None:
    """Describes beside a saved model, which stays where it is, how either side is encoded."""
    kinds = {_QUERY: "SparseStaticEmbedding", _MODEL: "MLMTransformer", _POOLING: "SpladePooling"}
    router = {
        "types": {
            path: f"sentence_transformers.sparse_encoder.models.{kind}"
            for path, kind in kinds.items()
        },
        "structure": {"query": [_QUERY], "document": [_MODEL, _POOLING]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    write_json(folder / "router_config.json", router)
    (folder / _POOLING).mkdir(exist_ok=True)
    write_json(folder / _POOLING / "config.json", pooling)
    query = folder / _QUERY
    query.mkdir(exist_ok=True)
    write_json(query / "config.json", {"frozen": False})
    weights = terms.weights().detach().clone()
    weights[torch.from_numpy(tokenizer.special_ids)] = 0.0
    save_file({"weight": weights}, query / "model.safetensors")
    tokenizer.save(query)
    # There, a query's tokens are cut without special ones among them.
    stated = query / "tokenizer_config.json"
    room = query_max_length - len(tokenizer.prefix) - len(tokenizer.suffix)
    described = json.loads(stated.read_text(encoding="utf-8"))
    write_json(stated, {**described, "model_max_length": room})
