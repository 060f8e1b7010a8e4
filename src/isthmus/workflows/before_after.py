"""The report of an adaptation: indexes built, systems compared, what changed in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.collections import Collection, Problems, write_run
from isthmus.config.output import writing
from isthmus.evaluation import Report, compare_runs
from isthmus.evaluation.tables import escape_html, page
from isthmus.finetuning.merge import summary
from isthmus.progress import track
from isthmus.records import Run
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.retrieval.verbs.index import BM25, IndexSettings, index
from isthmus.workflows.adapt_settings import AdaptSettings

BEFORE, AFTER, LABELLED = "as it was", "adapted", "adapted + labels"
_TITLE = "Before and after"
_DEPTH = 100
_CANDIDATES = 1000  # that are fused, as `search --with` fuses them

Judged = tuple[Collection, str]
"""A collection and the split of it that is measured."""


def compare(
    settings: AdaptSettings, judged: Judged | None, models: Mapping[str, str]
) -> Report | None:
    """Builds the indexes that are needed; compares the systems where queries are judged."""
    output = Path(settings.output)
    systems = {"BM25": BM25, **(models if judged else dict(list(models.items())[-1:]))}
    folders = {
        name: index(
            settings.documents,
            output / "index" / _slug(name),
            model,
            settings=_index_settings(settings, model),
        )
        for name, model in systems.items()
    }
    if judged is None:
        return None
    searchers = {name: open_searcher(folder) for name, folder in folders.items()}
    return _compared(settings, *judged, searchers, output / "report")


def _index_settings(settings: AdaptSettings, model: str) -> IndexSettings:
    chosen = IndexSettings(passages=settings.passages, **dict(settings.reading))
    if model == BM25 and settings.bm25 is not None:
        return chosen.model_copy(update={"bm25": settings.bm25})
    return chosen


def _compared(
    settings: AdaptSettings,
    collection: Collection,
    split: str,
    systems: Mapping[str, Searcher],
    folder: Path,
) -> Report:
    """The report of systems on a split, and of each fused with BM25 where that is among them."""
    judgements = collection.judgements(split)
    queries = [query for query in collection.queries() if query.id in judgements]
    found = {
        name: searcher.search(queries, _CANDIDATES, Problems("skip"))
        for name, searcher in track(systems.items(), "search", len(systems), "systems")
    }
    if "BM25" in found:
        fusion = fusions.load("weighted_sum")
        found |= {
            f"{name} + BM25": [
                fuse(pair, (1.0, 1.0), fusion)
                for pair in zip(found[name], found["BM25"], strict=True)
            ]
            for name in systems
            if name != "BM25"
        }
    runs = [
        Run(name, {one.query_id: one.top(_DEPTH) for one in rankings})
        for name, rankings in found.items()
    ]
    for run in runs:
        file = folder.parent / "runs" / f"{_slug(run.name)}.trec"
        with writing(file):
            file.parent.mkdir(exist_ok=True, parents=True)
            write_run(file, run)
    report = compare_runs(runs, judgements, settings.evaluation)
    folder.mkdir(parents=True, exist_ok=True)
    report.write(folder)
    return report


def compare_on_guard(
    settings: AdaptSettings, guard: Judged | None, models: Mapping[str, str]
) -> Report | None:
    """The encoder before and after on another collection."""
    if guard is None or settings.guard is None:
        return None
    place = Path(settings.output) / "guard"
    chosen = IndexSettings(**dict(settings.reading))
    searchers = {
        name: open_searcher(index(settings.guard, place / _slug(name), model, settings=chosen))
        for name, model in models.items()
    }
    return _compared(settings, *guard, searchers, place / "report")


def verdict(
    merges: Mapping[str, dict[str, Any] | None], report: Report | None, guarded: Report | None
) -> list[str]:
    """Sentences: what was changed, and whether it helped, as far as can be known."""
    lines = [
        f"{name}: {'all of what was learnt is taken over.' if merge is None else summary(merge)}"
        for name, merge in merges.items()
    ]
    if report is None:
        lines.append("No judged queries: whether real queries gain is NOT MEASURED.")
    else:
        for name in merges:
            lines.append(_sentence(report, name, BEFORE))
            lines.append(_sentence(report, f"{name} + BM25", f"{BEFORE} + BM25"))
    if guarded is not None:
        last = guarded.systems[-1]
        lines.append(f"On the guard collection, {_sentence(guarded, last, BEFORE)}")
    return lines


def _sentence(report: Report, now: str, then: str) -> str:
    measure = report.measures[0]
    for pair in report.tests[measure].pairs:
        if {pair.first, pair.second} == {now, then}:
            means = report.means[measure]
            change = means[now] - means[then]
            word = "NO SIGNIFICANT CHANGE"
            if pair.significant:
                word = "better" if change > 0 else "WORSE: use the encoder as it was"
            return (
                f"{now}: {measure} {means[then]:.3f} before, {means[now]:.3f} after "
                f"({change:+.3f}, p {pair.corrected_p_value:.2g} after correction): {word}."
            )
    raise AssertionError((now, then))


def write(
    output: Path, sentences: list[str], report: Report | None, guarded: Report | None
) -> None:
    """Writes report.md and report.html: the sentences, and the tables that there are."""
    parts, shown = [f"# {_TITLE}", *sentences], [f"<h1>{_TITLE}</h1>"]
    shown += [f"<p>{escape_html(sentence)}</p>" for sentence in sentences]
    for title, found in (("The documents", report), ("The guard collection", guarded)):
        if found is not None:
            table = found.table()
            parts += [f"## {title}", table.markdown()]
            shown += [
                f"<h2>{title}</h2>",
                f'<figure class="table scores">{table.html(inline=False)}</figure>',
            ]
    with writing(output):
        (output / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        (output / "report.html").write_text(page(_TITLE, shown), encoding="utf-8")


def _slug(name: str) -> str:
    return name.replace(" + ", "-").replace(" ", "-").lower()
