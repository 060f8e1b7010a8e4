"""A draw of every kind of torture, the same each time; all of it is `make torture`."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

KINDS = ("kills", "fuzz", "damage", "resealed", "hostile", "contention", "resources")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks after importing torch")
@pytest.mark.nightly
def test_nothing_is_found(commands: Any) -> None:
    # One process goes through all kinds, and forks: no test has run in the one it comes from.
    ended = commands.run("--short", module="tests.torture.__main__")
    assert ended.returncode in (0, 1), ended.stderr
    counts = re.findall(r"^(\w+): ([\d,]+) cases, ([\d,]+) with findings", ended.stdout, re.M)
    assert [kind for kind, _, _ in counts] == list(KINDS), ended.stdout
    assert all(int(tried.replace(",", "")) >= 8 for _, tried, _ in counts), ended.stdout
    assert all(found == "0" for _, _, found in counts), ended.stdout
