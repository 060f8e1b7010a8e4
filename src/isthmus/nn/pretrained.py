"""What loading any model of transformers has in common: options, silence, errors that explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from isthmus.config.hub import check_hub
from isthmus.errors import InputError
from isthmus.nn.attention import Attention, attention_name

_DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout",
    "embedding_dropout", "mlp_dropout", "classifier_dropout",
)  # fmt: skip


def loading_options(config: Any, attention: Attention | None) -> dict[str, Any]:
    """What `from_pretrained` is told; `attention`: by default, what trains faster here."""
    fused = (attention or _training_attention()) == "sdpa"
    return {
        "config": config,
        "dtype": torch.float32,
        "use_safetensors": True,
        # None: fused where the architecture has it (MPNet has not), else plain products.
        "attn_implementation": None if fused else attention_name("eager"),
    }


def read_config(name: str) -> Any:
    """The configuration of a model, which is little to read where its weights are much."""
    from transformers import AutoConfig

    with quiet(), explained(name):
        return AutoConfig.from_pretrained(name)


def load_seeded(
    model_class: Any, name: str, options: dict[str, Any], seed: int
) -> tuple[Any, set[str]]:
    """A model, and the names of the weights its checkpoint lacks, which are drawn by `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, report = model_class.from_pretrained(name, output_loading_info=True, **options)
    return model, set(report["missing_keys"])


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


class explained:  # noqa: N801
    """Turns the many ways a model cannot be loaded into one InputError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        folder = Path(self.name)
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise InputError(
                f"{self.name!r} is a folder without a model: it has no config.json",
                where=self.name,
                allowed="a folder written by save_pretrained, a run of isthmus, or a hub name",
                remedy="check the path; of a run, its folder `final`",
            )
        check_hub(self.name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError | SafetensorError):
            raise InputError(
                f"the model {self.name!r} cannot be loaded: {str(error).splitlines()[0]}",
                where=self.name,
                allowed="a folder or hub name with config.json and safetensors weights",
                remedy="check the name and the network; convert pickled weights to safetensors",
            ) from error
