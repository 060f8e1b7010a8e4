"""The command `isthmus research report`: from a folder of runs to tables, verdicts and plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus.benchmarks.protocol.runs import RUNS, Result, read_result
from isthmus.benchmarks.protocol.settings import read_protocol
from isthmus.benchmarks.report.plot import verdict_plot
from isthmus.benchmarks.report.results import RESULTS, read_results, write_results
from isthmus.benchmarks.report.scores import Grid
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.tables import (
    cost_tables,
    expected_table,
    finding_table,
    score_tables,
    verdict_line,
    verdict_table,
)
from isthmus.benchmarks.report.verdicts import Verdict, rule, verdicts
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, whole_file, write_json
from isthmus.errors import InputError
from isthmus.evaluation.tables import Shown, Table, escape_html, escape_markdown, page
from isthmus.progress import notice, track

REPORT = "report"


@dataclass(frozen=True, repr=False)
class BenchmarkReport(Shown):
    """What a benchmark found, as far as its runs are done."""

    title: str
    summary: str
    settings: ReportSettings
    verdicts: tuple[Verdict, ...]
    scores: tuple[Table, ...]
    costs: tuple[Table, ...]
    expected: Table | None
    plot: str

    def tables(self) -> Iterator[str | Table]:
        """The summary, the first table of scores, and a line per verdict."""
        yield self.summary
        yield from self.scores[:1]
        yield from map(verdict_line, self.verdicts)

    def markdown(self) -> str:
        """All tables and verdicts as GitHub renders them."""
        parts = [f"# {escape_markdown(self.title)}", escape_markdown(self.summary)]
        for title, tables in self._sections():
            parts += [f"## {title}", *(table.markdown() for table in tables)]
        parts += ["## How this was computed", rule(self.settings)]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def html(self) -> str:
        """The report as one page that needs nothing but itself."""
        parts = [f"<header><h1>{escape_html(self.title)}</h1>",
                 f"<p>{escape_html(self.summary)}</p></header>"]  # fmt: skip
        for title, tables in self._sections():
            parts.append(f"<section><h2>{title}</h2>")
            for table in tables:
                figure = f'<figure class="table scores">{table.html(inline=False)}</figure>'
                parts.append(figure)
            parts.append("</section>")
        if self.plot:
            caption = "Differences that verdicts rest on, with their intervals"
            figure = f"<figure class=plots><figcaption>{caption}</figcaption>{self.plot}</figure>"
            parts.append(figure)
        return page(self.title, [*parts, f"<p>{rule(self.settings)}</p>"])

    def to_dict(self) -> dict[str, Any]:
        """Verdicts and tables as plain values."""
        return {
            "title": self.title,
            "summary": self.summary,
            "settings": self.settings.model_dump(mode="json"),
            "verdicts": [{**asdict(one), "claim": one.claim.model_dump()} for one in self.verdicts],
            "tables": [asdict(one) for one in self.scores],
        }

    def _sections(self) -> list[tuple[str, list[Table]]]:
        decided = [verdict_table(self.verdicts), finding_table(self.verdicts)]
        sections: list[tuple[str, Sequence[Table | None]]] = [
            ("Verdicts", decided if self.verdicts else []),
            ("Scores", self.scores),
            ("Costs", self.costs),
            ("What the papers report", [self.expected]),
        ]
        found = [(title, [one for one in tables if one]) for title, tables in sections]
        return [(title, tables) for title, tables in found if tables]


def report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    settings: ReportSettings | Overrides = None,
) -> BenchmarkReport:
    """The report of a benchmark, however many of its runs are done; an earlier one is replaced.

    Args:
        folder: Folder of a benchmark, or the results.parquet of an earlier report.
        output: Folder for report.html, report.md, report.json and results.parquet (default:
            FOLDER/report).
        settings: Settings of the tests.

    """
    settings = ReportSettings.given(settings)
    folder = Path(folder)
    if folder.is_file():
        name, protocol, results = read_results(folder)
        target = folder.absolute().parent / REPORT
    else:
        name, protocol = read_protocol(folder)
        results, target = _results(folder), folder / REPORT
    target = target if output is None else Path(output)
    grid = Grid(protocol, results)
    if grid.others:
        notice(f"{grid.others:,} runs are not in the protocol: left out")
    if not grid.results:
        raise InputError(
            f"no run of the benchmark in {str(folder)!r} is finished",
            "run the benchmark, or copy the results here from the machine that ran it",
        )
    found = verdicts(grid, settings)
    made = BenchmarkReport(
        title=f"Benchmark {name}".strip(),
        summary=_summary(grid),
        settings=settings,
        verdicts=tuple(found),
        scores=tuple(score_tables(grid, settings)),
        costs=tuple(cost_tables(grid)),
        expected=expected_table(grid),
        plot=verdict_plot(found),
    )
    with claimed(target, settings.verb, {"protocol": name}):
        for file, content in (("report.html", made.html()), ("report.md", made.markdown())):
            with whole_file(target / file) as stream:
                stream.write(content)
        write_json(target / "report.json", made.to_dict())
        write_results(target / RESULTS, name, grid)
        finish(target, {"verdicts": {one.name: one.decision for one in found}})
    return made


def _results(folder: Path) -> Iterator[Result]:
    """Every result in a folder, one after the other."""
    found = sorted((folder / RUNS).glob("*.json"))
    files = [file for file in found if not file.name.startswith(".")]  # of file systems
    for file in track(files, "reading runs", total=len(files), unit="run"):
        yield read_result(file)


def _summary(grid: Grid) -> str:
    """What was run, how much of it is done, and what that can say."""
    protocol = grid.protocol
    return (
        f"{len(protocol.methods)} methods, {len(protocol.retrievers)} types of retriever, "
        f"{len(protocol.tasks)} tasks: {len(grid.results):,} of {len(grid.planned):,} runs are "
        "done. "
        + ("At the papers' scale." if protocol.scale == "paper" else
           "At a small scale: whether a claim holds at the papers' is not decided here.")
    )  # fmt: skip
