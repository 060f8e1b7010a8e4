"""Loading any model of transformers: options, checks, silence, errors that explain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from isthmus.config.model_files import (
    damaged,
    load_pretrained,
    loadable,
    model_file,
    read_model_json,
    shards,
)
from isthmus.errors import InputError
from isthmus.nn.architectures import ARCHITECTURES, DROPOUTS, MASKED_LM, SIZES, head_modules
from isthmus.nn.attention import Attention, attention_name
from isthmus.progress import notice

_WEIGHTS = "model.safetensors"
_POOLER = "pooler_of_the_checkpoint"
_LARGEST = 1 << 28
_SHARED = 32  # layers that may share their weights, as ALBERT's do
_FRESH = 1 << 16  # parameters that a checkpoint need not hold


def loading_options(config: Any, attention: Attention | None) -> dict[str, Any]:
    """The options of `from_pretrained`; `attention`: by default, what trains faster here."""
    fused = (attention or _training_attention()) == "sdpa"
    known = ARCHITECTURES.get(config.model_type)
    # Ours would leave out what some architectures add: biases of positions, grouped queries, sinks.
    plain = attention_name("eager") if known is not None and known.packs else "eager"
    return {
        "config": config,
        "dtype": torch.float32,
        # None: fused where the architecture has it (MPNet has not), else plain products.
        "attn_implementation": None if fused else plain,
    }


def read_config(name: str) -> Any:
    """The configuration of a model, without its weights."""
    from transformers import AutoConfig

    with quiet(), explained(name):
        return load_pretrained(AutoConfig, name)


def load_masked_lm(
    name: str,
    head: Literal["add", "keep"],
    dropout: float | None,
    seed: int,
    attention: Attention | None,
) -> tuple[Any, dict[str, float]]:
    """The model of a folder or hub name, and the dropout rates that `dropout` replaced.

    Without a masked-LM head in the checkpoint, "add" gives it a fresh one, "keep" leaves the
    encoder alone. An architecture that has no such head at all is refused with "add".
    """
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForTextEncoding

    with quiet(), explained(name):
        config = load_pretrained(AutoConfig, name)
        if config.model_type not in ARCHITECTURES:
            raise InputError(
                f"{name!r} is a {config.model_type!r} model, which isthmus does not know",
                "choose an encoder of one of these architectures",
                ", ".join(sorted(ARCHITECTURES)),
            )
        own_dropout = replace_dropout(config, dropout)
        options = loading_options(config, attention)
        if config.model_type not in MASKED_LM:
            if head == "add":
                raise _no_masked_lm(name, config.model_type)
            # Of an encoder with a decoder, AutoModel would load both.
            return load_weights(AutoModelForTextEncoding, name, options)[0], own_dropout
        model, missing = load_seeded(AutoModelForMaskedLM, name, options, seed)
        without_head = _missing_head(model, missing)
        if without_head and head == "add" and not config.tie_word_embeddings:
            # Untied, the vocabulary's matrix would have to be learnt from noise.
            config.tie_word_embeddings = True
            model, _ = load_seeded(AutoModelForMaskedLM, name, options, seed)
        if without_head and head == "keep":
            model, missing = load_weights(AutoModel, name, options)
            _set_pooler_aside(model, missing)
    if without_head and head == "add":
        notice(
            f"{name}: no masked-LM head in this checkpoint; a new one, tied to the "
            "embeddings, starts untrained."
        )
        _start_as_identity(model)
    return model, own_dropout


def _no_masked_lm(name: str, kind: str) -> InputError:
    return InputError(
        f"{name!r} is a {kind!r} model, which has no masked-LM head",
        "fine-tune it as it is (isthmus finetune, isthmus adapt), or pre-train one of these "
        "architectures",
        ", ".join(MASKED_LM),
    )


def load_seeded(
    model_class: Any, name: str, options: dict[str, Any], seed: int
) -> tuple[Any, set[str]]:
    """A model, and the names of the weights its checkpoint lacks, which are drawn by `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return load_weights(model_class, name, options)


def load_weights(model_class: Any, name: str, options: dict[str, Any]) -> tuple[Any, set[str]]:
    """A model, and the names of the weights its checkpoint lacks; an encoder must be complete."""
    check_sizes(name, options["config"])
    # A configuration may name kernels of the hub for its attention: code from outside.
    options = {"attn_implementation": None, "use_safetensors": True, **options}
    model, report = load_pretrained(model_class, name, output_loading_info=True, **options)
    missing = set(report["missing_keys"])
    inner = "" if model is model.base_model else f"{model.base_model_prefix}."
    needed = missing - model.all_tied_weights_keys.keys()
    lost = sorted(key for key in needed if key.startswith(inner) and "pooler." not in key)
    if lost:
        raise damaged(name, _WEIGHTS, f"it lacks {', '.join(lost[:3])} ({len(lost)} weights)")
    for key, weight in model.state_dict().items():
        # A sum is faster than a test of every number, and seldom overflows.
        if not weight.sum().isfinite() and not weight.isfinite().all():
            raise damaged(name, _WEIGHTS, f"{key} holds numbers that are not finite")
    return model, missing


def check_sizes(name: str, config: Any) -> None:
    """Refuses a configuration that describes a far larger model than the weights there are.

    transformers allocates what a configuration says before it sees that the weights are others.
    """
    shapes = _stored(name).values()
    if not shapes and (folder := Path(name)).is_dir():
        pickled = sorted(file.name for file in folder.glob("*.bin"))
        raise InputError(
            f"the model folder {name!r} has no {_WEIGHTS}"
            + (f", only pickled weights ({', '.join(pickled[:3])})" if pickled else ""),
            f"convert them to {_WEIGHTS}" if pickled else f"copy {_WEIGHTS} there too",
        )
    parameters, tensors = sum(map(math.prod, shapes)), len(shapes)
    named = config.to_dict()
    sizes = {own: named[key] for own, keys in SIZES.items() for key in keys if key in named}
    for key, value in sizes.items():
        least = 0 if key == "type_vocab_size" else 1  # DeBERTa has none
        if not isinstance(value, int) or not least <= value <= _LARGEST:
            raise damaged(name, "config.json", f"{key} = {value!r:.40}")
    for key in (key for key in DROPOUTS if named.get(key) is not None):
        if not isinstance(named[key], int | float) or not 0 <= named[key] < 1:
            raise damaged(name, "config.json", f"{key} = {named[key]!r:.40}")
    if named.get("chunk_size_feed_forward"):  # not every batch is a multiple of it
        raise damaged(name, "config.json", "chunk_size_feed_forward is not 0")
    width, layers = sizes.get("hidden_size", 1), sizes.get("num_hidden_layers", 1)
    rows = sizes.get("vocab_size", 1) + sizes.get("type_vocab_size", 1)
    heads = sizes.get("num_attention_heads", 1)
    attended = heads * sizes["head_width"] if "head_width" in sizes else width
    described = width * (rows + layers * (4 * attended + 2 * sizes.get("intermediate_size", 1)))
    described += heads * sizes.get("relative_attention_num_buckets", 0)
    if layers > max(tensors, 1) * _SHARED or described > (parameters + _FRESH) * _SHARED:
        raise damaged(
            name,
            "config.json",
            f"it describes {described:,} parameters in {layers:,} layers, and there are "
            f"{parameters:,} in {tensors:,} tensors",
        )


def lacks_head(name: str) -> bool:
    """Whether a checkpoint has no weight of a masked-LM head, as the names of its weights tell."""
    config = read_model_json(name, "config.json", dict) or {}
    known, stored = ARCHITECTURES.get(str(config.get("model_type"))), _stored(name)
    if known is None or not stored:
        return False  # loading says what is wrong
    return not any(set(known.head).intersection(key.split(".")) for key in stored)


def _stored(name: str) -> dict[str, list[int]]:
    """The shapes of the weights of a model by their names, from the headers of its files."""
    found: dict[str, list[int]] = {}
    for file in shards(name) or [_WEIGHTS]:
        if (path := model_file(name, file)) is None:
            continue  # loading says that there is none
        try:
            with safe_open(path, "pt") as weights:
                found |= {key: weights.get_slice(key).get_shape() for key in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise damaged(name, file, str(error)) from None
    return found


def _training_attention() -> Attention:
    # On CPU the backward pass of torch's fused attention is slower than plain products: 44 against
    # 80 sequences/s for a 6-layer, 384-wide encoder in bf16.
    return "sdpa" if torch.cuda.is_available() else "eager"


def replace_dropout(config: Any, dropout: float | None) -> dict[str, float]:
    """Sets every dropout rate to `dropout`, unless that is None; returns the replaced rates."""
    if dropout is None:
        return {}
    own = {name: rate for name in DROPOUTS if (rate := getattr(config, name, None)) is not None}
    set_values(config, dict.fromkeys(own, dropout))
    return own


def set_values(config: Any, values: dict[str, float]) -> None:
    """Sets these attributes of a configuration."""
    for name, value in values.items():
        setattr(config, name, value)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' loading report off the screen; a notice says what matters of it."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Raises on a folder without a model, and turns any other failure into an InputError."""
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(
            f"{name!r} is a folder without a model: it has no config.json",
            "check the path; of a run, name its folder `final`",
        )
    with loadable(name):
        yield


def _missing_head(model: Any, missing: set[str]) -> bool:
    prefix = f"{model.base_model_prefix}."
    return any(not key.startswith(prefix) for key in missing - model.all_tied_weights_keys.keys())


def _start_as_identity(model: Any) -> None:
    # Tied to the embeddings, a head that changes nothing already makes sense of hidden states; a
    # random one first has to be learnt, and drags the encoder along while it is.
    for head in head_modules(model) or ():
        for module in head.modules():
            if isinstance(module, nn.Linear) and module.in_features == module.out_features:
                nn.init.eye_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _set_pooler_aside(model: Any, missing: set[str]) -> None:
    # No method here uses BERT's pooler, and a parameter without gradient breaks data parallelism.
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = None
        if not any(key.startswith("pooler.") for key in missing):
            setattr(model, _POOLER, (pooler,))  # in a tuple: none of its modules


@contextmanager
def with_pooler(model: Any) -> Iterator[None]:
    """Puts the pooler that a checkpoint came with back while it is saved, for AutoModel."""
    pooler = getattr(model, _POOLER, None)
    if pooler is None:
        yield
        return
    model.pooler = pooler[0]
    try:
        yield
    finally:
        model.pooler = None
