"""Models compared in one command: the numbers of the long way, and nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import isthmus


def test_one_command_gives_what_indexing_searching_and_evaluating_give(
    commands: Any, collection: Path, model: Path, tmp_path: Path
) -> None:
    qrels = collection / "qrels" / "train.tsv"
    judged = [line for n, line in enumerate(qrels.read_text().splitlines()) if n % 3 < 2]
    part = tmp_path / "part"  # only some of the queries are judged
    (part / "qrels").mkdir(parents=True)
    (part / "qrels" / "dev.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")
    for name in ("corpus.jsonl", "queries.jsonl"):
        (part / name).symlink_to(collection / name)
    asked = {line.split("\t")[0] for line in judged[1:]}
    every = (collection / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [line for line in every if json.loads(line)["_id"] in asked]
    assert len(lines) < len(every)
    # The same company in a batch: rounding depends on it.
    (tmp_path / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    indexes = {name: tmp_path / name for name in ("dense", "bm25", "both")}
    vector = ("-m", model, "-s", "tokens=false")
    commands.succeed("index", part, *vector, "-o", indexes["dense"], "-s", "bm25=false")
    commands.succeed("index", part, "-o", indexes["bm25"])
    commands.succeed("index", part, *vector, "-o", indexes["both"])
    ways = {"tiny": "dense", "bm25": "bm25", "tiny+bm25": "both"}
    for name, index in ways.items():
        run = ("-o", tmp_path / f"{name}.trec", "-k", "100")
        commands.succeed("search", indexes[index], "--queries", tmp_path / "queries.jsonl", *run)
    runs = [tmp_path / f"{name}.trec" for name in ways]
    long_way = isthmus.evaluate(part / "qrels" / "dev.tsv", runs)

    cache, command = tmp_path / "cache", ("evaluate", part, model, "bm25", f"{model}+bm25")
    command += ("--output", tmp_path / "report")
    first = commands.succeed(*command, cache=cache)
    assert f"{len(judged) - 1} judged queries of the split 'dev'" in first.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["systems"] == list(ways)
    assert report["means"] == long_way.means
    assert report["tests"].keys() == long_way.tests.keys()
    for run in runs:  # of judged queries alone
        written = tmp_path / "report" / "runs" / run.name.replace("+", "-")
        assert written.read_text() == run.read_text()

    again = commands.succeed(*command, cache=cache)
    assert again.stderr.count("its index is in the cache") == 2
    assert "indexing" not in again.stderr
    assert again.stdout == first.stdout
    # Indexes that are there, and run files of elsewhere, beside what is made for it.
    others = (indexes["dense"], runs[1], f"{indexes['dense']}+{indexes['bm25']}")
    compared = commands.succeed("evaluate", part, *others, cache=cache)
    assert "indexing" not in compared.stderr
    for row in ("dense", "bm25", "dense+bm25"):
        assert row in compared.stdout


def test_ids_of_files_with_spaces_from_a_folder_to_the_report(
    commands: Any, tmp_path: Path
) -> None:
    folder, run = tmp_path / "notes", tmp_path / "bm25.trec"
    folder.mkdir()
    for name, text in {"my notes.md": "tigers hunt", "c.txt": "bears"}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (tmp_path / "queries.tsv").write_text("q1\ttigers\nq2\tbears\n", encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("q1 0 my%20notes.md 1\nq2 0 c.txt 1\n", encoding="utf-8")
    commands.succeed("index", folder, "--output", tmp_path / "index")
    commands.succeed(
        "search", tmp_path / "index", "--queries", tmp_path / "queries.tsv", "--output", run
    )
    report = isthmus.evaluate(tmp_path / "qrels.txt", run, measures="RR@10")
    assert report.per_query["RR@10"]["bm25"] == {"q1": 1, "q2": 1}
