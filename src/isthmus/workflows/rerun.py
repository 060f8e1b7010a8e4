"""Repeating what made a folder, from the snapshot that lies in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.config import Settings
from isthmus.config.output import environment, read_snapshot
from isthmus.errors import InputError, choices
from isthmus.finetuning.finetune import again as finetune_again
from isthmus.pretraining.pretrain import run as run_pretrain
from isthmus.pretraining.settings import PretrainSettings
from isthmus.progress import notice
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.workflows.adapt import run as run_adapt
from isthmus.workflows.adapt_settings import AdaptSettings
from isthmus.workflows.quickstart import QuickstartSettings
from isthmus.workflows.quickstart import run as run_quickstart

_Repeat = Callable[[Mapping[str, Any], Path, str], object]


def rerun(folder: str, output: str) -> Path:
    """Runs the same verb with the same settings and seeds into another folder.

    What has changed since (versions, commit) is said first; changed data is refused or said by
    the fingerprints of the new snapshot against those of the old one.
    """
    if Path(folder).resolve() == Path(output).resolve():
        raise InputError(
            f"--output {output!r} is the folder to repeat",
            "choose another --output",
        )
    snapshot = read_snapshot(Path(folder))
    verb = snapshot["verb"]
    if verb not in _VERBS:
        raise InputError(
            f"{folder!r} was made by {verb!r}, which cannot be repeated from its snapshot",
            f"run it again as it was: {' '.join(snapshot.get('command', []))}",
            choices(verb, _VERBS),
        )
    for line in _changes(snapshot, environment()):
        notice(line)
    _VERBS[verb](snapshot["identity"], Path(folder), output)
    before, after = snapshot["identity"], read_snapshot(Path(output))["identity"]
    if any(before.get(key) != after.get(key) for key in ("data", "fingerprints")):
        notice("the data is not what it was: its fingerprint differs")
    return Path(output)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    versions = before.get("versions", {})
    lines = [
        f"{name}: {versions.get(name)} then, {found} now"
        for name, found in now["versions"].items()
        if versions.get(name) != found
    ]
    if before.get("commit") != now["commit"]:
        lines.append(f"commit: {before.get('commit')} then, {now['commit']} now")
    return lines


def _by_settings(run: Callable[[Any], object], kind: type[Settings]) -> _Repeat:
    """Repeats a verb that takes nothing but its settings, the output among them."""

    def repeat(identity: Mapping[str, Any], folder: Path, output: str) -> None:
        run(kind.parse({**identity["settings"], "output": output}, "snapshot"))

    return repeat


def _index(identity: Mapping[str, Any], folder: Path, output: str) -> None:
    settings = IndexSettings.parse(identity["settings"], "snapshot")
    others = identity.get("hybrid", ())
    index(identity["corpus"], output, identity["model"], hybrid=others, settings=settings)


_VERBS: dict[str, _Repeat] = {
    "pretrain": _by_settings(run_pretrain, PretrainSettings),
    "finetune": partial(finetune_again, where="snapshot"),
    "index": _index,
    "adapt": _by_settings(run_adapt, AdaptSettings),
    "quickstart": _by_settings(run_quickstart, QuickstartSettings),
}
