"""Inputs made from valid ones by chance: each is read, or refused in the project's own words.

Any other exception, more than some seconds or more than a GiB for a small file, is a finding.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.torture.children import Child
from tests.torture.inputs import Target, targets
from tests.torture.scene import Case, Job, Outcome, Scene

BATCH = 2_000
_SECONDS = 10
_MEMORY = 2**30
_NUMBER = re.compile(rb"-?\d[\d.]*")
_STRING = re.compile(rb'"[^"\n]*"')
_WORD = re.compile(rb"[\w.]+")
_NUMBERS = (
    b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"-Infinity", b"9" * 20, b"9" * 5_000, b"1_0", b"0x1f",
    "٣".encode(), b"1e-400", b"true", b"null", b"{}", b"[[1]]", b'"1"', b"2147483648",
)  # fmt: skip
_PIECES = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n", b"\n\n",
    b"\t", b"\x0b", b"\x1c", "\u2028".encode(), "\u0085".encode(), b"\xed\xa0\x80",
    b"\\ud800", b"\\u0000", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b": ", b"- ",
    b"&a [*a]", b"*a", b"<<: *a", b"!!set {a}", b"!!python/name:os.system ", b"!!binary x",
    b"!!timestamp 2024-13-45", b"2024-13-45", b"|", b">", b"2001-02-30 25:61:61", b"%", b"@",
    b"`", b"#", b"=", b"..", b"../../etc/passwd", b"/etc/passwd", b"~", b"<script>", b"<!--",
    b"&#x110000;", b"&#99999999999;", b"<![CDATA[", b"<?", b"\x1b[2J", b"A" * 3_000,
    b"[" * 60, b'{"a":' * 60, b"Infinity", b"\x80" * 9,
)  # fmt: skip
_DEEP = (b"[" * 20_000, b'{"a":' * 20_000, b"{a: " * 3_000, b"- " * 3_000, b"<div>" * 5_000)


class Hang(BaseException):
    """What the watchdog raises."""


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per target and seed of a batch."""
    scene.clear(Job(""))
    found = []
    for name, target in targets(scene).items():
        size = max(3, min(100, 4 * target.batches)) if short else BATCH
        for seed in range(1 if short else target.batches):
            run = partial(_batch, scene, name, target, seed, size)
            found.append(Case(f"{name}:{seed}", run))
    return found


def mutated(seeds: list[bytes], generator: random.Random) -> bytes:
    """A valid input after one to five accidents."""
    data = generator.choice(seeds)
    for _ in range(generator.choice((1, 1, 1, 2, 3, 5))):
        start = generator.randrange(len(data) + 1)
        end = min(len(data), start + int(generator.expovariate(0.1)))
        choice = generator.randrange(100)
        if choice < 15 and start < len(data):
            flipped = data[start] ^ (1 << generator.randrange(8))
            data = data[:start] + bytes([flipped]) + data[start + 1 :]
        elif choice < 25:
            data = data[:start]
        elif choice < 35:
            data = data[:start] + data[end:]
        elif choice < 45:
            data = data[:end] + data[start:end] * generator.randint(1, 3) + data[end:]
        elif choice < 52:
            other = generator.choice(seeds)
            data = data[:start] + other[generator.randrange(len(other) + 1) :]
        elif choice < 70:
            data = data[:start] + generator.choice(_PIECES) + data[start:]
        elif choice < 99:
            what = generator.choice((_NUMBER, _STRING, _WORD))
            if places := list(what.finditer(data)):
                place = generator.choice(places)
                new = generator.choice((*_NUMBERS, *_PIECES, *(p[0] for p in places[:20])))
                data = data[: place.start()] + new + data[place.end() :]
        else:
            data = data[:start] + generator.choice(_DEEP) + data[start:]
    return data


def _batch(scene: Scene, name: str, target: Target, seed: int, size: int) -> Outcome:
    # Hundreds of models loaded by one process leave little of an address space of one GiB.
    limits = {resource.RLIMIT_AS: _MEMORY * (8 if name == "model shape" else 1)}
    child = Child(lambda: _read_all(name, target, seed, size), scene.place, limits=limits)
    ended = child.end(600)
    if ended.value is None:
        return Outcome(Counter({name: 0}), [f"{ended.tail} after {target.last()!r}"])
    tried, findings = ended.value
    return Outcome(Counter({name: tried}), findings)


def _read_all(name: str, target: Target, seed: int, size: int) -> tuple[int, list[str]]:
    from isthmus.errors import IsthmusError

    def alarm(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, alarm)
    generator = random.Random(f"{name} {seed}")
    found: dict[str, list[str]] = {}
    for number in range(size):
        data = mutated(target.seeds, generator)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            target.read(data)
        except IsthmusError as error:
            str(error)
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "isthmus/" in frame.filename] or frames
            place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            told = f"input {number}: {str(error)[:120]!r} from {data[:200]!r}"
            found.setdefault(f"{type(error).__name__} at {place}", []).append(told)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return size, [f"{len(told)} x {kind}: {told[0]}" for kind, told in found.items()]
