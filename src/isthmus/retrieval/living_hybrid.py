"""Several indexes of one corpus in one folder, which change together.

All of them lie in one folder, the state, named by `hybrid.json`. A change works on copies, in the
next state (files are linked, not copied: what an index consists of is never written again).
Replacing `hybrid.json` by one that names the next state is the commit: before it nothing has
changed, after it all indexes have. What a killed writer leaves is a state without a name, from
which the same job goes on, and which any other removes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import xxhash

from isthmus.config.models import PACKAGE
from isthmus.config.output import (
    only_writer,
    publish,
    reserved,
    where_it_leads,
    write_json,
    write_snapshot,
    writing,
)
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.indexes.manifest import HYBRID, STATE, stated_manifest, workplace
from isthmus.indexes.replacement import (
    check_replaceable,
    is_ours,
    not_an_index,
    remove_leftovers,
)
from isthmus.indexes.segments.commit import (
    link_index,
    refuse_links,
    say_updated,
    settle,
    settle_names,
)
from isthmus.retrieval.hybrid_folder import (
    FIRST_STATE,
    Combination,
    Hybrid,
    Member,
    is_hybrid,
    read_hybrid,
)

Builder = Callable[[Any, Path, bool], Any]
"""Builds an index of a model in a folder, in place of another index where that is allowed."""
_JOB = "job.json"  # in a state that is not committed yet


def by_name(models: Sequence[Any]) -> dict[str, Any]:
    """The models, or encoders that are loaded, by the names of their folders in a hybrid."""
    found: dict[str, Any] = {}
    for model in dict.fromkeys(models):
        text = str(getattr(model, "name", model))
        last = re.sub(r"[^\w.-]", "-", Path(text.removeprefix(PACKAGE)).name).strip(".")
        name = last = last or "model"
        while name in found:
            name = f"{last}-{len(found) + 1}"
        found[name] = str(model) if isinstance(model, str | Path) else model
    if not found:
        raise SettingsError("no model is given to index with", "give bm25 or a model")
    return found


def build_hybrid(
    folder: Path,
    models: Mapping[str, Any],
    build: Builder,
    request: Mapping[str, Any],
    overwrite: bool,
) -> None:
    """Fills a folder with an index per model, under its name; `build` makes one of a model.

    The folder appears when all are whole; what is done of them is kept for the same command again.
    """
    with reserved(folder):
        if _is_same(folder, models, build, overwrite):
            remove_leftovers(folder)
            return
        with _free(folder, overwrite):
            place = _workplace(folder, models)
            for name, model in models.items():
                build(model, place / FIRST_STATE / name, True)
            built = {name: stated_manifest(place / FIRST_STATE / name) for name in models}
            members = [
                Member(index=name, encoder=one.encoder_fingerprint) for name, one in built.items()
            ]
            hybrid = Hybrid(members=members, combination=Combination(), state=FIRST_STATE)
            with writing(folder):
                write_json(place / HYBRID, sealed(hybrid.model_dump()))
                corpus = next(iter(built.values())).corpus.fingerprint
                prints = {"corpus": corpus, "encoder": [member.encoder for member in members]}
                write_snapshot(place, "index", {**request, "fingerprints": prints}, results={})
                publish(place, folder, replace=overwrite)
        remove_leftovers(folder)


def _is_same(folder: Path, models: Mapping[str, Any], build: Builder, overwrite: bool) -> bool:
    """Whether these very indexes are there; others are refused, unless they may be overwritten."""
    try:
        if not is_hybrid(folder):
            return False
        hybrid = read_hybrid(folder)
        if [member.index for member in hybrid.members] != list(models):
            return False
        for model, place in zip(models.values(), hybrid.folders(folder), strict=True):
            build(model, place, False)
    except (InputError, OutputError):  # damaged, or others
        if not overwrite:
            raise
        return False
    return True


def _free(folder: Path, overwrite: bool) -> AbstractContextManager[object]:
    """The right to write to a folder; one that holds more than indexes to replace is refused."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return nullcontext()
    if folder.is_dir() and overwrite:
        check_replaceable(folder)
        return only_writer(folder)
    raise not_an_index(folder)


def _workplace(folder: Path, models: Mapping[str, Any]) -> Path:
    """Where a hybrid is built, with nothing in it but what earlier work on its indexes left."""
    place = where_it_leads(folder)
    place = place.with_name(f".{place.name}.hybrid")
    state = place / FIRST_STATE
    of_use = {state} | {workplace(state / name) for name in models}
    of_use |= {state / name for name in models if is_ours(state / name)}
    for entry in [*place.glob("*"), *state.glob("*")]:
        if entry not in of_use:
            entry.unlink() if entry.is_file() else _remove(entry)
    return place


def combine(folder: Path, combination: Combination) -> None:
    """Lets the answers of a hybrid's indexes become one in this way from now on."""
    with only_writer(folder), writing(folder):
        hybrid = read_hybrid(folder).model_copy(update={"combination": combination})
        write_json(folder / HYBRID, sealed(hybrid.model_dump()))
        settle_names(folder)


def tidy(folder: Path) -> None:
    """Removes files that a writer left when it was killed after its commit."""
    with only_writer(folder), writing(folder):
        _remove_others(folder, {str(read_hybrid(folder).state)})
        for partial in folder.glob(".*.partial"):
            partial.unlink()


@contextmanager
def changing(folder: Path, job: str) -> Iterator[Change]:
    """Copies of all indexes to change, which take their place, together, when the block ends.

    An interrupted change is gone on with by the same job on the same state.
    """
    with only_writer(folder), writing(folder):
        change = Change(folder, job)
        try:
            yield change
        except BaseException:
            change.give_up()
            raise
        change.commit()


class Change:
    """The next state of a hybrid, under construction."""

    def __init__(self, folder: Path, job: str) -> None:
        hybrid = read_hybrid(folder)
        _remove_others(folder, {hybrid.state, following(hybrid.state)})
        self._folder, self._hybrid = folder, hybrid
        self._next = hybrid.model_copy(update={"state": following(hybrid.state)})
        self._place = folder / str(self._next.state)
        self._job = xxhash.xxh3_128_hexdigest(f"{hybrid.state} {job}".encode())
        found = self._found()
        refuse_links(self._place)  # through which writing could change other files
        self._results = found or {}
        if found is None:
            self._begin()

    @property
    def folders(self) -> list[Path]:
        """The copies of the indexes."""
        return self._next.folders(self._folder)

    def each(self, change: Callable[[Path], Sequence[int]]) -> list[tuple[int, ...]]:
        """What a change of each index comes to; those that it was done to before are left."""
        before = self._hybrid.folders(self._folder)
        for member, old, new in zip(self._hybrid.members, before, self.folders, strict=True):
            if member.index in self._results:
                continue
            if stated_manifest(new) != stated_manifest(old):  # committed, but not yet recorded
                shutil.rmtree(new)
                link_index(old, new)
            self._results[member.index] = tuple(change(new))
            self._record()
        return [self._results[member.index] for member in self._hybrid.members]

    def commit(self) -> None:
        """Makes the state the one that is searched."""
        settle(self._place)
        write_json(self._folder / HYBRID, sealed(self._next.model_dump()))
        settle_names(self._folder)
        (self._place / _JOB).unlink(missing_ok=True)
        say_updated(self._folder)
        _remove_others(self._folder, {str(self._next.state)})

    def give_up(self) -> None:
        """Removes the state, unless there is work in it to go on with, or it is another's."""
        if self._found() == {} and not any(self._place.glob("*/segments/.*.building")):
            shutil.rmtree(self._place, ignore_errors=True)

    def _found(self) -> dict[str, tuple[int, ...]] | None:
        """What an interrupted change of the same job has done; None if there was none."""
        try:
            kept = read_mapping(self._place / _JOB)
            if kept.get("job") == self._job:
                return {str(name): tuple(numbers) for name, numbers in kept["results"].items()}
        except (UnreadableError, KeyError, TypeError, AttributeError):
            pass
        return None

    def _begin(self) -> None:
        _remove(self._place)
        for old, new in zip(self._hybrid.folders(self._folder), self.folders, strict=True):
            link_index(old, new)
        self._record()

    def _record(self) -> None:
        write_json(self._place / _JOB, sealed({"job": self._job, "results": self._results}))


def following(state: str) -> str:
    """The name of the next state."""
    return f"{int(state) + 1:06}"


def _remove_others(folder: Path, states: set[str]) -> None:
    for entry in folder.iterdir():
        if re.fullmatch(STATE, entry.name) and entry.name not in states:
            _remove(entry)


def _remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    else:
        with suppress(OSError):  # some systems keep files that are in use: the next writer's
            shutil.rmtree(place)
    if os.path.lexists(place):
        raise OutputError(
            f"{str(place)!r} cannot be removed",
            "remove it, and run the same command again",
        )
