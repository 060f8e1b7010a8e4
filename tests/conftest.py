"""Fixtures that every kind of test shares."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is loaded, here and in children: one thread for each process, since the workers of
# the suite fill all cores, and matrices this small gain nothing from more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does
os.environ["HF_HUB_OFFLINE"] = "1"  # a name that is no file must not be looked for, and waited for

# A shell that starts the suite in its background has Ctrl-C ignored, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Else garbage is looked for again and again in what is being imported and collected.
gc.disable()

# Examples are slow when the machine is busy; what is checked is what they compute.
# Every run draws others; `make test-nightly` draws more of them at once.
settings.register_profile("isthmus", deadline=None, max_examples=25)
settings.register_profile("nightly", deadline=None, max_examples=200)
settings.load_profile("isthmus")

ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One worker more than cores: most wait for the processes that their tests start."""
    return (yield) + 1


def pytest_collection_finish() -> None:
    """Takes what is imported out of later collections of garbage, of which every training has two.

    They would walk through some millions of objects each time.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_other_files() -> Iterator[None]:
    """Takes what the tests of a file leave behind, such as caches, out of later collections too."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def away_from_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs all tests in an empty folder, so that none sees runs/ or indexes/ of the checkout."""
    with contextlib.chdir(tmp_path_factory.mktemp("empty")):
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps what tests make and name out of the user's cache, unless one is chosen for them."""
    with pytest.MonkeyPatch.context() as patch:
        if "ISTHMUS_CACHE" not in os.environ:
            patch.setenv("ISTHMUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leaves out what matters at a power cut alone; tests cut none, but crash and kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves plots out, which take longer than a test's training: as without matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real collections; tests that need it skip, saying so, where it is absent."""
    folder = Path(os.environ.get("ISTHMUS_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real collections not found at {folder} (set ISTHMUS_DATA)")
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums in one order, equal to the last bit, as in a new process with one thread.

    After a bfloat16 product that oneDNN cannot compute (some ARM chips), torch switches oneDNN off
    for the rest of the process, which changes sums in float32 too.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.backends.mkldnn.flags(enabled=True):
        yield
    torch.set_num_threads(threads)
