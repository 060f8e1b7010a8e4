"""Folders of multi-vector models, as sentence-transformers 6, PyLate and Stanford's ColBERT write.

The three say differently what a token vector is, and of which tokens there is one. Where readers
of a layout differ, what counts is the library that writes it.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from isthmus.config.model_files import damaged, model_file, read_model_json, shards
from isthmus.encoders.modules import MODULES, modules, positions, stated, stated_length
from isthmus.encoders.multi_vector import LENGTHS, MultiVectorSettings
from isthmus.encoders.projection import Dense, Normalize, Projection, load_projection
from isthmus.errors import InputError
from isthmus.text.tokenizer import Tokenizer

Layout = Literal["sentence-transformers 6", "PyLate", "Stanford's ColBERT"]
_METADATA = "artifact.metadata"
_STATED = "config_sentence_transformers.json"
_WEIGHTS, _LINEAR = "model.safetensors", "linear.weight"
_OURS = {"Transformer", "Dense", "Normalize", "MultiVectorMask"}
_AUTHORS = ("sentence_transformers.", "pylate.")
_SAMPLE = "the naïve fox"
_PUNCTUATION = list(string.punctuation)
_OTHER_MODEL = "choose another model, or one vector per text: a dense encoder"


def layout_of(folder: str) -> Layout | None:
    """The layout of a multi-vector model; None for any other model."""
    about = stated(folder)
    kind = about.get("model_type")
    if kind == "MultiVectorEncoder":
        return "sentence-transformers 6"
    # A model that PyLate trained may still have the type of what it was made from, or none.
    if kind == "ColBERT" or "query_prefix" in about:
        return "PyLate"
    config = read_model_json(folder, "config.json", dict) or {}
    named = config.get("architectures")
    if kind is None and isinstance(named, list) and "HF_ColBERT" in named:
        return "Stanford's ColBERT"
    if not config and (pickles := sorted(Path(folder).glob("*.dnn"))):
        raise InputError(
            f"{pickles[0]} is a checkpoint of ColBERT's first version: a pickle, whose code is "
            "never run",
            "let colbert-ai write it again, as a folder: ColBERT(FILE, config).save(FOLDER)",
        )
    return None


def layout_settings(folder: str, layout: Layout) -> MultiVectorSettings:
    """How a model of this layout makes token vectors."""
    read = {
        "sentence-transformers 6": _native,
        "PyLate": _pylate,
        "Stanford's ColBERT": _stanford,
    }
    values, file = read[layout](folder)
    return MultiVectorSettings.parse(values, where=f"{folder}/{file}")


def layout_projection(folder: str, layout: Layout, width: int) -> Projection:
    """What turns states of a width into the token vectors of a model of this layout."""
    if layout == "Stanford's ColBERT":
        return _linear(folder, width)
    after = [one for one in _listed(folder, layout)[1:] if one[0] != "MultiVectorMask"]
    modules = load_projection(folder, after, width, tokens=True) or Projection()
    return Projection(*modules, Normalize()) if layout == "PyLate" else modules


def with_markers(tokenizer: Tokenizer, folder: str, layout: Layout) -> Tokenizer:
    """The tokenizer, which reads the markers of queries and documents as one token each.

    PyLate and Stanford's ColBERT put their ids behind the first token. Put before a text as text,
    they would be taken to pieces.
    """
    if layout == "sentence-transformers 6":
        return tokenizer
    markers = [prefix for prefix in _prefixes(folder, layout) if prefix]
    vocabulary = tokenizer.backend.get_vocab()
    for marker in markers:
        if marker not in vocabulary:
            raise InputError(
                f"{folder}: its texts begin with {marker!r}, which is no token of its tokenizer",
                "copy the complete folder of the model again: its tokenizer was saved with it",
            )
    from transformers import AddedToken

    added = [AddedToken(marker, normalized=False, special=True) for marker in markers]
    tokenizer.pretrained.add_special_tokens({"additional_special_tokens": added})
    marked = Tokenizer(tokenizer.pretrained)
    (bare,) = marked.split([_SAMPLE])
    for marker in markers:
        (found,) = marked.split([marker + _SAMPLE])
        if found.ids != [vocabulary[marker], *bare.ids] or len(marked.prefix) != 1:
            raise InputError(
                f"{folder}: its tokenizer reads a text otherwise after the marker {marker!r}",
                _OTHER_MODEL,
            )
    return marked


def _listed(folder: str, layout: Layout) -> list[tuple[str, str]]:
    """The modules of a model, each with its path; others than can be computed are refused."""
    listed = modules(folder)
    if listed is None:
        raise damaged(folder, MODULES, "there is none, and config_sentence_transformers.json is")
    raw = [module["type"] for module in read_model_json(folder, MODULES, list) or []]
    known = {"Transformer", "Dense"} if layout == "PyLate" else _OURS
    for place, (module, (kind, _)) in enumerate(zip(raw, listed, strict=True)):
        shown = kind if module.startswith(_AUTHORS) else module
        if shown not in known or (place == 0) != (kind == "Transformer"):
            raise InputError(
                f"{folder}/{MODULES}: a multi-vector model with the module {shown!r:.100} at "
                f"place {place} cannot be loaded",
                "choose another model; without its modules, vectors would be others",
                f"Transformer, then any of {', '.join(sorted(known - {'Transformer'}))}",
            )
    return listed


def _native(folder: str) -> tuple[dict[str, Any], str]:
    listed = _listed(folder, "sentence-transformers 6")
    about = read_model_json(folder, LENGTHS, dict) or {}
    _check_reading(folder, about)
    longest = _longest(folder)
    values: dict[str, Any] = {
        "query_max_length": _either(about.get("query_length"), longest),
        "document_max_length": _either(about.get("document_length"), longest),
        **_named_prompts(folder),
    }
    expansion = about.get("query_expansion")
    if expansion is not None:
        values |= _expansion(folder, expansion)
    masks = [path for kind, path in listed if kind == "MultiVectorMask"]
    if len(masks) > 1 or (expansion is not None and not masks):
        raise damaged(folder, MODULES, f"it has {len(masks)} modules MultiVectorMask")
    for path in masks:
        values |= _mask(folder, f"{path}/config.json")
    return values, LENGTHS


def _expansion(folder: str, expansion: object) -> dict[str, Any]:
    """How queries are filled up, and where they are cut if it says so."""
    known = {"strategy", "attend", "token", "length"}
    if not isinstance(expansion, dict) or set(expansion) - known:
        raise damaged(folder, LENGTHS, f"query_expansion = {expansion!r:.80}")
    strategy, length = expansion.get("strategy"), expansion.get("length")
    if strategy not in ("fixed", "min") or type(length) is not int:
        raise damaged(folder, LENGTHS, f"query_expansion = {expansion!r:.80}")
    values = {
        "query_expansion": length,
        "attend_to_expansion": expansion.get("attend", False),
        "expansion_token": expansion.get("token"),
    }
    fixed = strategy == "fixed"
    return {**values, "query_max_length": length} if fixed else values


def _mask(folder: str, file: str) -> dict[str, Any]:
    about = read_model_json(folder, file, dict) or {}
    if about.get("keep_only_token_ids") is not None:
        raise InputError(
            f"{folder}/{file}: MultiVectorMask keeps only some tokens (keep_only_token_ids), as "
            "models of images do",
            "choose a model of texts",
        )
    tasks = about.get("skiplist_tasks")
    if tasks is None:
        tasks = ["document"]
    words = about.get("skiplist_words")
    return {
        "skiplist_words": [] if words is None else words,
        "skiplist_tasks": [tasks] if isinstance(tasks, str) else tasks,
    }


def _check_reading(folder: str, about: Mapping[str, Any]) -> None:
    """Refuses ways of reading a text that are not those of a plain encoder."""
    ways = about.get("modality_config") or {}
    read = {"method": "forward", "method_output_name": "last_hidden_state"}
    plain = {
        "transformer_task": about.get("transformer_task") in (None, "feature-extraction"),
        "modality_config": ways in ({}, {"text": read}),
        "module_output_name": about.get("module_output_name") in (None, "token_embeddings"),
        "processing_kwargs": not about.get("processing_kwargs"),
        "do_lower_case": not about.get("do_lower_case"),
    }
    for key, usual in plain.items():
        if not usual:
            raise InputError(
                f"{folder}/{LENGTHS}: the module Transformer reads texts in a way of its own, "
                f"{key} = {about[key]!r:.80}",
                _OTHER_MODEL,
            )


def _pylate(folder: str) -> tuple[dict[str, Any], str]:
    _listed(folder, "PyLate")
    about = stated(folder)
    _check_reading(folder, read_model_json(folder, LENGTHS, dict) or {})
    query, document = _prefixes(folder, "PyLate")
    named = _named_prompts(folder)
    if not named and isinstance(default := about.get("default_prompt_name"), str):
        prompt = (about.get("prompts") or {}).get(default) or ""
        named = {"query_prompt": prompt, "document_prompt": prompt}
    expanded = about.get("do_query_expansion") is not False
    length = _either(about.get("query_length"), 32)
    return {
        "query_prompt": query + named.get("query_prompt", "").removeprefix(query),
        "document_prompt": document + named.get("document_prompt", "").removeprefix(document),
        "query_max_length": length,
        "document_max_length": _either(about.get("document_length"), 180),
        "query_expansion": length if expanded else None,
        "attend_to_expansion": expanded and _either(about.get("attend_to_expansion_tokens"), False),
        "skiplist_words": _pylate_skips(folder, _either(about.get("skiplist_words"), _PUNCTUATION)),
    }, _STATED


def _pylate_skips(folder: str, words: object) -> object:
    """The tokens that PyLate skips: those of the words, and the unknown token for unknown ones."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return words  # refused where settings are made of it
    pretrained = Tokenizer.load(folder).pretrained
    vocabulary, unknown = pretrained.get_vocab(), pretrained.unk_token
    lost = unknown is not None and any(word not in vocabulary for word in words)
    return [*words, unknown] if lost else words


def _stanford(folder: str) -> tuple[dict[str, Any], str]:
    about = read_model_json(folder, _METADATA, dict) or {}
    if about.get("interaction", "colbert") != "colbert":
        raise InputError(
            f"{folder}/{_METADATA}: the model's interaction is {about['interaction']!r:.40}",
            "choose a model whose scores are sums of the best matches (interaction colbert)",
        )
    query, document = _prefixes(folder, "Stanford's ColBERT")
    length = _either(about.get("query_maxlen"), 32)
    punctuation = _either(about.get("mask_punctuation"), True)
    return {
        "query_prompt": query,
        "document_prompt": document,
        "query_max_length": length,
        "document_max_length": _either(about.get("doc_maxlen"), 220),
        "query_expansion": length,
        "attend_to_expansion": _either(about.get("attend_to_mask_tokens"), False),
        "skiplist_words": _stanford_skips(folder, _PUNCTUATION if punctuation else ()),
    }, _METADATA


def _stanford_skips(folder: str, words: Sequence[str]) -> list[str]:
    """The tokens that Stanford's ColBERT skips: the first of each symbol, and padding anywhere."""
    tokenizer = Tokenizer.load(folder)
    ids = [encoding.ids[0] for encoding in tokenizer.split(list(words)) if encoding.ids]
    first, padding = map(tokenizer.backend.id_to_token, ids), tokenizer.pretrained.pad_token
    return list(dict.fromkeys([*first, *([] if padding is None else [padding])]))


def _prefixes(folder: str, layout: Layout) -> tuple[str, str]:
    """The marker of queries, and that of documents."""
    if layout == "PyLate":
        about, file = stated(folder), _STATED
        found = (about.get("query_prefix"), about.get("document_prefix"))
        given = tuple(map(_either, found, ("[Q] ", "[D] ")))
    else:
        about, file = read_model_json(folder, _METADATA, dict) or {}, _METADATA
        found = (about.get("query_token_id"), about.get("doc_token_id"))
        given = tuple(map(_either, found, ("[unused0]", "[unused1]")))
    for marker in given:
        if not isinstance(marker, str):
            raise damaged(folder, file, f"the marker {marker!r:.40} is no text")
    return given


def _named_prompts(folder: str) -> dict[str, str]:
    """The prompts named for queries and for documents."""
    named = stated(folder).get("prompts") or {}
    if not isinstance(named, dict) or not all(isinstance(one or "", str) for one in named.values()):
        raise damaged(folder, _STATED, f"prompts = {named!r:.60}")
    sides = {f"{side}_prompt": named.get(side) for side in ("query", "document")}
    return {side: prompt for side, prompt in sides.items() if prompt}


def _linear(folder: str, width: int) -> Projection:
    """The projection of Stanford's ColBERT, whose weights lie among those of the backbone."""
    files = shards(folder) or [_WEIGHTS]
    for name in files:
        file = model_file(folder, name)
        try:
            with safe_open(file, "pt") as opened:
                if _LINEAR not in opened.keys():  # noqa: SIM118
                    continue
                shape = opened.get_slice(_LINEAR).get_shape()
                stated_width = (read_model_json(folder, _METADATA, dict) or {}).get("dim")
                if len(shape) != 2 or shape[1] != width or stated_width not in (None, shape[0]):
                    why = f"{_LINEAR} has the shape {shape}, for states of {width:,} numbers"
                    raise damaged(folder, name, why)
                weight = opened.get_tensor(_LINEAR).float()
        except (OSError, SafetensorError) as error:
            raise damaged(folder, name, str(error)) from None
        if not weight.isfinite().all():
            raise damaged(folder, name, f"{_LINEAR} holds numbers that are not finite")
        return Projection(Dense({_LINEAR: weight}, "Identity", False), Normalize())
    raise damaged(folder, files[0], f"it lacks {_LINEAR}, the projection of token vectors")


def _longest(folder: str) -> int:
    """The longest text in tokens, where nothing is said of queries or documents."""
    known = [one for one in (stated_length(folder), positions(folder)) if one is not None]
    return min(known, default=512)


def _either(found: Any, default: Any) -> Any:
    return default if found is None else found
