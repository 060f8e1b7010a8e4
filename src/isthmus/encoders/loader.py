"""An encoder from wherever it lies: a run of isthmus, sentence-transformers, or any model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Any

from isthmus.config.model_files import model_file, read_model_json
from isthmus.config.models import model_folder, named_at
from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import SETTINGS_FILE
from isthmus.encoders.int8 import Int8Model
from isthmus.encoders.layouts import layout_of, layout_projection, with_markers
from isthmus.encoders.light_dense import quick_encoder
from isthmus.encoders.model_settings import AnySettings, Meant, parsed, stored_settings
from isthmus.encoders.modules import MODULES, modules, projecting, prompts, stated, stated_length
from isthmus.encoders.multi_vector import MultiVectorEncoder, MultiVectorSettings
from isthmus.encoders.projection import load_projection
from isthmus.encoders.query_terms import QUERY_TERMS_FILE, QueryTerms
from isthmus.encoders.router import load_query_terms, transformer_folder
from isthmus.encoders.sparse import QuerySide, SparseEncoder, SparseSettings, query_digest
from isthmus.errors import InputError
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import load_classifier
from isthmus.progress import notice
from isthmus.text.tokenizer import Tokenizer

AnyEncoder = DenseEncoder | SparseEncoder | MultiVectorEncoder
Given = AnySettings | Mapping[str, Any] | None
"""How a model encodes: all settings, or only those that differ from what lies beside it."""
_LOADING = RLock()  # modules of transformers import each other: not in two threads at once


def load_encoder(name: str, settings: Given = None, exact: bool = False) -> AnyEncoder:
    """The encoder of a run, folder or hub name, ready for fast inference.

    Args:
        name: Output of a training, model folder, hub name or package:NAME.
        settings: Settings that replace those in the model's files; a mapping such as
            {"pooling": "mean"} replaces the named ones. A plain model without any gets those that
            its name tells, or the defaults of a dense encoder, with a notice.
        exact: Whether to compute in float32, whatever would be fastest here.

    Returns:
        An encoder with `encode`, `encode_queries`, `name` and `dimension`.

    """
    encoder = _load(name, settings)
    encoder.use_fast_inference(exact)
    return encoder


def load_indexed_encoder(
    name: str, settings: Mapping[str, Any], backend: str = "torch"
) -> AnyEncoder:
    """The encoder for more documents of an index, with the settings and the backend it keeps."""
    given = indexed_settings(name, settings)
    if backend == "onnx-int8":
        return load_int8_encoder(name, given)
    return load_encoder(name, given, exact=backend == "torch-float32")


def indexed_settings(name: str, settings: Mapping[str, Any]) -> AnySettings:
    """The settings that an index keeps of the encoder of this name."""
    return parsed(settings, name, "the encoder's settings in the index")


def load_query_encoder(
    name: str,
    fingerprint: str,
    exact: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> AnyEncoder | QuerySide:
    """An encoder for the queries of an index that one of this fingerprint filled.

    `settings` are those that the index keeps. Where no transformer reads queries, none is loaded,
    and none need be there; unless the weights beside the query terms are not those they were saved
    with.
    """
    folder = model_folder(name)
    own = dict(settings or read_model_json(folder, SETTINGS_FILE, dict) or {})
    file = model_file(folder, QUERY_TERMS_FILE)
    if own.pop("kind", None) == SparseEncoder.kind and own.get("query") == "terms" and file:
        read = SparseSettings.parse(own, where=f"{folder}/{SETTINGS_FILE}")
        with _LOADING:
            tokenizer = Tokenizer.load(folder)
        terms, saved_with = QueryTerms.load(file)
        fits = tokenizer.rows <= len(terms.theta)
        if fits and saved_with == f"{query_digest(terms, tokenizer, read)} {fingerprint}":
            return QuerySide(name, fingerprint, terms, tokenizer, read)
    indexed = _stored(name).settings if settings is None else indexed_settings(name, settings)
    quick = None
    if isinstance(indexed, DenseSettings):
        quick = quick_encoder(name, folder, indexed, fingerprint)
    if quick is None:
        return load_encoder(name, indexed, exact)
    quick.whole = lambda: load_encoder(name, indexed, exact)
    quick.use_fast_inference(exact)
    return quick


def load_int8_encoder(name: str, settings: Given = None) -> AnyEncoder:
    """The encoder `load_encoder` gives, in 8-bit integers on the CPU (needs the extra `onnx`).

    Its fingerprint is the same: its vectors are near enough to be searched with the others.
    """
    encoder = _load(name, settings)
    if isinstance(encoder, MultiVectorEncoder):
        raise InputError(
            f"encoding.backend=onnx-int8 gives one vector per text, and {name!r} one per token",
            "leave it out",
        )
    encoder.int8 = Int8Model(encoder)
    return encoder


def _load(name: str, given: Given) -> AnyEncoder:
    folder = model_folder(name)
    if isinstance(given, AnySettings):
        settings, assumed = given, ""
    else:
        settings, assumed = _stored(name, given)
    if isinstance(settings, MultiVectorSettings):
        return _multi_vector(name, folder, settings)
    place = transformer_folder(folder)
    with _LOADING:
        tokenizer = Tokenizer.load(place)
        backbone = Backbone.load(place, attention="sdpa")
    encoder: AnyEncoder
    if isinstance(settings, DenseSettings):
        projection = load_projection(folder, projecting(folder), backbone.dimension)
        encoder = DenseEncoder(backbone, tokenizer, settings, name, projection)
    else:
        encoder = SparseEncoder(backbone, tokenizer, settings, name)
        terms = encoder.query_terms
        if terms is not None and not load_query_terms(terms, tokenizer, folder):
            terms.restore(Path(folder))  # which says what is missing
    encoder.assumed = assumed
    return encoder


def _stored(name: str, given: Mapping[str, Any] | None = None) -> Meant:
    """How a model encodes, by files of which some are read by transformers."""
    with _LOADING:
        return stored_settings(name, given)


def _multi_vector(name: str, folder: str, settings: MultiVectorSettings) -> MultiVectorEncoder:
    layout = layout_of(folder)
    if layout is None:
        raise InputError(
            f"{name!r} has the settings of an encoder of a vector for each token, and is none",
            "choose a folder of sentence-transformers 6, PyLate or Stanford's ColBERT",
        )
    with _LOADING:
        tokenizer = with_markers(Tokenizer.load(folder), folder, layout)
        backbone = Backbone.load(folder, attention="sdpa")
    projection = layout_projection(folder, layout, backbone.dimension)
    encoder = MultiVectorEncoder(backbone, tokenizer, settings, name, projection)
    if read_model_json(folder, SETTINGS_FILE, dict) is None:
        notice(f"{name}: a multi-vector model as {layout} writes it: {encoder.summary()}")
    return encoder


def load_reranker(
    name: str, settings: CrossSettings | None = None, where: str = "--model", exact: bool = False
) -> CrossEncoder:
    """The re-ranker of a run, folder or hub name, ready for fast inference.

    Any sequence classifier with one label is one, and so a CrossEncoder of sentence-transformers
    that has no other module; scores are its logits, whatever it puts on top.

    Args:
        name: Output of a training, model folder or hub name.
        settings: Settings that replace those in the model's files.
        where: Option or argument that errors about the name point to.
        exact: Whether to compute in float32, whatever would be fastest here.

    Returns:
        A re-ranker with `score`, which takes pairs of a query and a text.

    """
    with named_at(where, "the folder of a re-ranker that is here: isthmus finetune trains one"):
        encoder = _cross_encoder(name, model_folder(name, where), settings)
    encoder.use_fast_inference(exact)
    return encoder


def _cross_encoder(name: str, folder: str, settings: CrossSettings | None) -> CrossEncoder:
    own = read_model_json(folder, SETTINGS_FILE, dict) or {}
    known = own.pop("kind", None) == CrossEncoder.kind
    if not known:
        _check_modules(folder)
        if prompts(folder):
            notice(f"{name}: its prompts are not used; put them before the texts yourself")
    with _LOADING:
        tokenizer = Tokenizer.load(folder)
        backbone = load_classifier(folder, attention="sdpa")
    if settings is None and known:
        settings = CrossSettings.parse(own, where=f"{folder}/{SETTINGS_FILE}")
    elif settings is None:
        # As sentence-transformers cuts pairs: what is longer than one half gives way first.
        length = min(stated_length(folder) or backbone.positions, backbone.positions)
        halves = {"query_max_length": length // 2, "document_max_length": length - length // 2}
        settings = CrossSettings.parse(halves, where=folder)
    return CrossEncoder(backbone, tokenizer, settings, name)


def _check_modules(folder: str) -> None:
    """Refuses a CrossEncoder of sentence-transformers whose score a classifier does not give."""
    kinds = [kind for kind, _ in modules(folder) or ()]
    if stated(folder).get("model_type") == "CrossEncoder" and kinds != ["Transformer"]:
        raise InputError(
            f"{folder}/{MODULES}: a CrossEncoder with the modules {', '.join(kinds)} cannot be "
            "loaded",
            "choose a re-ranker with the module Transformer alone, or distil a file of its scores",
        )
