"""Whether a model has seen the queries that it is measured by, as far as its run says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.config.output import SNAPSHOT, read_snapshot
from isthmus.errors import InputError


def seen(model: str, fingerprint: str, split: str) -> str | None:
    """A sentence where a run was trained on, or chosen by, this split of this collection."""
    for identity, results in _stages(Path(model)):
        settings, data = _mapping(identity, "settings"), _mapping(identity, "data")
        # Splits of drawn queries are those of no collection.
        if data.get("collection") != fingerprint or settings.get("pseudo_queries"):
            continue
        if settings.get("split") == split:
            return f"{model} was trained on the split {split!r}: its numbers here are NO TEST."
        if _mapping(results, "selection").get("split") == split:
            return f"{model} was chosen by the split {split!r}, which flatters its numbers here."
    return None


def _stages(model: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Identity and results of the stages that made a model: a run, or its folder `final`."""
    run = next((at for at in (model, model.parent) if (at / SNAPSHOT).is_file()), None)
    if run is None:
        return
    snapshot = _snapshot(run)
    stages = _mapping(_mapping(snapshot, "results"), "stages")
    for one in [_snapshot(run / str(name)) for name in stages.values()] if stages else [snapshot]:
        if one.get("verb") == "finetune":
            yield _mapping(one, "identity"), _mapping(one, "results")


def _snapshot(run: Path) -> dict[str, Any]:
    try:
        return read_snapshot(run)
    except InputError:  # says nothing of what it was made of; whether it loads is not asked here
        return {}


def _mapping(parent: dict[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
