"""What a worker process does before it imports anything large: so it ends at once when told to."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

_LOOK = 1.0  # seconds between two looks at whether the work is still wanted


def prepare(starter: int, stop: Any, log: Path, gpu: int | None) -> None:
    """Lets a process end with its starter, write into a log, and see one GPU alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the starter decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(starter, stop), daemon=True).start()
    with log.open("ab", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)


def _end_with(starter: int, stop: Any) -> None:
    while os.getppid() == starter and not stop.is_set():
        time.sleep(_LOOK)
    os._exit(1)
