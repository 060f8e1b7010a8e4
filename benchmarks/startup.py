"""How long `isthmus --help` takes against the least that its command-line library needs.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import time

_REPEATS = 15
_COMMANDS = {
    "isthmus --help": [sys.executable, "-m", "isthmus", "--help"],
    'python -c "import typer"': [sys.executable, "-c", "import typer"],
    'python -c ""': [sys.executable, "-c", ""],
}


def _fastest(command: list[str]) -> float:
    """The least of several times: what is left when nothing else disturbs."""
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    seconds = {name: _fastest(command) for name, command in _COMMANDS.items()}
    for name, taken in seconds.items():
        ratio = taken / seconds['python -c "import typer"']
        print(f"{name:<26} {taken * 1000:6.0f} ms   {ratio:4.2f} x import typer")
