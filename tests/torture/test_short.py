"""A draw of every kind of torture, the same each time; all of it is `make torture`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("kills", "fuzz", "damage", "hostile", "contention", "resources")


@pytest.fixture(scope="module")
def told() -> str:
    """What one process found that went through all kinds; it forks, and so must be a fresh one."""
    command = [sys.executable, "-m", "tests.torture", "--short"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks after importing torch")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found(kind: str, told: str) -> None:
    assert re.findall(r"^(\w+): ", told, re.M) == list(KINDS)
    (tried, found) = re.findall(rf"^{kind}: ([\d,]+) cases, ([\d,]+) with findings", told, re.M)[0]
    assert int(tried) >= 8
    assert found == "0", told
