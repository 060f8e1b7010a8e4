"""Which searches a kind of index has, and which of them an index folder offers."""

from __future__ import annotations

from pathlib import Path

from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.approximation import (
    About,
    Approximation,
    ApproximationSettings,
    Backend,
    approximations,
    building_command,
    check_approximation,
    fingerprint,
    is_approximate,
    read_about,
)
from isthmus.indexes.kinds import kinds
from isthmus.indexes.kinds._base import kind_of
from isthmus.indexes.manifest import Kind, Manifest, stated_manifest


def suits(backend: str, kind: Kind) -> bool:
    """Whether indexes of this kind can be searched by this backend."""
    return backend in kind_of(kind).backends


def check_backend(folder: Path, backend: Backend) -> None:
    """Refuses a backend that indexes of this kind do not have."""
    kind = kind_of(stated_manifest(folder).kind)
    if backend not in kind.backends:
        owners = [one.title for one in map(kind_of, kinds.names()) if backend in one.backends]
        raise SettingsError(
            f"backend = {backend} is for {' or '.join(owners)}; {str(folder)!r} is {kind.title}",
            where="backend",
            allowed=", ".join(kind.backends),
            remedy="leave backend out, or choose one of these",
        )


def usable_about(folder: Path, name: Approximation, manifest: Manifest) -> About:
    """What is known of an approximation; one not there, damaged or of another index is refused."""
    about = read_about(folder, name)
    if about is None:
        raise not_there(folder, name)
    check_approximation(folder, about)
    if about.made_of != fingerprint(manifest):
        raise MismatchError(
            f"the {name} beside {str(folder)!r} was made of another index",
            where=str(folder / name),
            allowed="one made of this index",
            remedy=f"{building_command(folder, about.settings)} builds it again",
        )
    return about


def not_there(folder: Path, name: Approximation) -> InputError:
    """The refusal to search by an approximation that an index does not have."""
    backends = kind_of(stated_manifest(folder).kind).backends
    exact = [one for one in backends if not is_approximate(one)]
    return InputError(
        f"the index {str(folder)!r} has no {name} beside it",
        where=f"backend={name}",
        allowed=", ".join([*approximations(folder), *exact]),
        remedy=f"{building_command(folder, ApproximationSettings(name=name))} builds it",
    )
