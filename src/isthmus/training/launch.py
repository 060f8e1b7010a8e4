"""Work that one process does before the others, under torchrun or alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

# Tokenising, mining or a teacher may take hours, while the other processes wait.
_PATIENCE = timedelta(days=7)


def wait_for_everyone() -> None:
    """Waits until every process has called this."""
    from accelerate import PartialState

    PartialState().wait_for_everyone()


@contextmanager
def main_process_first() -> Iterator[None]:
    """The first process runs the block alone; the others follow and find its files ready."""
    import torch
    from accelerate import PartialState

    # Without cpu=True, accelerate takes several processes without a GPU for single ones.
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=_PATIENCE)
    with state.main_process_first():
        yield
