"""The lock that every writing verb takes: one process writes to a place, the others are refused.

The system forgets the lock of a process that dies, however it dies. The lock file is removed when
the lock is given up; a process that opened it before that finds that the name leads elsewhere now,
and begins again.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from isthmus.errors import OutputError
from isthmus.progress import notice

LOCK = ".lock"
_ATTEMPTS = 1000
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_UNKNOWN = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # to a file system without locks
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_HELD: set[Lock] = set()  # by this process


class Lock:
    """The right to write to `place`, from the moment it is made until it is released.

    Folders on the way to the lock file are made, and removed again where they stay empty. A second
    lock of the same place is refused, in this process as in any other.
    """

    def __init__(self, place: Path, file: Path) -> None:
        self.place = place
        self._file = file
        self._process = os.getpid()
        self._made: list[Path] = []
        self._descriptor = -1
        try:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._take()
                except FileNotFoundError:  # the folder was removed at this moment, or cannot be
                    if not left:
                        raise
                if self.is_held:  # else its last holder removed the file after it was opened
                    break
                self._close()
            else:
                raise _busy(place, file)
        except BaseException:
            self._close()
            self._remove_made()
            raise
        _HELD.add(self)

    def _take(self) -> None:
        self._made += _make(self._file.parent)
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
        if not _lock(self._descriptor, self._file):
            raise _busy(self.place, self._file)

    @property
    def is_held(self) -> bool:
        """Whether it is held, and its file is still the one that others would find."""
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._file.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Lets other processes write; in a forked child it keeps the parent's lock as it is."""
        if self not in _HELD:
            return
        _HELD.discard(self)
        mine = self.is_held and self._process == os.getpid()
        if mine and os.name == "posix":
            with suppress(OSError):  # left there, it does no harm: the lock is the system's
                self._file.unlink()
        self._close()
        if mine:
            if os.name != "posix":  # where an open file cannot be removed
                with suppress(OSError):
                    self._file.unlink()
            self._remove_made()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _remove_made(self) -> None:
        with suppress(OSError):  # something is in it
            for folder in self._made:
                folder.rmdir()
        self._made = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_locks(target: Path) -> None:
    """Refuses to go on where a lock of this process over `target` was taken away from it."""
    for lock in list(_HELD):
        place = lock.place.resolve()
        if place in (target.resolve(), *target.resolve().parents) and not lock.is_held:
            raise OutputError(
                f"{str(lock.place)!r} was removed or replaced while it was being written",
                "run the same command again, and one at a time",
            )


def _make(folder: Path) -> list[Path]:
    """Makes a folder and those above it; which of them are new, the deepest first."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        made = _make(folder.parent)
        folder.mkdir(exist_ok=True)
        return [folder, *made]
    except OSError as error:  # there already, be it on a file system that takes no new folders
        try:
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise error from None
        except FileNotFoundError:  # removed again at this moment, which opening the file will see
            if folder.is_symlink() or not isinstance(error, FileExistsError):
                raise error from None
        return []
    return [folder]


def _lock(descriptor: int, file: Path) -> bool:
    """Locks an open file; False while another process holds its lock."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        if error.errno not in _UNKNOWN:
            raise
        notice(f"{file.parent} is on a file system without locks: let no two commands write there")
    return True


def _busy(place: Path, file: Path) -> OutputError:
    return OutputError(
        f"another process is writing into {str(place)!r} (it holds {file})",
        "wait for it to end, or write elsewhere",
    )
