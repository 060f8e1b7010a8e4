"""What loading any model of transformers has in common: options, silence, errors that explain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from isthmus.config.model_files import damaged, load_pretrained, loadable, model_file, shards
from isthmus.errors import InputError
from isthmus.nn.attention import Attention, attention_name

_DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout",
    "embedding_dropout", "mlp_dropout", "classifier_dropout",
)  # fmt: skip

_WEIGHTS = "model.safetensors"
# Sizes by the names that architectures give them.
_SIZES = {
    "hidden_size": ("hidden_size", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers"),
    "intermediate_size": ("intermediate_size", "hidden_dim"),
    "num_attention_heads": ("num_attention_heads", "n_heads"),
    "vocab_size": ("vocab_size",),
    "type_vocab_size": ("type_vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
}
_LARGEST = 1 << 28
_SHARED = 32  # layers that may share their weights, as ALBERT's do
_FRESH = 1 << 16  # parameters that a checkpoint need not hold


def loading_options(config: Any, attention: Attention | None) -> dict[str, Any]:
    """What `from_pretrained` is told; `attention`: by default, what trains faster here."""
    fused = (attention or _training_attention()) == "sdpa"
    return {
        "config": config,
        "dtype": torch.float32,
        # None: fused where the architecture has it (MPNet has not), else plain products.
        "attn_implementation": None if fused else attention_name("eager"),
    }


def read_config(name: str) -> Any:
    """The configuration of a model, which is little to read where its weights are much."""
    from transformers import AutoConfig

    with quiet(), explained(name):
        return load_pretrained(AutoConfig, name)


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
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    inner = "" if model is model.base_model else f"{model.base_model_prefix}."
    lost = sorted(key for key in missing - tied if key.startswith(inner) and "pooler." not in key)
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
    parameters, tensors = _stored(name)
    named = config.to_dict()
    sizes = {own: named[key] for own, keys in _SIZES.items() for key in keys if key in named}
    for key, value in sizes.items():
        if not isinstance(value, int) or not 0 < value <= _LARGEST:
            raise damaged(name, "config.json", f"{key} = {value!r:.40}")
    for key in (key for key in _DROPOUTS if named.get(key) is not None):
        if not isinstance(named[key], int | float) or not 0 <= named[key] < 1:
            raise damaged(name, "config.json", f"{key} = {named[key]!r:.40}")
    if named.get("chunk_size_feed_forward"):  # not every batch is a multiple of it
        raise damaged(name, "config.json", "chunk_size_feed_forward is not 0")
    width, layers = sizes.get("hidden_size", 1), sizes.get("num_hidden_layers", 1)
    rows = sizes.get("vocab_size", 1) + sizes.get("type_vocab_size", 1)
    described = width * (rows + layers * (4 * width + 2 * sizes.get("intermediate_size", 1)))
    if layers > max(tensors, 1) * _SHARED or described > (parameters + _FRESH) * _SHARED:
        raise damaged(
            name,
            "config.json",
            f"it describes {described:,} parameters in {layers:,} layers, and there are "
            f"{parameters:,} in {tensors:,} tensors",
        )


def _stored(name: str) -> tuple[int, int]:
    """The numbers and the tensors in the weights of a model, as their headers say."""
    found = 0, 0
    for file in shards(name) or [_WEIGHTS]:
        if (path := model_file(name, file)) is None:
            continue  # loading says that there is none
        try:
            with safe_open(path, "pt") as weights:
                shapes = [weights.get_slice(key).get_shape() for key in weights.keys()]  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise damaged(name, file, str(error)) from None
        found = found[0] + sum(map(math.prod, shapes)), found[1] + len(shapes)
    return found


def _training_attention() -> Attention:
    # On CPU the backward pass of torch's fused attention is slower than plain products: 44 against
    # 80 sequences/s for a 6-layer, 384-wide encoder in bf16 (benchmarks/cpu_attention.py).
    return "sdpa" if torch.cuda.is_available() else "eager"


def replace_dropout(config: Any, dropout: float | None) -> dict[str, float]:
    """Sets every dropout rate to one value, none to nothing; returns what was replaced."""
    if dropout is None:
        return {}
    own = {name: rate for name in _DROPOUTS if (rate := getattr(config, name, None)) is not None}
    set_values(config, dict.fromkeys(own, dropout))
    return own


def set_values(config: Any, values: dict[str, float]) -> None:
    """Sets these attributes of a configuration."""
    for name, value in values.items():
        setattr(config, name, value)


class quiet:  # noqa: N801 (reads as a statement)
    """Keeps transformers' loading report off the screen; what matters of it is said by a notice."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self.level = logging.get_verbosity()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self.level)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Refuses a folder without a model, and turns what else fails into one InputError."""
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(
            f"{name!r} is a folder without a model: it has no config.json",
            where=name,
            allowed="a folder written by save_pretrained, a run of isthmus, or a hub name",
            remedy="check the path; of a run, its folder `final`",
        )
    with loadable(name):
        yield
