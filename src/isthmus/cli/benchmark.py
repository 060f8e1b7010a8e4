"""`isthmus benchmark run` and `isthmus benchmark report`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.commands import Command, Group, command
from isthmus.cli.options import settings_option

_WIDE = 160

Protocol = Annotated[
    str, typer.Argument(help="A shipped protocol (`isthmus recipes`) or a YAML file's path.")
]
Results = Annotated[
    str, typer.Option(help="Folder of results; what is there already is not run again.")
]
Data = Annotated[
    str | None, typer.Option(help="The folder that {data} in the protocol stands for.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of worker processes (default: 6 per GPU, 1 without; 0 runs in this process)."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(help="Seconds after which nothing runs any more; the same command resumes."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Runs or models by name or pattern, 'TASK.dense.*'. Repeatable."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print missing data, then the jobs, and run nothing.")
]

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def benchmark() -> None:
    """Compare pre-training methods under one protocol, and report what was found.

    Example: isthmus benchmark run pretraining-small --data data --output runs/benchmark
    """


@app.command(cls=Command)
@command
def run(
    protocol: Protocol,
    output: Results,
    data: Data = None,
    workers: Workers = None,
    time_limit: TimeLimit = None,
    only: Only = None,
    dry_run: DryRun = False,
    settings: Annotated[
        list[str] | None, settings_option("benchmark run", "seeds.finetuning=[1,2,3]")
    ] = None,
) -> None:
    """Run every run of a protocol: pre-training methods x retrievers x tasks x seeds.

    Every method is pre-trained at equal tokens from one base, fine-tuned in the same way, and
    tested on the queries of its own collection and of others. Results are in OUTPUT/runs, one small
    file per run. Killed, stopped or on another machine, the same command resumes: results copied
    into OUTPUT/runs count as done where settings and data agree. A run that fails has its reason in
    OUTPUT/isthmus.json, and the others continue.

    Example: isthmus benchmark run pretraining-small --data data --output runs/benchmark
    --workers 8 --time-limit 1500; isthmus benchmark run pretraining-small --data data --output
    runs/benchmark --only '*.dense.bow.*' --dry-run
    """
    outcome = isthmus.benchmark(
        protocol,
        output,
        data=data,
        workers=workers,
        time_limit=time_limit,
        only=only or (),
        dry_run=dry_run,
        settings=settings,
    )
    if not dry_run:
        typer.echo(
            f"{outcome.folder}: {outcome.done} done, {outcome.left} left, "
            f"{len(outcome.failed)} failed"
        )
    if outcome.failed or outcome.missing:
        raise typer.Exit(1)


@app.command(cls=Command)
@command
def report(
    folder: Annotated[
        str,
        typer.Argument(help="The --output of `benchmark run`, or the results.parquet of a report."),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            help="Folder to write (default: FOLDER/report); an earlier report is replaced."
        ),
    ] = None,
    settings: Annotated[list[str] | None, settings_option("benchmark report", "alpha=0.01")] = None,
) -> None:
    """Tables, tests, plots and a verdict per claim, from the runs that are done so far.

    Writes report.html (one page that needs nothing else), report.md, report.json, and
    results.parquet, from which the report can be made again. Letters and verdicts are by t-tests
    over queries and pre-training seeds together, corrected (Holm) over a whole table. Runs that are
    missing are shown as such.

    Example: isthmus benchmark report runs/benchmark; isthmus benchmark report runs/benchmark
    --output docs/results/benchmark --set smallest_effect=0.01
    """
    from rich.console import Console

    found = isthmus.report(folder, output, settings=settings)
    console = Console()
    if not console.is_terminal:  # in a file, a row is a line
        console = Console(width=max(console.width, _WIDE))
    console.print(found)
