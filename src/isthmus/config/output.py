"""Outputs: written by one process at a time, published whole, described by a snapshot.

Every verb that writes goes through here, so that four promises hold everywhere: two processes never
write to one place, a folder that holds something else is never touched, a half-written one is never
mistaken for a whole one, and beside every output lies what made it (`isthmus.json`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from isthmus._version import __version__
from isthmus.config.lock import LOCK, Lock, check_locks
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, IsthmusError, OutputError
from isthmus.progress import notice

SNAPSHOT = "isthmus.json"
IDLE = frozenset(
    {"save_steps", "save_minutes", "save_total_limit", "report_to", "logging_steps",
     "dataloader_num_workers"}
)  # fmt: skip
"""The settings of training that change no result: how it is watched and saved."""
START = "start"  # an untrained model, made before training begins
_LIBRARIES = (
    "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "scipy",
    "pyarrow", "ir_measures", "pydantic",
)  # fmt: skip

_HERE = -100  # AT_FDCWD: paths as they are
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)

_MAKE_ROOM = "free some space and run the same command again"
_ELSEWHERE = "choose another --output"
_REFUSED = {
    errno.ENOSPC: ("no space left on the disk", _MAKE_ROOM),
    errno.EDQUOT: ("the quota of the disk is used up", _MAKE_ROOM),
    errno.EFBIG: (
        "a file would become larger than is allowed",
        "raise the limit (ulimit -f), or write to a disk that takes larger files, and run the same "
        "command again",
    ),
    errno.EACCES: ("no permission to write", _ELSEWHERE),
    errno.EPERM: ("no permission to write", _ELSEWHERE),
    errno.EROFS: ("the disk is read-only", _ELSEWHERE),
    errno.ENOTDIR: ("a file is where a folder should be", _ELSEWHERE),
    errno.EEXIST: ("a file is where a folder should be", _ELSEWHERE),
}
_NAMED = 5  # settings in which two jobs differ
_SHORT = 60  # characters of both their values
_ROOM = 2**20  # bytes; with less, whatever a library says of a file, the disk is full


def only_writer(folder: Path) -> Lock:
    """The right to write into a folder, until it is released; refused while another has it."""
    place = where_it_leads(folder)
    with writing(folder):
        return Lock(folder, place / LOCK)


@contextlib.contextmanager
def reserved(target: Path | None) -> Iterator[None]:
    """Keeps others from writing a file, or a folder that appears by renaming, during the block.

    The lock lies beside it, under a hidden name. Without a target, and for a device, there is none.
    """
    if target is None or (target.exists() and not (target.is_file() or target.is_dir())):
        yield
        return
    place = where_it_leads(target)
    if _is_closed(place.parent):
        yield
        return
    with writing(target):
        lock = Lock(target, place.with_name(f".{place.name}.writer{LOCK}"))
    with lock:
        yield


@contextlib.contextmanager
def claimed(
    folder: Path, verb: str, identity: Mapping[str, Any], overwrite: bool | None = None
) -> Iterator[bool]:
    """Reserves an output folder for the block; True when it holds earlier work of the same job.

    `identity` is what makes two jobs the same (settings and data fingerprints). It is written
    before anything else, so that a folder found later says what it was meant to become.

    Another job's folder is refused. With `overwrite` its work is replaced, and so is this job's
    where it is finished; an unfinished one resumes. None: the command has no such option.
    """
    with writing(folder):
        if folder.is_file():
            raise OutputError(
                f"--output {str(folder)!r} is a file",
                "choose another --output",
            )
        # Only the first process of a launch writes.
        free = os.environ.get("RANK", "0") != "0" or _is_closed(folder)
    with contextlib.nullcontext() if free else only_writer(folder):
        yield _claim(folder, verb, identity, overwrite)


def _is_closed(folder: Path) -> bool:
    """Whether this process may not write into a folder, which then needs no lock."""
    return folder.is_dir() and not os.access(folder, os.W_OK)


def _claim(folder: Path, verb: str, identity: Mapping[str, Any], overwrite: bool | None) -> bool:
    """Claims a free folder for a job; True if it holds this very job already."""
    marker = folder / SNAPSHOT
    with writing(folder):
        where_it_leads(folder).mkdir(parents=True, exist_ok=True)
        # A marker that was being written when the process died counts for nothing.
        empty = all(found in (_partial(marker), folder / LOCK) for found in folder.iterdir())
    if not empty:
        _check_ours(folder)
        earlier = read_snapshot(folder)
        now = json.loads(json.dumps(identity))
        changed = differences(earlier["identity"], now)
        known = earlier["verb"] == verb and not changed
        if known and not (overwrite and earlier.get("complete")):
            return True
        if overwrite:
            replace_run(folder, verb)
        elif not _is_only_a_start(folder) or earlier.get("complete"):
            instead = "remove the folder to run this one there"
            if overwrite is False:
                instead = "add --overwrite to replace it by this one"
            raise OutputError(
                f"--output {str(folder)!r} already holds another job: it "
                f"{_how_it_differs(verb, earlier, now, changed)}",
                f"choose another --output, or {instead}",
            )
        shutil.rmtree(folder / START, ignore_errors=True)
    write_json(marker, _snapshot(verb, identity, complete=False))
    return False


def _check_ours(folder: Path) -> None:
    if not (folder / SNAPSHOT).is_file():
        raise OutputError(
            f"--output {str(folder)!r} already holds something that isthmus did not write",
            "choose another --output, or move what is there",
        )


def _how_it_differs(
    verb: str, earlier: Mapping[str, Any], identity: Mapping[str, Any], changed: list[str]
) -> str:
    if earlier["verb"] != verb:
        return f"was made by `isthmus {earlier['verb']}`"
    shown = []
    for path in changed[:_NAMED]:
        there, here = (_at(path, values) for values in (earlier["identity"], identity))
        told = path.startswith("settings.") and len(f"{there}{here}") < _SHORT
        shown.append(f"{path} ({there!r} there, {here!r} here)" if told else path)
    more = [f"{len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return f"differs in {', '.join([*shown, *more])}"


def _at(path: str, values: Any) -> Any:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def replace_run(folder: Path, command: str) -> None:
    """Empties a folder that isthmus wrote, for `command`, which holds its lock; refuses others.

    Killed on the way, it leaves a folder that is of no job, and that only replacing goes on with.
    """
    _check_ours(folder)
    check_locks(folder)
    with writing(folder):
        write_json(folder / SNAPSHOT, _snapshot(command, {}, complete=False))
        for found in list(folder.iterdir()):
            if found.name in (SNAPSHOT, LOCK):
                continue
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink()


def refuse_inside(folder: Path, inputs: Mapping[str, str | None]) -> None:
    """Refuses to replace a folder that holds what is read: a model or documents, by name."""
    for name, given in inputs.items():
        for path in (given or "", (given or "").partition(":")[2]):
            place = Path(path)
            if path and place.exists() and folder.resolve() in (
                place.resolve(), *place.resolve().parents
            ):  # fmt: skip
                raise OutputError(
                    f"--overwrite would remove what is read: {name} = {given!r} is in --output "
                    f"{str(folder)!r}",
                    "choose another --output",
                )


def _is_only_a_start(folder: Path) -> bool:
    # A job that failed before its first result (a misspelt model, bad data) owns nothing yet.
    return all(
        found.name in (SNAPSHOT, START) or found.name.startswith(".") for found in folder.iterdir()
    )


def finish(folder: Path, results: Mapping[str, Any] | None = None) -> None:
    """Marks a claimed folder as complete, with the results worth keeping beside the settings."""
    check_locks(folder)
    snapshot = read_snapshot(folder)
    write_json(folder / SNAPSHOT, {**snapshot, "complete": True, "results": dict(results or {})})


def write_snapshot(
    folder: Path, verb: str, identity: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Describes a folder that is finished before it gets its name, and so was never claimed."""
    snapshot = _snapshot(verb, identity, complete=True)
    write_json(folder / SNAPSHOT, {**snapshot, "results": dict(results)})


def is_complete(folder: Path) -> bool:
    """Whether the job that claimed this folder came to its end."""
    return (folder / SNAPSHOT).is_file() and bool(read_snapshot(folder).get("complete"))


def read_snapshot(folder: Path) -> dict[str, Any]:
    """What made this output: verb, settings, versions, commit, seeds, data fingerprints."""
    file = folder / SNAPSHOT
    if not file.exists():
        raise InputError(
            f"{str(folder)!r} was not written by isthmus: it has no {SNAPSHOT}",
            "give the --output folder of an isthmus command",
        )
    try:
        snapshot = read_mapping(file)
        _check_shape(snapshot)
    except (UnreadableError, ValueError) as error:
        raise InputError(
            f"{file} is damaged: {error}",
            "remove the folder and run the command again",
        ) from None
    return snapshot


def _check_shape(snapshot: Mapping[str, Any]) -> None:
    results = snapshot.get("results", {})
    stated = (snapshot.get("verb"), snapshot.get("identity"), results)
    command = snapshot.get("command", [])
    typed = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not typed or not all(map(isinstance, stated, (str, dict, dict))):
        raise UnreadableError("it does not say which command made the folder")
    stages = results.get("stages", {})
    for folder in stages.values() if isinstance(stages, dict) else [stages]:
        plain(str(folder))


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which appears under its name only when the block ends without error."""
    partial = _partial(where_it_leads(folder))
    shutil.rmtree(partial, ignore_errors=True)
    with writing(folder):
        partial.mkdir(parents=True)
        yield partial
        publish(partial, folder)


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[TextIO]:
    """A text file to fill, which appears under its name only when the block ends without error."""
    if file.exists() and not file.is_file():  # a device
        with writing(file), file.open("w", encoding="utf-8") as stream:
            yield stream
        return
    place = where_it_leads(file)
    partial = _partial(place)
    with writing(file):
        try:
            # Bytes of a path that are not UTF-8 become JSON's own escapes of them.
            with partial.open("w", encoding="utf-8", errors="backslashreplace") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(place)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


def publish(partial: Path, folder: Path, replace: bool = True) -> None:
    """Gives a finished folder its name in one step; what had the name before is gone after it.

    At every moment the name leads to the old folder or to the new one, where the system can
    exchange names. Without `replace`, a folder that holds something is refused.
    """
    check_locks(folder)
    place = where_it_leads(folder)
    try:
        partial.rename(place)  # an empty folder gives way
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not replace and any(place.iterdir()):
            raise OutputError(
                f"{str(folder)!r} was filled by something else while it was being made",
                "move what is there, and run the same command again",
            ) from None
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if exchange(partial, place):
        old = partial
    else:
        place.rename(old)
        partial.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def where_it_leads(path: Path) -> Path:
    """The path itself, or what it points to as a symbolic link, which may not be there yet."""
    return path.resolve() if path.is_symlink() else path


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns the operating system's refusals (disk full, no permission) into OutputErrors."""
    try:
        yield
    except Exception as error:
        number, free = getattr(error, "errno", None), _free(target)
        if number is None and free < _ROOM and not isinstance(error, IsthmusError):
            number = errno.ENOSPC
        if number not in _REFUSED:
            raise
        what, fix = _REFUSED[number]
        what = f"{what}: {getattr(error, 'filename', None) or target}"
        if number in (errno.ENOSPC, errno.EDQUOT):
            what += f" ({free / 2**20:,.0f} MiB free)"
        raise OutputError(what, fix) from error


def write_json(file: Path, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part."""
    with whole_file(file) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, sort_keys=False)
        stream.write("\n")


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _free(target: Path) -> float:
    """The bytes that the disk of a path has left."""
    for folder in (target, *target.absolute().parents):
        with contextlib.suppress(OSError):  # not there, or not readable
            return shutil.disk_usage(folder).free
    return math.inf


def differences(one: Any, two: Any, path: str = "") -> list[str]:
    """The paths of what differs in two mappings of mappings, and may change a result."""
    if isinstance(one, dict) and isinstance(two, dict):
        found = []
        for key in sorted({*one, *two} - IDLE):
            inner = f"{path}.{key}" if path else key
            found += differences(one.get(key), two.get(key), inner)
        return found
    return [] if one == two else [path]


def may_change_results(identity: Any) -> Any:
    """An identity without the settings that change no result."""
    if isinstance(identity, Mapping):
        kept = {key: value for key, value in identity.items() if key not in IDLE}
        return {key: may_change_results(value) for key, value in kept.items()}
    return identity


def _snapshot(verb: str, identity: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    return {
        "verb": verb,
        "complete": complete,
        "identity": dict(identity),
        **environment(),
        "command": sys.argv,
    }


def environment() -> dict[str, Any]:
    """What results may depend on besides settings and data: versions, commit, machine."""
    return {
        "versions": {"isthmus": __version__, "python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


@cache
def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def _commit() -> str | None:
    """The commit of the source tree isthmus runs from; None when it was installed as a wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    git = shutil.which("git")
    if git is None:
        return None
    head = subprocess.run([git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True, check=False)  # noqa: S603, E501 # fmt: skip
    return head.stdout.strip() or None


def exchange(one: Path, two: Path) -> bool:
    """Gives each of two folders the other's name; False where the system cannot in one step."""
    names = os.fsencode(one), os.fsencode(two)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            failed = system.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
        else:
            failed = system.renamex_np(*names, _EXCHANGE)
    except (AttributeError, OSError, TypeError):  # an old library, or another system
        return False
    if failed and (number := ctypes.get_errno()) not in _UNKNOWN:
        raise OSError(number, os.strerror(number), str(two))
    return not failed


def notice_changes(earlier: Mapping[str, Any] | None, identity: Mapping[str, Any]) -> None:
    """Says in which versions, commit and data a job differs from the snapshot that it repeats.

    Data is compared where the same was named; what was named otherwise was meant to change.
    """
    if earlier is None:
        return
    now, versions = environment(), earlier.get("versions", {})
    for name, found in now["versions"].items():
        if versions.get(name) != found:
            notice(f"{name}: {versions.get(name)} then, {found} now")
    if earlier.get("commit") != now["commit"]:
        notice(f"commit: {earlier.get('commit')} then, {now['commit']} now")
    named, data = (
        [of.get(key, {}) for of in (earlier["identity"], identity)] for key in ("settings", "data")
    )
    for key in sorted({*data[0]} & {*data[1]}):
        same = named[0].get(key) == named[1].get(key)
        if same and differences(data[0][key], data[1][key]):
            notice(f"{key}: not what it was then, its fingerprint differs")
