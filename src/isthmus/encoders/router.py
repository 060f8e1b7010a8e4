"""An encoder with weights of query terms as sentence-transformers has it: a router of two sides."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from isthmus.config.model_files import check_path, damaged, model_file, read_model_json
from isthmus.config.output import write_json
from isthmus.encoders.query_terms import QUERY_TERMS_FILE, QueryTerms
from isthmus.errors import InputError
from isthmus.text.tokenizer import Tokenizer

ROUTER = "router_config.json"
_TERMS = ("SparseStaticEmbedding", "IDF")  # which versions before 5.0 called it
_WEIGHTS = "model.safetensors"
_IDF = "idf.json"
_SAMPLE = "The naïve fox's (re-)view of Straße 42: 字, [UNK]!"
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
    write_json(folder / ROUTER, router)
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


class Routes(NamedTuple):
    """The places of a router's modules inside the folder of its model."""

    terms: str
    transformer: str
    pooling: str


def routes(folder: str) -> Routes | None:
    """Where weights of query terms, transformer and pooling lie; None where there is no router."""
    about = read_model_json(folder, ROUTER, dict)
    if about is None:
        return None
    types, structure = about.get("types"), about.get("structure")
    try:
        assert isinstance(types, dict)
        assert isinstance(structure, dict)
        sides = {side: [(str(types[one]).rpartition(".")[2], one) for one in structure[side]]
                 for side in ("query", "document")}  # fmt: skip
    except (AssertionError, KeyError, TypeError):
        raise damaged(folder, ROUTER, "it does not say how queries and documents go") from None
    kinds = {side: [kind for kind, _ in found] for side, found in sides.items()}
    fits = kinds["query"][:1] in ([kind] for kind in _TERMS) and len(kinds["query"]) == 1
    if not fits or kinds["document"] not in (
        ["MLMTransformer", "SpladePooling"],
        ["Transformer", "SpladePooling"],
    ):
        shown = "; ".join(f"{side}: {', '.join(found)}" for side, found in kinds.items())
        raise InputError(
            f"{folder}/{ROUTER}: a Router with these modules cannot be loaded ({shown})",
            "choose one with SparseStaticEmbedding for queries and MLMTransformer, SpladePooling "
            "for documents, or fine-tune one here (sparse.query=terms)",
        )
    paths = [path for side in sides.values() for _, path in side]
    for path in paths:
        check_path(folder, ROUTER, path)
    terms, transformer, pooling = paths
    return Routes(terms, "" if transformer == "." else transformer, pooling)


def transformer_folder(folder: str) -> str:
    """The folder that holds the transformer of a model: its own, but for a router's."""
    found = routes(folder)
    if found is None or not found.transformer:
        return folder
    model_file(folder, f"{found.transformer}/config.json")  # refused where it leads out of it
    return f"{folder}/{found.transformer}"


def load_query_terms(terms: QueryTerms, tokenizer: Tokenizer, folder: str) -> bool:
    """Gives query terms the weights that lie in a folder; False where there are none."""
    if (file := model_file(folder, QUERY_TERMS_FILE)) is not None:
        terms.restore(file.parent)
        return True
    found = routes(folder)
    if found is None:
        return _take_idf(terms, tokenizer, folder)
    name = f"{found.terms}/{_WEIGHTS}"
    file = model_file(folder, name)
    try:
        weights = load_file(file)["weight"].float() if file is not None else torch.empty(0)
    except (OSError, KeyError, SafetensorError) as error:
        raise damaged(folder, name, str(error)) from None
    wanted = terms.theta.shape
    if weights.shape != wanted or not weights.isfinite().all() or (weights < 0).any():
        why = f"it does not hold {wanted[0]:,} weights of 0 or more, one for each term"
        raise damaged(folder, name, why)
    _check_tokenizer(tokenizer, folder, found.terms)
    terms.take(weights)
    return True


def _take_idf(terms: QueryTerms, tokenizer: Tokenizer, folder: str) -> bool:
    """Gives query terms the weights by token of an OpenSearch model; False where it has none."""
    stated = read_model_json(folder, _IDF, dict)
    if stated is None:
        return False
    vocabulary = tokenizer.backend.get_vocab()
    weights = torch.zeros_like(terms.theta)  # of tokens that are not listed
    for token, weight in stated.items():
        number = vocabulary.get(token, len(weights))
        known = number < len(weights) and type(weight) in (int, float)
        if not known or not 0 <= weight < math.inf:
            raise damaged(folder, _IDF, f"{token!r:.40}: {weight!r:.40} is no weight of a token")
        weights[number] = weight
    terms.take(weights)
    return True


def _check_tokenizer(tokenizer: Tokenizer, folder: str, path: str) -> None:
    """Refuses a router whose sides split texts into other terms."""
    if not (Path(folder) / path).is_dir():
        return  # a hub name, whose files are those of one release
    other = Tokenizer.load(f"{folder}/{path}")
    same = other.encode([_SAMPLE], 99) == tokenizer.encode([_SAMPLE], 99)
    if not same or other.backend.get_vocab() != tokenizer.backend.get_vocab():
        raise damaged(folder, path, "queries are split into other terms than documents")
