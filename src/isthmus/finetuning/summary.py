"""The results of a pipeline: a row per stage, in the order they ran."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from isthmus.config.output import read_snapshot
from isthmus.evaluation.tables import Cell, Table, format_score
from isthmus.finetuning.negatives import listed, negative_sources
from isthmus.finetuning.registries import KINDS

SUMMARY = "stages.md"


def summary(output: Path) -> Table | None:
    """Each stage with its negatives, teacher, development measure and time; None for a lone stage.

    The measure is the best model's, which may be the one that the stage started from. Times leave
    out processes that were interrupted before the one that finished the stage.
    """
    stages = read_snapshot(output).get("results", {}).get("stages")
    if stages is None:
        return None
    found = {name: read_snapshot(output / folder) for name, folder in stages.items()}
    evaluated = {name: each["results"].get("development", {}) for name, each in found.items()}
    measures = list(dict.fromkeys(best["measure"] for best in evaluated.values() if best))
    columns = ("stage", "encoder", "negatives", "teacher", *measures, "time")
    rows = []
    for name, snapshot in found.items():
        settings = snapshot["identity"]["settings"]
        best = evaluated[name]
        cells = [
            name,
            settings["encoder"],
            _negatives(settings),
            _teacher(snapshot),
            *(_score(best) if best.get("measure") == measure else "" for measure in measures),
            str(timedelta(seconds=round(snapshot["results"]["seconds"]))),
        ]
        rows.append(tuple(map(Cell, cells)))
    caption = "A re-ranker orders the best of BM25 only: its measure is not a retriever's."
    mixed = measures and len({_retrieves(snapshot) for snapshot in found.values()}) > 1
    captions = [caption] if mixed else []
    captions += dict.fromkeys(_chosen_by(snapshot) for snapshot in found.values())
    if any("teacher" in snapshot["results"] for snapshot in found.values()):
        captions.append(
            "Beside a teacher: how well it orders what a retriever found, against that retriever."
        )
    return Table(columns, tuple(rows), " ".join(captions), names=4)


def result(output: Path) -> Group:
    """The table of stages, the models that were made, and what chose them."""
    table, (retriever, rerankers) = summary(output), _made(output)
    lines = [] if retriever is None else [f"retriever: {retriever}"]
    lines += [f"re-ranker: {folder}" for folder in rerankers]
    if table is None:  # which says it of each stage
        return Group(Text("\n".join([*lines, _chosen_by(read_snapshot(output))])))
    return Group(table.terminal(), Text("\n".join(lines)))


def next_words(output: Path) -> list[str]:
    """The command that uses what was made, after `isthmus`."""
    if _made(output)[0] is None:
        return ["search", "INDEX", "QUERY", "--rerank", str(output)]
    return ["index", "DOCUMENTS", "-m", str(output), "-o", "INDEX"]


def _made(output: Path) -> tuple[Path | None, list[Path]]:
    """The folder of the retriever, if one was trained, and those of re-rankers."""
    results = read_snapshot(output)["results"]
    stages = {name: output / folder for name, folder in results.get("stages", {}).items()}
    if not _retrieves(read_snapshot(stages[results["final"]] if stages else output)):
        return None, [output / "final"]
    rerankers = [folder for folder in stages.values() if not _retrieves(read_snapshot(folder))]
    return output / "final", rerankers


def _retrieves(snapshot: dict[str, Any]) -> bool:
    retrieves: bool = KINDS.load(snapshot["identity"]["settings"]["encoder"]).retrieves
    return retrieves


def _chosen_by(snapshot: dict[str, Any]) -> str:
    """A sentence about the queries that chose the model."""
    selection = snapshot["results"]["selection"]
    if selection["split"] is None:
        return "No development queries chose a model."
    if selection["drawn"]:
        return "Models are chosen by queries drawn from the documents."
    if selection["held_out"]:
        return f"Models are chosen by queries held out of the split {selection['split']!r}."
    chosen = f"Models are chosen by the split {selection['split']!r}"
    if reported := selection["reported"]:
        chosen += f", on which papers report their results on {reported}: NOT COMPARABLE with them"
    return f"{chosen}."


def _score(best: dict[str, Any]) -> str:
    if "value" not in best:
        return "none"
    kept = format_score(best["value"])
    return f"{kept}, not trained" if best.get("step") == 0 else kept


def _negatives(settings: dict[str, Any]) -> str:
    sources = negative_sources(settings["negatives"], teacher=True)
    shown = []
    for source, values in zip(sources, listed(settings["negatives"]), strict=True):
        named = values.get("model") or values["name"]
        shown.append(f"{source.settings.num_negatives} of {named}")
    return " + ".join(shown) or "of the batch"


def _teacher(snapshot: dict[str, Any]) -> str:
    """The teacher, and how well it ranks beside the retriever whose results it re-ranked."""
    teacher = snapshot["identity"]["settings"]["teacher"]
    if not teacher:
        return ""
    named = str(teacher.get("model") or teacher.get("file"))
    checked = snapshot["results"].get("teacher")
    if checked is None:
        return named
    both = (format_score(checked[system]) for system in ("teacher", "retriever"))
    return f"{named}, {' against '.join(both)}"
