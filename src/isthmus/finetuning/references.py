"""`stage:NAME` in the place of a model: the result of an earlier stage of the same pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isthmus.errors import SettingsError
from isthmus.finetuning.settings import FinetuneSettings

_PREFIX = "stage:"


def references(settings: FinetuneSettings) -> dict[str, str]:
    """The stages that settings refer to, by the path at which each is named."""
    return {
        path: text.removeprefix(_PREFIX)
        for path, text in _walk(settings.model_dump())
        if text.startswith(_PREFIX)
    }


def outside(settings: FinetuneSettings) -> dict[str, str]:
    """The models and files in settings that come from outside the pipeline, by path."""
    return {
        path: text
        for path, text in _walk(settings.model_dump())
        if path.rpartition(".")[2] in ("model", "retriever", "file")
        and not text.startswith(_PREFIX)
    }


def with_folders(settings: FinetuneSettings, folders: Mapping[str, Path]) -> FinetuneSettings:
    """The settings with the folder of each stage in the place of its name."""
    for path, name in references(settings).items():
        if name not in folders:
            raise SettingsError(
                f"{path} = '{_PREFIX}{name}' is no stage of this run",
                "name a model, or use a recipe of several stages (`isthmus list recipes`)",
            )
    return FinetuneSettings.parse(_replaced(settings.model_dump(), folders), where="stages")


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and value of every string in settings."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{number}")


def _replaced(value: Any, folders: Mapping[str, Path]) -> Any:
    if isinstance(value, str) and value.startswith(_PREFIX):
        return str(folders[value.removeprefix(_PREFIX)])
    if isinstance(value, dict):
        return {key: _replaced(inner, folders) for key, inner in value.items()}
    return [_replaced(inner, folders) for inner in value] if isinstance(value, list) else value
