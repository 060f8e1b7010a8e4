"""What `--show-settings` prints: every setting of a call, and where its value comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from isthmus.config.setting_list import Setting, settings_in
from isthmus.config.settings import ResolvedSettings, only_resolved
from isthmus.errors import SettingsError, choices


@dataclass(frozen=True)
class ShownSettings:
    """The settings of a command as a table, or as plain values."""

    settings: list[Setting]

    def to_dict(self) -> dict[str, Any]:
        """The value, allowed values, meaning and source of every path."""
        return {"settings": [asdict(one) for one in self.settings]}

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("setting", overflow="fold")
        table.add_column("from", no_wrap=True)
        table.add_column("meaning", overflow="fold", style="dim")
        for one in self.settings:
            about = f"{one.values}: {one.meaning}" if one.meaning else one.values
            table.add_row(Text(f"{one.path}={one.value}"), Text(one.source), Text(about))
        return table


def shown_settings(command: str, run: Callable[[], Any], prefix: str) -> ShownSettings:
    """The settings that `run` would work with, those below `prefix` if it is not empty."""
    try:
        with only_resolved():
            run()
    except ResolvedSettings as resolved:
        found = list(
            settings_in(type(resolved.settings), given=resolved.settings, layers=resolved.layers)
        )
    else:
        raise AssertionError(f"{command} has settings")
    chosen = [one for one in found if f"{one.path}.".startswith(f"{prefix}.")] if prefix else found
    if not chosen:
        raise SettingsError(
            f"`isthmus {command}` has no setting {prefix!r}",
            f"isthmus {command} --show-settings prints all of them",
            choices(prefix, (one.path for one in found)),
        )
    return ShownSettings(chosen)
