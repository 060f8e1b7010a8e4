"""Several collections in one comparison: a report for each, and one table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from isthmus.config import Overrides
from isthmus.config.output import claimed, finish
from isthmus.errors import SettingsError
from isthmus.evaluation import EvaluationSettings
from isthmus.evaluation.suite import SuiteReport
from isthmus.progress import notice
from isthmus.workflows.comparison import evaluate


def evaluate_suite(
    collections: Sequence[str],
    models: Sequence[str] | str,
    *,
    split: str | None = None,
    depth: int | None = None,
    measures: str | Sequence[str] | None = None,
    examples: int | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
) -> SuiteReport:
    """The reports of the same systems on several collections, with averages and best-on counts.

    Everything is as in `evaluate` with one collection; `output` has a folder for each, and
    suite.json, table.md and table.tex of all.
    """
    names = _names(collections)
    named = [models] if isinstance(models, str) else list(models)
    if files := [name for name in named if Path(name).is_file()]:
        raise SettingsError(
            f"--models {files[0]!r} is a file: a run answers the queries of one collection",
            "leave out run files, or evaluate one collection after the other",
        )

    def compared(folder: Path | None) -> SuiteReport:
        reports = {}
        for number, (name, spec) in enumerate(names.items(), 1):
            notice(f"{name} ({number} of {len(names)} collections)")
            reports[name] = evaluate(
                collection=spec,
                models=named,
                split=split,
                depth=depth,
                measures=measures,
                examples=examples,
                output=None if folder is None else folder / _plain(name),
                settings=settings,
            )
        return SuiteReport(reports)

    if output is None:
        return compared(None)
    folder = Path(output)
    with claimed(folder, "evaluate", {"collections": list(names.values()), "models": named}):
        suite = compared(folder)
        suite.write(folder)
        finish(folder, {measure: suite.averages(measure) for measure in suite.measures})
    return suite


def _names(specs: Sequence[str]) -> dict[str, str]:
    """A short name for each collection: the folder's, or all after the scheme; else as given."""
    specs = list(dict.fromkeys(specs))
    shorts = {spec: _short(spec) for spec in specs}
    counts = Counter(shorts.values())
    return {shorts[spec] if counts[shorts[spec]] == 1 else spec: spec for spec in specs}


def _short(spec: str) -> str:
    scheme, _, rest = spec.rpartition(":")
    return rest if scheme in ("irds", "hf") else Path(rest).name or spec


def _plain(name: str) -> str:
    """The name as that of a folder."""
    return name.replace("/", "_").replace(":", "_").lstrip(".") or "collection"
