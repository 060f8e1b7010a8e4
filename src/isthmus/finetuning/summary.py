"""What came of a pipeline: a row per stage, in the order they ran."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from isthmus.config.output import read_snapshot
from isthmus.evaluation.tables import Cell, Table, format_score
from isthmus.finetuning.negatives._base import negative_sources

SUMMARY = "stages.md"


def summary(output: Path) -> Table | None:
    """Each stage with its negatives, teacher, development measure and time; None of a lone stage.

    The measure is that of the model that was kept, the best, which may be the one that the stage
    started from; times are of the process that finished
    the stage, without those that were interrupted before.
    """
    stages = read_snapshot(output).get("results", {}).get("stages")
    if stages is None:
        return None
    found = {name: read_snapshot(output / folder) for name, folder in stages.items()}
    looked = {name: snapshot["results"].get("development", {}) for name, snapshot in found.items()}
    measures = list(dict.fromkeys(look["measure"] for look in looked.values() if look))
    columns = ("stage", "encoder", "negatives", "teacher", *measures, "time")
    rows = []
    for name, snapshot in found.items():
        settings = snapshot["identity"]["settings"]
        look = looked[name]
        cells = [
            name,
            settings["encoder"],
            _negatives(settings),
            _teacher(snapshot),
            *(_score(look) if look.get("measure") == measure else "" for measure in measures),
            str(timedelta(seconds=round(snapshot["results"]["seconds"]))),
        ]
        rows.append(tuple(map(Cell, cells)))
    caption = "A re-ranker orders the best of BM25 only: its measure is not a retriever's."
    kinds = {snapshot["identity"]["settings"]["encoder"] for snapshot in found.values()}
    mixed = measures and len(kinds) > 1 and "cross" in kinds
    captions = [caption] if mixed else []
    if any("teacher" in snapshot["results"] for snapshot in found.values()):
        captions.append(
            "Beside a teacher: how well it orders what a retriever found, against that retriever."
        )
    return Table(columns, tuple(rows), " ".join(captions), names=4)


def next_step(output: Path) -> str:
    """What was made, and the command that follows."""
    results = read_snapshot(output)["results"]
    stages = {name: output / folder for name, folder in results.get("stages", {}).items()}
    if _kind(stages[results["final"]] if stages else output) == "cross":
        return f"re-ranker: {output / 'final'}\nnext: isthmus search INDEX … --rerank {output}"
    step = f"isthmus index --model {output} --corpus … --output INDEX"
    rerankers = [folder for folder in stages.values() if _kind(folder) == "cross"]
    made = [f"retriever: {output / 'final'}", *(f"re-ranker: {folder}" for folder in rerankers)]
    if rerankers:
        step += f", then isthmus search INDEX … --rerank {rerankers[-1]}"
    return "\n".join([*made, f"next: {step}"])


def _kind(folder: Path) -> str:
    return str(read_snapshot(folder)["identity"]["settings"]["encoder"])


def _score(look: dict[str, Any]) -> str:
    if "value" not in look:
        return "none"
    kept = format_score(look["value"])
    return f"{kept}, not trained" if look.get("step") == 0 else kept


def _negatives(settings: dict[str, Any]) -> str:
    sources = negative_sources(settings["negatives"], teacher=True)
    shown = []
    for source, values in zip(sources, _listed(settings["negatives"]), strict=True):
        who = values.get("model") or values["name"]
        shown.append(f"{source.settings.num_negatives} of {who}")
    return " + ".join(shown) or "of the batch"


def _listed(chosen: Any) -> list[dict[str, Any]]:
    return chosen if isinstance(chosen, list) else [chosen] if chosen else []


def _teacher(snapshot: dict[str, Any]) -> str:
    """Who taught, and how well it ranks beside the retriever that it judged."""
    teacher = snapshot["identity"]["settings"]["teacher"]
    if not teacher:
        return ""
    named = str(teacher.get("model") or teacher.get("file"))
    checked = snapshot["results"].get("teacher")
    if checked is None:
        return named
    both = (format_score(checked[who]) for who in ("teacher", "retriever"))
    return f"{named}, {' against '.join(both)}"
