"""What a folder of sentence-transformers says: its modules, their settings, prompts and lengths."""

from __future__ import annotations

from typing import Any

from isthmus.config.model_files import check_path, damaged, read_model_json
from isthmus.encoders.dense import POOLING_MODES, DenseSettings
from isthmus.encoders.router import ROUTER, routes, transformer_folder
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError
from isthmus.progress import notice

MODULES = "modules.json"
_STATED = "config_sentence_transformers.json"
_LENGTHS = {
    "sentence_bert_config.json": "max_seq_length",
    "tokenizer_config.json": "model_max_length",
}
# Those whose positions begin after the padding's.
_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")
_MODES: dict[str, str] = {mode: mode for mode in POOLING_MODES.values()}
_MODES["mean_sqrt_len_tokens"] = "mean_sqrt_len"
_AFTER_POOLING = {"Dense", "LayerNorm", "Normalize"}
# The names of prompts for each side, the first one that is there counts.
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")


def modules(folder: str) -> list[tuple[str, str]] | None:
    """The modules of a sentence-transformers model, each with its path; None for other models."""
    listed = read_model_json(folder, MODULES, list)
    if listed is None:
        return None
    found = []
    for module in listed:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str):
            raise damaged(folder, MODULES, f"{module!r:.60} is no module with a type")
        path = module.get("path", "")
        check_path(folder, MODULES, path)
        found.append((kind.rpartition(".")[2], path))
    return found


def stated(folder: str) -> dict[str, Any]:
    """What sentence-transformers keeps about the whole model."""
    return read_model_json(folder, _STATED, dict) or {}


def stated_length(folder: str) -> int | None:
    """The longest text in tokens, as far as files of the model tell."""
    # Version 6 keeps it with the tokenizer, which without one states a number beyond all lengths.
    for file, key in _LENGTHS.items():
        found = (read_model_json(folder, file, dict) or {}).get(key)
        if found and (type(found) not in (int, float) or not 0 < found <= float("inf")):
            raise damaged(folder, file, f"{key} = {found!r:.60}")
        if found:
            return int(found) if found < 1_000_000 else None
    return None


def positions(folder: str) -> int | None:
    """The number of positions that a model has for tokens, as far as its configuration tells."""
    config = read_model_json(folder, "config.json", dict) or {}
    longest = config.get("max_position_embeddings")
    return longest - 2 * (config.get("model_type") in _OFFSET) if type(longest) is int else None


def prompts(folder: str) -> dict[str, str]:
    """The prompts that a model states, as settings; empty where it states none for a side.

    Those named for a side are that side's alone. Where there are none of these, the default prompt
    is put before queries and documents, as `SentenceTransformer.encode` does.
    """
    about = stated(folder)
    named = about.get("prompts") or {}
    if not isinstance(named, dict) or not all(isinstance(text, str) for text in named.values()):
        raise damaged(folder, _STATED, f"prompts = {named!r:.60}")
    sides: dict[str, str] = {
        "query_prompt": _first(named, _QUERY_PROMPTS),
        "document_prompt": _first(named, _DOCUMENT_PROMPTS),
    }
    default = about.get("default_prompt_name")
    if default is not None and default not in named:
        raise damaged(folder, _STATED, f"default_prompt_name = {default!r:.60} is not a prompt")
    if default is not None and not any(sides.values()):
        sides = dict.fromkeys(sides, str(named[default]))
    others = [name for name in named if named[name] and named[name] not in sides.values()]
    if others and not any(sides.values()):
        notice(
            f"{folder}: its prompts are for tasks ({', '.join(others)}), and none is used; "
            "--set query_prompt=… and document_prompt=… choose one"
        )
    return {side: prompt for side, prompt in sides.items() if prompt}


def _first(named: dict[str, str], names: tuple[str, ...]) -> str:
    return next((named[name] for name in names if named.get(name)), "")


def from_modules(folder: str, listed: list[tuple[str, str]]) -> DenseSettings | SparseSettings:
    """How a model of these modules encodes, without its prompts."""
    kinds = [kind for kind, _ in listed]
    if kinds == ["Router"]:
        return _routed(folder)
    if kinds[1:] == ["SpladePooling"] and kinds[0] in ("MLMTransformer", "Transformer"):
        return _splade(folder, listed[1][1], folder)
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - _AFTER_POOLING:
        raise InputError(
            f"{folder}/{MODULES}: a sentence-transformers model with the modules "
            f"{', '.join(kinds)} cannot be loaded",
            "choose another model, or fine-tune its backbone here",
            f"Transformer, Pooling and any of {', '.join(sorted(_AFTER_POOLING))}; MLMTransformer "
            "and SpladePooling; a Router of term weights for queries and these for documents",
        )
    length = stated_length(folder) or 256
    about = stated(folder).get("similarity_fn_name")
    if about not in (None, "cosine", "dot"):
        notice(f"{folder}: it compares vectors by {about!r:.40}; here, by dot")
    return DenseSettings.parse(
        {
            **_pooling(folder, f"{listed[1][1]}/config.json"),
            "similarity": "cosine" if kinds[-1] == "Normalize" or about == "cosine" else "dot",
            "truncate_dim": stated(folder).get("truncate_dim"),
            "query_max_length": length,
            "document_max_length": length,
        },
        where=folder,
    )


def projecting(folder: str) -> list[tuple[str, str]]:
    """The modules between pooling and the last Normalize, each with its path."""
    listed = modules(folder) or []
    after = listed[2:] if [kind for kind, _ in listed[:2]] == ["Transformer", "Pooling"] else []
    while after and after[-1][0] == "Normalize":  # which `similarity` stands for
        after.pop()
    return after


def _pooling(folder: str, file: str) -> dict[str, Any]:
    about = read_model_json(folder, file, dict) or {}
    modes: list[str] = [mode for key, mode in POOLING_MODES.items() if about.get(key)]
    if isinstance(mode := about.get("pooling_mode"), str):  # version 6 spells it as one word
        modes = [_MODES[mode]] if mode in _MODES else []
    included = about.get("include_prompt", True)
    if not isinstance(included, bool):
        raise damaged(folder, file, f"include_prompt = {included!r:.60}")
    if len(modes) != 1:
        raise InputError(
            f"{folder}/{file}: the model pools by {' and '.join(modes) or about}",
            "choose a model that pools in one of these ways",
            ", ".join(POOLING_MODES.values()),
        )
    return {"pooling": modes[0], "include_prompt": included}


def _routed(folder: str) -> SparseSettings:
    """How a model encodes whose queries are weights of terms: OpenSearch's, and those made here."""
    found = routes(folder)
    if found is None:
        raise damaged(folder, MODULES, f"there is a Router, and no {ROUTER}")
    settings = _splade(folder, found.pooling, transformer_folder(folder))
    longest = (read_model_json(folder, f"{found.terms}/tokenizer_config.json", dict) or {}).get(
        "model_max_length", settings.document_max_length
    )
    # There, a query is cut before special tokens stand around it.
    length = settings.document_max_length
    if isinstance(longest, int) and 2 <= longest < length:
        length = min(length, longest + 2)
    return settings.model_copy(update={"query": "terms", "query_max_length": length})


def _splade(folder: str, path: str, transformer: str) -> SparseSettings:
    pooling = read_model_json(folder, f"{path}/config.json", dict) or {}
    how = tuple(pooling.get(key) for key in ("pooling_strategy", "activation_function"))
    if how[0] not in ("max", "sum") or how[1] not in (None, "relu", "log1p_relu"):
        raise InputError(
            f"{folder}/{path}/config.json: the model pools terms by {how[0]} of {how[1]}",
            "choose a model that pools by max or sum of relu or log1p_relu, or fine-tune its "
            "backbone here",
        )
    length, terms = stated_length(transformer) or 256, stated(folder).get("max_active_dims")
    return SparseSettings.parse(
        {
            "activation": how[1] or "relu",
            "pooling_strategy": how[0],
            "query_terms": terms,
            "document_terms": terms,
            "query_max_length": length,
            "document_max_length": length,
        },
        where=folder,
    )
