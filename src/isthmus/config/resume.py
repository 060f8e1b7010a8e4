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
            f"{folder!r} was made by {snapshot['verb']!r}",
            where="--resume",
            allowed=f"the --output folder of a {verb} that was interrupted",
            remedy=f"run it again as it was: {' '.join(snapshot.get('command', []))}",
        )
    for name, value in given.items():
        if value is not None:
            raise SettingsError(
                f"--resume goes on with the settings of {folder!r}; there is a new --{name}",
                where=f"--{name}",
                allowed="--resume FOLDER alone",
                remedy=f"leave out --{name}, or start anew without --resume in another --output",
            )
    identity: dict[str, Any] = snapshot["identity"]
    return identity
