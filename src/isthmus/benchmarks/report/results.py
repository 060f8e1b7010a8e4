"""All runs of a benchmark in one small file, from which its report can be made again.

A row per run and test collection: method, retriever, task, seeds, the mean of every measure, and
what the run took. Of the first measure there is the score of every query too, in the order of the
queries' ids: tests and letters rest on these. The protocol is in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from isthmus.benchmarks.protocol.runs import Cost, Result, Run, Tested
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.scores import Grid
from isthmus.config.output import whole_file
from isthmus.errors import InputError

RESULTS = "results.parquet"
_PROTOCOL = b"isthmus.protocol"
_SCORES = "scores"
_RUN, _COST = tuple(Run.model_fields), tuple(Cost.model_fields)


def write_results(file: Path, name: str, grid: Grid) -> None:
    """Writes all runs that are done; the file appears whole, or not at all."""
    measures = grid.protocol.measures
    rows = [
        {
            **result.run.model_dump(),
            "collection": collection,
            **{measure: test.measures.get(measure) for measure in measures},
            **result.cost.model_dump(),
            _SCORES: grid.per_query(result.run, collection, measures[0]),
        }
        for result in grid.results
        for collection, test in result.tests.items()
    ]
    types = {one: pa.string() for one in (*_RUN, "collection")}
    types |= {"pretraining_seed": pa.int32(), "finetuning_seed": pa.int32()}
    types |= dict.fromkeys((*measures, *_COST), pa.float64())
    types[_SCORES] = pa.list_(pa.float64())
    header = json.dumps({"name": name, **grid.protocol.model_dump(mode="json")})
    table = pa.Table.from_pylist(rows, pa.schema(list(types.items()), {_PROTOCOL: header}))
    with whole_file(file) as stream:
        parquet.write_table(table, stream.buffer, compression="zstd", compression_level=19)


def read_results(file: Path) -> tuple[str, Protocol, Iterator[Result]]:
    """The name of the protocol, the protocol, and the finished runs in a file of results."""
    try:
        table = parquet.read_table(file)
        header = json.loads((table.schema.metadata or {})[_PROTOCOL])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise InputError(
            f"{str(file)!r} holds no results of a benchmark: {error}",
            f"give the folder of a benchmark, or the {RESULTS} of a report",
        ) from None
    name = str(header.pop("name"))
    protocol = Protocol.parse(header, where=str(file))
    return name, protocol, _results(table.to_pylist(), protocol)


def _results(rows: list[dict[str, Any]], protocol: Protocol) -> Iterator[Result]:
    found: dict[Run, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(Run(**{name: row[name] for name in _RUN}), []).append(row)
    first = protocol.measures[0]
    for run, tests in found.items():
        yield Result(
            run=run, settings="",
            cost=Cost(**{name: tests[0][name] for name in _COST}),
            tests={
                row["collection"]: Tested(
                    measures={one: row[one] for one in protocol.measures if row[one] is not None},
                    per_query={first: {f"{n:06}": s for n, s in enumerate(row[_SCORES])}},
                )
                for row in tests
            },
        )  # fmt: skip
