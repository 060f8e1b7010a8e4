"""Which judged queries a model has seen, as far as the runs that made it say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.config.output import SNAPSHOT, read_snapshot
from isthmus.config.safe_names import plain
from isthmus.errors import InputError

SEEN = "seen"


def seen(model: str, fingerprint: str, split: str) -> str | None:
    """A sentence where a model was trained on, or chosen by, this split of this collection."""
    here = [one for one in _queries_seen(Path(model)) if one.get("collection") == fingerprint]
    if any(one.get("trained") == split for one in here):
        return f"{model} was trained on the split {split!r}: its numbers here are NO TEST."
    if any(one.get("chosen") == split for one in here):
        return f"{model} was chosen by the split {split!r}, which flatters its numbers here."
    return None


def all_seen(
    snapshot: Mapping[str, Any], results: Mapping[str, Any], after: Iterable[str | Path]
) -> list[dict[str, Any]]:
    """The splits that a run, or a model it started from, was trained on or chosen by."""
    found = [one for model in after for one in _queries_seen(Path(model))]
    found += _own({**snapshot, "results": results})
    return [one for place, one in enumerate(found) if one not in found[:place]]


def _queries_seen(model: Path) -> list[dict[str, Any]]:
    """The splits that a run (or its folder `final`) recorded, or that its stages did."""
    run = next((at for at in (model, model.parent) if (at / SNAPSHOT).is_file()), None)
    if run is None:
        return []
    try:
        snapshot = read_snapshot(run)
    except InputError:  # says nothing of what it was made of; whether it loads is not asked here
        return []
    results = _mapping(snapshot, "results")
    recorded = results.get(SEEN)
    if isinstance(recorded, list):
        return [one for one in recorded if isinstance(one, dict)]
    stages: list[dict[str, Any]] = []
    for name in _mapping(results, "stages").values():
        with suppress(ValueError):
            stages += _queries_seen(run / plain(str(name)))
    return stages or _own(snapshot)


def _own(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    identity = _mapping(snapshot, "identity")
    settings, data = _mapping(identity, "settings"), _mapping(identity, "data")
    # Splits of drawn queries are those of no collection.
    if snapshot.get("verb") != "finetune" or settings.get("pseudo_queries"):
        return []
    chosen = _mapping(_mapping(snapshot, "results"), "selection").get("split")
    return [
        {"collection": data.get("collection"), "trained": settings.get("split"), "chosen": chosen}
    ]


def _mapping(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
