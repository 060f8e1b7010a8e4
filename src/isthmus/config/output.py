"""Output folders: claimed before work starts, published whole, described by a snapshot.

Every verb that writes a folder goes through here, so that three promises hold everywhere:
a folder that holds something else is never touched, a half-written one is never mistaken for
a whole one, and beside every output lies what made it (`isthmus.json`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.config.sealing import UnreadableError, read_mapping
from isthmus.errors import InputError, OutputError

SNAPSHOT = "isthmus.json"
START = "start"  # an untrained model, made before training begins
_LOCK = ".lock"
_LOCKS: dict[Path, Any] = {}  # held by this process
_LIBRARIES = (
    "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "scipy",
    "pyarrow", "bm25s", "ir_measures", "pydantic",
)  # fmt: skip

_NUMBER_IN_WORDS = re.compile(r"\(os error (\d+)\)")  # safetensors
# torch.save and numpy's tofile know only that less was written than they meant to.
_TORN_FILE = re.compile(r"inline_container|requested and \d+ written")


def claim(folder: Path, verb: str, identity: Mapping[str, Any]) -> bool:
    """Reserves an output folder; True when it holds earlier work of the same job to resume.

    `identity` is what makes two jobs the same (settings and data fingerprints). It is written
    before anything else, so that whoever finds the folder knows what it was meant to become.
    """
    marker = folder / SNAPSHOT
    with writing(folder):
        if folder.is_file():
            raise OutputError(
                f"{str(folder)!r} is a file",
                where="--output",
                allowed="a folder that does not exist yet, is empty, or holds the same job "
                "unfinished",
                remedy="choose another --output",
            )
        folder.mkdir(parents=True, exist_ok=True)
        # A marker that was being written when the process died is nobody's work.
        empty = all(found in (_partial(marker), folder / _LOCK) for found in folder.iterdir())
    if not empty:
        if not marker.is_file():
            raise OutputError(
                f"{str(folder)!r} already holds something that isthmus did not write",
                where="--output",
                allowed="a folder that does not exist yet, is empty, or holds the same job",
                remedy="choose another --output, or move what is there",
            )
        earlier = read_snapshot(folder)
        changed = differences(earlier.get("identity", {}), json.loads(json.dumps(identity)))
        if earlier.get("verb") != verb or changed:
            if _is_only_a_start(folder) and not earlier.get("complete"):
                _keep_others_out(folder)
                shutil.rmtree(folder / START, ignore_errors=True)
                write_json(marker, _snapshot(verb, identity, complete=False))
                return False
            other = earlier.get("verb") != verb
            reason = f"is a {earlier['verb']}" if other else f"differs in {', '.join(changed)}"
            raise OutputError(
                f"{str(folder)!r} already holds another job: it {reason}",
                where="--output",
                allowed="a new folder, or the same settings and data to resume",
                remedy="choose another --output, or remove the folder to start anew",
            )
        if not earlier.get("complete"):
            _keep_others_out(folder)
        return True
    _keep_others_out(folder)
    write_json(marker, _snapshot(verb, identity, complete=False))
    return False


def _keep_others_out(folder: Path) -> None:
    """Refuses a folder into which another process is writing; until this one ends."""
    # Of the processes of one launch, the first writes.
    if os.environ.get("RANK", "0") != "0" or folder.resolve() in _LOCKS:
        return
    from filelock import FileLock, Timeout  # not needed to print a help text

    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputError(
            f"another process is writing into {str(folder)!r}",
            where="--output",
            allowed="one process at a time",
            remedy="wait for it, or choose another --output",
        ) from None
    _LOCKS[folder.resolve()] = lock
    atexit.register(_let_others_in, folder.resolve())


def _let_others_in(folder: Path) -> None:
    if lock := _LOCKS.pop(folder, None):
        (folder / _LOCK).unlink(missing_ok=True)
        lock.release()


def _is_only_a_start(folder: Path) -> bool:
    # A job that failed before its first result (a misspelt model, bad data) owns nothing yet.
    return all(
        found.name in (SNAPSHOT, START) or found.name.startswith(".") for found in folder.iterdir()
    )


def finish(folder: Path, results: Mapping[str, Any] | None = None) -> None:
    """Marks a claimed folder as complete, with the results worth keeping beside the settings."""
    snapshot = read_snapshot(folder)
    write_json(folder / SNAPSHOT, {**snapshot, "complete": True, "results": dict(results or {})})
    _let_others_in(folder.resolve())


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
            where=str(folder),
            allowed="the --output folder of an earlier isthmus command",
            remedy="check the path",
        )
    try:
        snapshot = read_mapping(file)
        if not isinstance(snapshot.get("verb"), str) or not isinstance(
            snapshot.get("identity"), dict
        ):
            raise UnreadableError("it does not say which command made the folder")
    except UnreadableError as error:
        raise InputError(
            f"{SNAPSHOT} is damaged: {error}",
            where=str(file),
            allowed="the file as isthmus wrote it",
            remedy="remove the folder and run the command again",
        ) from None
    return snapshot


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which appears under its name only when the block ends without error."""
    partial = _partial(folder)
    shutil.rmtree(partial, ignore_errors=True)
    with writing(folder):
        partial.mkdir(parents=True)
        yield partial
    publish(partial, folder)


def publish(partial: Path, folder: Path) -> None:
    """Moves a finished folder to its name in one step, replacing what was there."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(folder)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns the operating system's refusals (disk full, no permission) into OutputErrors."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what, remedy = "no space left on the disk", "free some space and run again: it resumes"
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
            what, remedy = "no permission to write", "choose another --output"
        elif number in (errno.ENOTDIR, errno.EEXIST):
            what, remedy = "a file stands where a folder should be", "choose another --output"
        else:
            raise
        raise OutputError(
            f"{what} ({os.strerror(number)})",
            where=str(getattr(error, "filename", None) or target),
            allowed=f"a writable folder; {_free(target)} free there",
            remedy=remedy,
        ) from error


def _error_number(error: Exception) -> int | None:
    """The system's number of an error, also where a library only puts it into words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if number := _NUMBER_IN_WORDS.search(str(error)):
        return int(number[1])
    return errno.ENOSPC if _TORN_FILE.search(str(error)) else None


def write_json(file: Path, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part."""
    with writing(file):
        partial = _partial(file)
        # Bytes of a path that are not UTF-8 become JSON's own escapes of them.
        with partial.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            json.dump(value, stream, indent=2, ensure_ascii=False, sort_keys=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _free(target: Path) -> str:
    for folder in (target, *target.absolute().parents):
        with contextlib.suppress(OSError):  # not there, or behind a closed door
            return f"{shutil.disk_usage(folder).free / 2**20:,.0f} MiB"
    return "an unknown amount"


def differences(one: Any, two: Any, path: str = "") -> list[str]:
    """The paths of what differs in two mappings of mappings."""
    if isinstance(one, dict) and isinstance(two, dict):
        found = []
        for key in sorted({*one, *two}):
            inner = f"{path}.{key}" if path else key
            found += differences(one.get(key), two.get(key), inner)
        return found
    return [] if one == two else [path]


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
