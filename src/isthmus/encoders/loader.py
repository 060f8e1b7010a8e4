"""An encoder from wherever it lies: a run of isthmus, sentence-transformers, or any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.config.model_files import check_path, damaged, model_file, read_model_json
from isthmus.config.models import model_folder, named_at
from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import SETTINGS_FILE
from isthmus.encoders.int8 import use_int8
from isthmus.encoders.query_side import QuerySide
from isthmus.encoders.query_terms import QUERY_TERMS_FILE, QueryTerms
from isthmus.encoders.quick import quick_encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings, query_digest
from isthmus.errors import InputError, choices
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import load_classifier
from isthmus.progress import notice
from isthmus.text.tokenizer import Tokenizer

_MODULES = "modules.json"
_LENGTHS = {
    "sentence_bert_config.json": "max_seq_length",
    "tokenizer_config.json": "model_max_length",
}
_KINDS: dict[str, type[DenseSettings | SparseSettings]] = {
    "dense": DenseSettings,
    "sparse": SparseSettings,
}


def load_encoder(
    name: str, settings: DenseSettings | SparseSettings | None = None, exact: bool = False
) -> DenseEncoder | SparseEncoder:
    """The encoder of a run, folder or hub name, ready for fast inference.

    Exact: in float32, whatever would be fastest. Settings given here replace those that lie beside
    the model; a plain model without any gets the defaults of a dense encoder, and a notice.
    """
    encoder = _load(name, settings)
    encoder.use_fast_inference(exact)
    return encoder


def load_query_encoder(
    name: str, fingerprint: str, exact: bool = False
) -> DenseEncoder | SparseEncoder | QuerySide:
    """An encoder for the queries of an index that one of this fingerprint filled.

    Where no transformer reads queries, none is loaded, and none need be there; unless the weights
    beside the query terms are not those they were saved with.
    """
    folder = model_folder(name)
    own = read_model_json(folder, SETTINGS_FILE, dict) or {}
    file = model_file(folder, QUERY_TERMS_FILE)
    if own.pop("kind", None) == SparseEncoder.kind and own.get("query") == "terms" and file:
        settings = SparseSettings.parse(own, where=f"{folder}/{SETTINGS_FILE}")
        tokenizer = Tokenizer.load(folder)
        terms, saved_with = QueryTerms.load(file)
        fits = tokenizer.rows <= len(terms.theta)
        if fits and saved_with == f"{query_digest(terms, tokenizer, settings)} {fingerprint}":
            return QuerySide(name, fingerprint, terms, tokenizer, settings)
    stored = stored_settings(name)
    quick = None
    if isinstance(stored, DenseSettings):
        quick = quick_encoder(name, folder, stored, fingerprint)
    if quick is None:
        return load_encoder(name, stored, exact)
    quick.whole = lambda: load_encoder(name, stored, exact)
    quick.use_fast_inference(exact)
    return quick


def load_int8_encoder(
    name: str, settings: DenseSettings | SparseSettings | None = None
) -> DenseEncoder | SparseEncoder:
    """The encoder `load_encoder` gives, in 8-bit integers on the CPU (needs the extra `onnx`).

    Its fingerprint is the same: its vectors are near enough to be searched with the others.
    """
    encoder = _load(name, settings)
    use_int8(encoder)
    return encoder


def _load(
    name: str, settings: DenseSettings | SparseSettings | None
) -> DenseEncoder | SparseEncoder:
    folder = model_folder(name)
    settings = settings or stored_settings(name)
    tokenizer = Tokenizer.load(folder)
    backbone = Backbone.load(folder, attention="sdpa")
    encoder: DenseEncoder | SparseEncoder
    if isinstance(settings, DenseSettings):
        encoder = DenseEncoder(backbone, tokenizer, settings, name)
    else:
        encoder = SparseEncoder(backbone, tokenizer, settings, name)
        if encoder.query_terms is not None:
            file = model_file(folder, QUERY_TERMS_FILE)
            encoder.query_terms.restore(Path(folder) if file is None else file.parent)
    return encoder


def load_cross_encoder(
    name: str, settings: CrossSettings | None = None, where: str = "--model"
) -> CrossEncoder:
    """The re-ranker of a run, folder or hub name, ready for fast inference.

    Any sequence classifier with one label is one, and so a CrossEncoder of sentence-transformers
    that has no other module; scores are its logits, whatever it puts on top. Settings given here
    replace those beside it. `where` is what errors about the name point to.
    """
    with named_at(where, "the folder of a re-ranker that is here: isthmus finetune trains one"):
        encoder = _cross_encoder(name, model_folder(name, where), settings)
    encoder.use_fast_inference()
    return encoder


def _cross_encoder(name: str, folder: str, settings: CrossSettings | None) -> CrossEncoder:
    own = read_model_json(folder, SETTINGS_FILE, dict) or {}
    known = own.pop("kind", None) == CrossEncoder.kind
    if not known:
        _check_modules(folder)
    tokenizer = Tokenizer.load(folder)
    backbone = load_classifier(folder, attention="sdpa")
    if settings is None and known:
        settings = CrossSettings.parse(own, where=f"{folder}/{SETTINGS_FILE}")
    elif settings is None:
        # As sentence-transformers cuts pairs: what is longer than one half gives way first.
        length = min(_stated_length(folder) or backbone.positions, backbone.positions)
        halves = {"query_max_length": length // 2, "document_max_length": length - length // 2}
        settings = CrossSettings.parse(halves, where=folder)
    return CrossEncoder(backbone, tokenizer, settings, name)


def _check_modules(folder: str) -> None:
    """Refuses a CrossEncoder of sentence-transformers whose score a classifier does not give."""
    kinds = [kind for kind, _ in _modules(folder) or ()]
    if _stated(folder).get("model_type") == "CrossEncoder" and kinds != ["Transformer"]:
        raise InputError(
            f"the CrossEncoder has the modules {', '.join(kinds)}",
            where=f"{folder}/{_MODULES}",
            allowed="Transformer alone: a sequence classifier with one label",
            remedy="choose another re-ranker, or give a file of its scores to learn from",
        )


def stored_settings(name: str) -> DenseSettings | SparseSettings:
    """How the model of this name is meant to encode, as far as the files beside it tell."""
    known = known_settings(name)
    if known is not None:
        return known
    settings = DenseSettings()
    notice(
        f"{name}: nothing beside the model says how to pool; using {settings.pooling} and "
        f"{settings.similarity}"
    )
    return settings


def known_settings(name: str) -> DenseSettings | SparseSettings | None:
    """The settings that lie beside a model; None for a plain one."""
    folder = model_folder(name)
    own = read_model_json(folder, SETTINGS_FILE, dict)
    if own is not None:
        where = f"{folder}/{SETTINGS_FILE}"
        kind = own.pop("kind", "dense")  # which the first encoders, all dense, did not say
        if kind == CrossEncoder.kind:
            raise InputError(
                f"{name!r} is a cross-encoder, which scores pairs and gives no vectors",
                where=where,
                allowed=", ".join(_KINDS),
                remedy="re-rank with it (isthmus search INDEX --rerank MODEL), learn from it "
                "(teacher), or choose a dense or sparse encoder",
            )
        if not isinstance(kind, str) or kind not in _KINDS:
            raise InputError(
                f"the encoder is of the kind {kind!r}",
                where=where,
                allowed=choices(str(kind), _KINDS),
                remedy="update isthmus if a later version wrote it, or correct the file",
            )
        return _KINDS[kind].parse(own, where=where)
    modules = _modules(folder)
    return None if modules is None else _from_sentence_transformers(folder, modules)


def _from_sentence_transformers(
    folder: str, modules: list[tuple[str, str]]
) -> DenseSettings | SparseSettings:
    kinds = [kind for kind, _ in modules]
    if kinds[1:] == ["SpladePooling"] and kinds[0] in ("MLMTransformer", "Transformer"):
        return _splade(folder, modules[1][1])
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"}:
        raise InputError(
            f"the sentence-transformers model has the modules {', '.join(kinds)}",
            where=f"{folder}/{_MODULES}",
            allowed="Transformer, Pooling and, if need be, Normalize; or MLMTransformer and "
            "SpladePooling",
            remedy="choose a model of these modules, or fine-tune its backbone here",
        )
    file = f"{modules[1][1]}/config.json"
    pooling = read_model_json(folder, file, dict) or {}
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value]
    known = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    if pooling.get("pooling_mode") in ("cls", "mean"):  # version 6 spells it as one word
        chosen = pooling["pooling_mode"]
    elif len(modes) == 1 and modes[0] in known:
        chosen = known[modes[0]]
    else:
        raise InputError(
            f"the model pools by {', '.join(modes) or pooling}",
            where=f"{folder}/{file}",
            allowed="cls or mean",
            remedy="choose a model that pools in one of these ways",
        )
    length = _max_length(folder)
    stated = _stated(folder).get("similarity_fn_name")
    similarity = "cosine" if "Normalize" in kinds or stated == "cosine" else "dot"
    return DenseSettings.parse(
        {
            "pooling": chosen,
            "similarity": similarity,
            "query_max_length": length,
            "document_max_length": length,
        },
        where=folder,
    )


def _splade(folder: str, path: str) -> SparseSettings:
    pooling = read_model_json(folder, f"{path}/config.json", dict) or {}
    how = tuple(pooling.get(key) for key in ("pooling_strategy", "activation_function"))
    if how not in (("max", "relu"), ("max", None)):
        raise InputError(
            f"the model pools terms by {how[0]} of {how[1]}",
            where=f"{folder}/{path}/config.json",
            allowed="pooling_strategy max, activation_function relu",
            remedy="choose a model that weighs terms in this way, or fine-tune its backbone here",
        )
    length, terms = _max_length(folder), _stated(folder).get("max_active_dims")
    return SparseSettings.parse(
        {
            "query_terms": terms,
            "document_terms": terms,
            "query_max_length": length,
            "document_max_length": length,
        },
        where=folder,
    )


def _modules(folder: str) -> list[tuple[str, str]] | None:
    """The modules of a sentence-transformers model, each with its path; None for other models."""
    listed = read_model_json(folder, _MODULES, list)
    if listed is None:
        return None
    found = []
    for module in listed:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str):
            raise damaged(folder, _MODULES, f"{module!r:.60} is no module with a type")
        path = module.get("path", "")
        check_path(folder, _MODULES, path)
        found.append((kind.rpartition(".")[2], path))
    return found


def _stated(folder: str) -> dict[str, Any]:
    file = "config_sentence_transformers.json"
    stated = read_model_json(folder, file, dict) or {}
    prompts = stated.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise damaged(folder, file, f"prompts = {prompts!r:.60}")
    if any(prompts.values()):
        notice(f"{folder}: its prompts are not used; put them before the texts yourself")
    return stated


def _max_length(folder: str) -> int:
    return _stated_length(folder) or 256


def _stated_length(folder: str) -> int | None:
    # Version 6 keeps it with the tokenizer, which without one states a number beyond all lengths.
    for file, key in _LENGTHS.items():
        stated = (read_model_json(folder, file, dict) or {}).get(key)
        if stated and (type(stated) not in (int, float) or not 0 < stated <= float("inf")):
            raise damaged(folder, file, f"{key} = {stated!r:.60}")
        if stated:
            return int(stated) if stated < 1_000_000 else None
    return None
