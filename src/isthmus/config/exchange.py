"""Two folders that exchange their names in one step, so that neither name is ever absent."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

_HERE = -100  # AT_FDCWD: paths as they are
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)


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
