"""The files of a model folder or hub name, checked before they are used.

Everything that transformers loads goes through `load_pretrained`: code inside a model is never
run, no file outside its folder is opened, and what cannot be read is an InputError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from isthmus.config.models import check_hub
from isthmus.config.safe_names import inside
from isthmus.config.sealed_json import UnreadableError, parse_json, read_bounded
from isthmus.errors import InputError, IsthmusError
from isthmus.progress import waiting

_Shape = TypeVar("_Shape", dict[str, Any], list[Any])
_LARGEST_JSON = 1 << 26  # bytes; an index of shards of a very large model has a few megabytes
_TEMPLATES = "additional_chat_templates"  # the one folder that tokenizers look into
_ADAPTER = "adapter_config.json"
_SHARDS = "model.safetensors.index.json"
# Parts of a configuration for which transformers loads other libraries or kernels.
_FOREIGN = ("quantization_config", "compression_config", "fusion_config", "distributed_config")
_COUNTS = ("num_", "n_", "extra_ids", "offset")  # labels, layers, tokens
_MOST = 1 << 20
_COPY = "copy the whole folder of the model again"


def load_pretrained(kind: Any, name: str, part: str = "model", **options: Any) -> Any:
    """What a class of transformers loads from a folder or hub name, without running its code.

    `part` is what messages call it.
    """
    check_model(name)
    with waiting(f"loading the {part} {name}"), loadable(name, part):
        return kind.from_pretrained(name, trust_remote_code=False, **options)


def check_model(name: str) -> None:
    """Refuses files that cannot be read, and those that lead out of the folder of the model."""
    folder = Path(name)
    if folder.is_dir():
        for entry in (*folder.iterdir(), *(folder / _TEMPLATES).glob("*")):
            _check_inside(folder, entry)
    else:
        check_hub(name)
    if model_file(name, _ADAPTER) is not None:
        raise InputError(
            f"{name!r} holds an adapter ({_ADAPTER}), not a complete model",
            "merge the adapter into its model (merge_and_unload) and save that; if the model is "
            f"complete, remove {_ADAPTER}",
        )
    config = read_model_json(name, "config.json", dict) or {}
    for key in _FOREIGN:
        if config.get(key) is not None:
            raise InputError(
                f"{name}/config.json asks for {key}: only plain weights in float32, float16 or "
                "bfloat16 can be loaded",
                "choose the model as it was before it was quantised or changed",
            )
    for file in ("config.json", "tokenizer_config.json"):
        for key, value in (read_model_json(name, file, dict) or {}).items():
            # transformers fills lists of so many entries, before it looks at anything else.
            if key.startswith(_COUNTS) and isinstance(value, int) and value > _MOST:
                raise damaged(name, file, f"{key} = {value!r:.40}")
    shards(name)


def shards(name: str) -> list[str]:
    """The names of the files that hold the weights; empty where they are not in several."""
    index = read_model_json(name, _SHARDS, dict) or {}
    named = index.get("weight_map", {})
    if not isinstance(named, dict) or not isinstance(index.get("metadata", {}), dict):
        raise damaged(name, _SHARDS, "it does not map weights to files")
    for file in named.values():
        check_path(name, _SHARDS, file)
    return sorted(set(named.values()))


def read_model_json(name: str, file: str, shape: type[_Shape]) -> _Shape | None:
    """The mapping or list in a JSON file of a model; None if there is no such file."""
    path = model_file(name, file)
    if path is None:
        return None
    try:
        value = parse_json(read_bounded(path, _LARGEST_JSON))
    except UnreadableError as error:
        raise damaged(name, file, str(error)) from None
    if not isinstance(value, shape):
        kind = "mapping" if shape is dict else "list"
        raise damaged(name, file, f"it is not a {kind}")
    return value


def model_file(name: str, file: str) -> Path | None:
    """A file of a folder or hub name; None where it has none of this name."""
    folder = Path(name)
    if folder.is_dir():
        path = folder / file
        if not path.is_file():
            return None
        _check_inside(folder, path)
        return path
    check_hub(name)
    return _hub_file(name, file)


@lru_cache(maxsize=256)  # one request to the hub for each
def _hub_file(name: str, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    try:
        return Path(hf_hub_download(name, file))
    except (EntryNotFoundError, HFValidationError, OSError):
        return None  # there is none, or loading the model says what is wrong


def check_path(name: str, file: str, path: object) -> None:
    """Refuses a path that `file` names, unless it leads to a place inside the model."""
    try:
        inside(path)
    except ValueError:
        raise InputError(
            f"{name}/{file} names {path!r}, which is not inside the model",
            _COPY,
        ) from None


def damaged(name: str, file: str, why: str) -> InputError:
    """The error of a file that cannot be what it should be."""
    return InputError(
        f"{name}/{file} is damaged: {why}",
        _COPY,
    )


@contextmanager
def loadable(name: str, part: str = "model") -> Iterator[None]:
    """Turns whatever a library raises while it loads a model into one InputError."""
    try:
        yield
    except (IsthmusError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        reason = str(error).strip().partition("\n")[0]
        if not isinstance(error, OSError | ValueError):
            reason = f"{reason} ({type(error).__name__})"
        raise InputError(
            f"the {part} {name!r} cannot be loaded: {reason}",
            "check the name and the network, and that the folder is complete: config.json, "
            "tokenizer.json and safetensors weights that belong together (convert pickled "
            "weights; code inside a model is never run)",
        ) from error


def _check_inside(folder: Path, path: Path) -> None:
    """Refuses a symbolic link out of the folder; in the hub's cache, all files are links."""
    try:
        target, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # links in a circle
        target, home = Path("/"), folder
    blobs = home.parent.parent / "blobs"
    in_cache = home.parent.name == "snapshots" and target.is_relative_to(blobs)
    if not target.is_relative_to(home) and not in_cache:
        raise InputError(
            f"{path} is a symbolic link out of the folder of the model",
            "put the file itself there",
        )
