"""Does its worst to isthmus, and says what it found.

    python -m tests.torture                  # everything, some hours; run again, it goes on
    python -m tests.torture kills damage     # some kinds
    python -m tests.torture 'kills/add dense@17'  # one case again
    python -m tests.torture --short          # a draw of each kind, within a minute

Finished cases are lines of runs/torture/cases.jsonl (or --state FILE). Exits with 1 where anything
was found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from tests.torture.children import preload
from tests.torture.scene import Outcome, Scene

KINDS = ("kills", "fuzz", "damage", "resealed", "hostile", "contention", "resources")


def main() -> int:
    """0 if nothing was found in the chosen cases, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("chosen", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}, or a case")
    parser.add_argument("--short", action="store_true", help="a draw of each kind")
    parser.add_argument("--state", type=Path, help="where finished cases are recorded")
    options = parser.parse_args()
    state = options.state or (None if options.short else Path("runs/torture/cases.jsonl"))
    done = {} if state is None or not state.is_file() else _recorded(state)
    preload()
    memory = Path("/dev/shm")  # what is in memory needs no disk that waits
    room = memory.is_dir() and shutil.disk_usage(memory).free > 2 * 2**30
    folder = Path(tempfile.mkdtemp(prefix="isthmus-torture-", dir=memory if room else None))
    try:
        scene = Scene(folder)
        for kind in KINDS:
            if not options.chosen or any(word.split("/")[0] == kind for word in options.chosen):
                _torture(scene, kind, options.chosen, options.short, state, done)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _summary(done)


def _torture(
    scene: Scene,
    kind: str,
    chosen: list[str],
    short: bool,
    state: Path | None,
    done: dict[str, Outcome],
) -> None:
    """Runs the cases of a kind that are wanted and not done yet."""
    single = {word for word in chosen if "/" in word}
    for case in import_module(f"tests.torture.{kind}").cases(scene, short):
        name = f"{kind}/{case.name}"
        if name not in single and (name in done or (single and kind not in chosen)):
            continue
        started = time.monotonic()
        outcome = done[name] = case.run()
        if state is not None:
            state.parent.mkdir(parents=True, exist_ok=True)
            line = {"case": name, "counts": outcome.counts, "findings": outcome.findings}
            with state.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        if outcome.findings or single:
            print(f"{name} ({time.monotonic() - started:.1f} s): {dict(outcome.counts)}")
            print("".join(f"    FOUND {finding}\n" for finding in outcome.findings), flush=True)


def _recorded(state: Path) -> dict[str, Outcome]:
    lines = [json.loads(line) for line in state.read_text(encoding="utf-8").splitlines()]
    return {line["case"]: Outcome(Counter(line["counts"]), line["findings"]) for line in lines}


def _summary(done: dict[str, Outcome]) -> int:
    """Prints counts and findings by kind; 1 where there are findings."""
    for kind in KINDS:
        outcomes = {n: outcome for n, outcome in done.items() if n.split("/")[0] == kind}
        counts = sum((outcome.counts for outcome in outcomes.values()), Counter())
        found = [n for n, outcome in outcomes.items() if outcome.findings]
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        if outcomes:
            print(f"{kind}: {len(outcomes):,} cases, {len(found):,} with findings; {told}")
            for name in found[:20]:
                print(f"    again: python -m tests.torture {name!r}")
    return int(any(outcome.findings for outcome in done.values()))


if __name__ == "__main__":
    sys.exit(main())
