"""Queries and judgements from a file or from a split of a collection, and what measures by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isthmus
from isthmus.api import search
from isthmus.collections import open_judged, open_queries, read_run
from isthmus.errors import InputError, SettingsError
from isthmus.records import Query


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    documents = {"d1": "wings of small aircraft", "d2": "boundary layers", "d3": "heat and shock"}
    queries = {"q1": "shock", "q2": "wings", "q3": "boundary", "q4": "heat"}
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(f"{header}q1\td3\t1\n")
    (folder / "qrels" / "train.tsv").write_text(f"{header}q3\td2\t2\nq2\td1\t1\nq2\td2\t0\n")
    return folder


@pytest.mark.parametrize("scheme", ["", "beir:"])
def test_a_collection_gives_the_judged_queries_of_a_split(folder: Path, scheme: str) -> None:
    spec = f"{scheme}{folder}"
    assert open_queries(spec) == [Query("q1", "shock")]  # of test
    assert open_queries(spec, "train") == [Query("q2", "wings"), Query("q3", "boundary")]
    assert open_judged(spec).judgements == {"q1": {"d3": 1}}
    assert open_judged(spec, "train").judgements == {"q3": {"d2": 2}, "q2": {"d1": 1, "d2": 0}}
    assert len(open_queries(folder / "queries.jsonl")) == 4
    assert (
        open_judged(folder / "qrels" / "train.tsv").judgements
        == open_judged(spec, "train").judgements
    )


def test_a_folder_without_judgements_still_has_queries(folder: Path) -> None:
    for file in (folder / "qrels").iterdir():
        file.unlink()
    assert [query.id for query in open_queries(folder)] == ["q1", "q2", "q3", "q4"]
    with pytest.raises(InputError, match="no queries and judgements"):
        open_judged(folder)
    with pytest.raises(SettingsError, match="no split named 'dev'"):
        open_queries(folder, "dev")


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="a file, which has no splits"):
        open_queries(folder / "queries.jsonl", "test")
    with pytest.raises(SettingsError, match="no split named 'tset'"):
        open_judged(folder, "tset")
    with pytest.raises(InputError, match="documents, but no queries"):
        open_queries(f"jsonl:{folder / 'corpus.jsonl'}")
    with pytest.raises(InputError, match="there is no file"):
        open_queries(folder / "quries.jsonl")
    with pytest.raises(SettingsError, match="no collection format named 'irsd'"):
        open_queries("irsd:beir/scifact")
    with pytest.raises(InputError, match="one query is given"):
        search("index", "wings", split="test")


def test_what_is_indexed_can_be_searched_and_measured_by_its_name(
    folder: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    isthmus.index(str(folder), index)
    run = tmp_path / "train.trec"
    search(index, queries=str(folder), split="train", output=run)
    assert set(read_run(run).rankings) == {"q2", "q3"}
    report = isthmus.evaluate(str(folder), run, split="train", measures="RR@10")
    assert report.queries == 2
    assert report.means["RR@10"]["train"] == 1.0
    by_file = isthmus.evaluate(folder / "qrels" / "train.tsv", run, measures="RR@10")
    assert by_file.per_query == report.per_query
    with pytest.raises(isthmus.IsthmusError, match="answers none of the 1 judged queries"):
        isthmus.evaluate(str(folder), run)
