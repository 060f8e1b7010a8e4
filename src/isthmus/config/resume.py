"""Going on with a run that was interrupted, by its folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.config.output import read_snapshot
from isthmus.errors import InputError, SettingsError


def to_resume(verb: str, folder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The identity with which a run of this verb began; whatever is given beside it is refused."""
    snapshot = read_snapshot(Path(folder))
    if snapshot["verb"] != verb:
        raise InputError(
            f"--resume {folder} was made by `isthmus {snapshot['verb']}`, not `isthmus {verb}`",
            f"run it again as it was: {' '.join(snapshot.get('command', []))}",
        )
    for name, value in given.items():
        if value is not None:
            raise SettingsError(
                f"--{name} cannot be given with --resume {folder}: the run has its settings",
                f"leave out --{name}, or train again in another --output without --resume",
            )
    identity: dict[str, Any] = snapshot["identity"]
    return identity
