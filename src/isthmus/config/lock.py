"""The lock that every writing verb takes: one process writes to a place, the others are refused.

The system forgets the lock of a process that dies, however it dies. The lock file is removed while
the lock is still held; who opened it before that finds that it has no name any more.
"""

from __future__ import annotations

import atexit
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from isthmus.errors import OutputError
from isthmus.progress import notice

LOCK = ".lock"
_ATTEMPTS = 1000
_UNKNOWN = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # to a file system without locks
_HELD: set[Lock] = set()  # by this process


class Lock:
    """The right to write to `place`, from the moment it is made until it is released.

    Folders on the way to the lock file are made, and removed again where they stay empty. A second
    lock of the same place is refused, in this process as in any other.
    """

    def __init__(self, place: Path, file: Path) -> None:
        from filelock import FileLock, Timeout

        self.place, self._file, self._process = place, file, os.getpid()
        self._lock = FileLock(file, blocking=False, thread_local=False, fallback_to_soft=False)
        self._made: list[Path] = []
        for left in reversed(range(_ATTEMPTS)):
            try:
                ways = (file.parent, *file.parent.parents)
                self._made += [way for way in ways if not way.exists() and way not in self._made]
                file.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._lock.acquire()
                except OSError as error:
                    if error.errno not in _UNKNOWN:
                        raise
                    notice(f"no locks in {file.parent}: let no two commands write there")
                self._found = file.stat()
                break
            except Timeout:
                self._remove_made()
                raise OutputError(
                    f"another process is writing into {str(place)!r} (it holds {file})",
                    "wait for it to end, or write elsewhere",
                ) from None
            # The folder was made or removed at this moment, or cannot be there.
            except (FileNotFoundError, FileExistsError):
                self._lock.release()
                if not left:
                    raise
            except OSError:
                self._remove_made()
                raise
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it is held, and its file is still the one that others would find."""
        try:
            return self in _HELD and os.path.samestat(self._found, self._file.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Refuses to go on where it was taken away."""
        if not self.is_held:
            raise OutputError(
                f"{str(self.place)!r} was removed or replaced while it was being written",
                "run the same command again, and one at a time",
            )

    def release(self) -> None:
        """Lets other processes write; in a forked child it keeps the parent's lock as it is."""
        held = self.is_held
        if self in _HELD and self._process == os.getpid():
            if held:
                with suppress(OSError):  # left there, it does no harm: the lock is the system's
                    self._file.unlink()
            self._lock.release()
            if held:
                self._remove_made()
        _HELD.discard(self)

    def _remove_made(self) -> None:
        with suppress(OSError):  # something is in it
            for folder in self._made:
                folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@atexit.register
def _release_all() -> None:
    """Gives up what a program ends with: filelock cannot do so once the interpreter closes."""
    for lock in list(_HELD):
        lock.release()


def check_locks(target: Path) -> None:
    """Refuses to go on where a lock of this process over `target` was taken away from it."""
    for lock in list(_HELD):
        place = lock.place.resolve()
        if place in (target.resolve(), *target.resolve().parents):
            lock.check()
