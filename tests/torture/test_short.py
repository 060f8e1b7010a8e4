"""A draw of every kind of torture, the same each time; all of it is `make torture`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("kills", "fuzz", "damage", "hostile", "contention", "resources")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks after importing torch")
def test_nothing_is_found() -> None:
    # One process goes through all kinds: it forks, and so must be a fresh one.
    command = [sys.executable, "-m", "tests.torture", "--short"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert ended.returncode in (0, 1), ended.stderr
    counts = re.findall(r"^(\w+): ([\d,]+) cases, ([\d,]+) with findings", ended.stdout, re.M)
    assert [kind for kind, _, _ in counts] == list(KINDS), ended.stdout
    assert all(int(tried.replace(",", "")) >= 8 for _, tried, _ in counts), ended.stdout
    assert all(found == "0" for _, _, found in counts), ended.stdout
