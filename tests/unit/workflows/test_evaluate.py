"""The command `evaluate`: collections, qrels and runs of every form, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.factories import write_collection, write_encoder

import isthmus
from isthmus.cli import app
from isthmus.collections import open_corpus
from isthmus.encoders import SparseEncoder, SparseSettings
from isthmus.errors import OutputError, SettingsError
from isthmus.evaluation import Report
from isthmus.nn.backbone import new_backbone
from isthmus.retrieval.index import BM25
from isthmus.text.tokenizer import new_tokenizer

FAST = {"bootstrap_samples": 10}
QRELS = {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two collections of one topic each; the second's first query is a document's id too."""
    folder = tmp_path_factory.mktemp("suite")
    made = []
    for name, words in {"cats": "tiger lion bear wolf", "snow": "snow ice hail rain"}.items():
        texts = {f"{name}{n}": f"{word} " * (n + 1) + words for n, word in enumerate(words.split())}
        asked = {f"q{n}": word for n, word in enumerate(words.split())}
        judged = {"test": [(f"q{n}", f"{name}{n}") for n in range(4)]}
        write_collection(folder / name, texts, asked, judged)
        made.append(folder / name)
    return made


def test_files_give_the_same_report_as_mappings(tmp_path: Path) -> None:
    (tmp_path / "mine.trec").write_text(
        "q1 Q0 d1 1 2.0 tag\nq2 Q0 d9 1 2.0 tag\nq2 Q0 d2 2 1.0 tag\n"
    )
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\nq3 0 d3 1\n")
    report = isthmus.evaluate(tmp_path / "qrels.txt", tmp_path / "mine.trec", settings=FAST)
    run = {"q1": {"d1": 2.0}, "q2": {"d9": 2.0, "d2": 1.0}}
    expected = isthmus.evaluate(QRELS, {"mine": run}, settings=FAST)
    assert report.model_copy(update={"name": "collection"}) == expected
    assert report.means["RR@10"]["mine"] == 0.5


def test_the_output_folder_holds_tables_scores_and_what_made_them(tmp_path: Path) -> None:
    runs = {"a_1": {"q1": {"d1": 1.0}}, "b&2": {"q2": {"d2": 1.0}, "q1": {"d1": 1.0}}}
    folder = tmp_path / "report"
    how: Any = {"measures": "RR@10 R@5", "settings": FAST, "output": folder}
    report = isthmus.evaluate(QRELS, runs, **how)
    assert Report.from_json((folder / "report.json").read_text()) == report
    assert "| b | b&2 |" in (folder / "table.md").read_text()
    assert r"b\&2" in (folder / "table.tex").read_text()
    lines = (folder / "per_query.tsv").read_text().splitlines()
    assert lines[0] == "measure\tquery\ta_1\tb&2"
    assert lines[2] == "RR@10\tq2\t0.0\t1.0"
    assert len(lines) == 1 + 2 * 3
    snapshot = json.loads((folder / "isthmus.json").read_text())
    assert snapshot["complete"]
    assert snapshot["results"] == report.means

    isthmus.evaluate(QRELS, runs, **how)  # the same job again is welcome
    with pytest.raises(OutputError, match=r"differs in systems\.b&2"):
        isthmus.evaluate(QRELS, runs | {"b&2": {"q2": {"d2": 1.0}}}, **how)


def test_the_command_on_two_collections(collections: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "report"
    words = [str(collections[0]), "bm25", "bm25+bm25", "--also", str(collections[1])]
    words += ["-o", str(folder), "--json", "-q", "--set", "bootstrap_samples=10"]
    ended = CliRunner().invoke(app, ["evaluate", *words, "--measures", "RR@10"])
    assert ended.exit_code == 0, ended.output
    report = Report.from_json(ended.stdout)
    alone = isthmus.evaluate(str(collections[1]), "bm25", measures=["RR@10"], settings=FAST)
    assert report.also["snow"].means["RR@10"]["bm25"] == alone.means["RR@10"]["bm25"] == 1
    assert report.best_on("RR@10") == {"bm25": 2, "bm25+bm25": 2}
    assert Report.from_json((folder / "report.json").read_text()) == report
    assert "| average | best on |" in (folder / "table.md").read_text(encoding="utf-8")
    written = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.trec"))
    assert written == [
        f"runs/{name}/{run}.trec" for name in ("cats", "snow") for run in ("bm25-bm25", "bm25")
    ]
    again = CliRunner().invoke(app, ["evaluate", *words, "--measures", "RR@10"])
    assert again.stdout == ended.stdout
    with pytest.raises(SettingsError, match="has the documents of one collection"):
        isthmus.evaluate(collections[0], folder / written[0], also=[collections[1]])


def test_examples_have_texts(collections: list[Path], tmp_path: Path) -> None:
    other = {f"q{n}": {f"cats{(n + 1) % 4 if n < 3 else 3}": 1.0} for n in range(4)}
    found = isthmus.evaluate(
        collections[0], {"other": other, "bm25": "bm25"}, examples=2, measures="RR@10",
        output=tmp_path / "report", settings=FAST,
    )  # fmt: skip
    assert [one.query for one in found.examples] == ["q0", "q1"]
    first = found.examples[0]
    assert (first.text, first.hits["bm25"].document) == ("tiger", "cats0")
    assert first.hits["other"].judgement is None
    assert first.hits["other"].text.startswith("lion lion tiger lion")
    table = (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    assert "lion lion tiger lion" in table
    assert "not judged" in str(found)
    assert Report.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"systems": []}, "no system is named"),
        ({"systems": ["a++b"]}, "names no system"),
        ({"systems": "bm25"}, "judgements alone have no queries"),
        ({"systems": {"r": {"q1": {"d1": 1}}}, "examples": 2}, "examples show documents"),
        ({"collection": 3, "systems": "bm25"}, "is of type int"),
        ({"collection": "nowhere", "systems": "bm25"}, "nowhere"),
        ({"collection": {"q1": {"d1": "x"}}, "systems": {"r": {"q1": {"d1": 1}}}}, "whole numbers"),
        ({"systems": [{"q1": {"d1": "x"}}]}, "no numbers by document"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(isthmus.IsthmusError, match=message):
        isthmus.evaluate(**{"collection": QRELS, **arguments})


def test_an_index_that_has_the_vectors_of_a_model_is_searched(
    collections: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [document.text for document in open_corpus(str(collections[0])).documents()]
    model = write_encoder(tmp_path / "model", texts, 100, document_max_length=32)
    index = isthmus.index(str(collections[0]), tmp_path / "index", [BM25, str(model)])
    capsys.readouterr()
    opened = isthmus.load_encoder(str(model))
    given = [model, index, f"{model}+bm25", opened]
    report = isthmus.evaluate(collections[0], given, settings=FAST)
    assert report.systems[1:3] == ("index", "model+bm25")
    said = capsys.readouterr().err
    assert said.count("is in") >= 3
    assert "indexing" not in said.replace("bm25: indexing", "")
    alone, hybrid, fused, loaded = (report.per_query["nDCG@10"][name] for name in report.systems)
    assert alone == loaded
    assert hybrid == fused, "its parts are those of the sum"


def test_fields_of_an_index_are_systems(collections: list[Path], tmp_path: Path) -> None:
    texts = [document.text for document in open_corpus(str(collections[0])).documents()]
    model = str(write_encoder(tmp_path / "model", texts, 100, document_max_length=32))
    index = isthmus.index(str(collections[0]), tmp_path / "index", model)
    fields = [f"{index.folder}/bm25", f"{index.folder}/dense"]
    given = [*fields, BM25, model, "+".join(fields), index]
    report = isthmus.evaluate(collections[0], given, settings=FAST)
    assert report.systems == (fields[0], "dense", BM25, "model", "bm25+dense", "index")
    words, dense, alone, encoded, fused, whole = report.per_query["nDCG@10"].values()
    assert words == alone
    assert dense == encoded
    assert fused == whole
    with pytest.raises(SettingsError, match="has no field 'sparse'"):
        isthmus.evaluate(collections[0], [f"{index.folder}/sparse"], settings=FAST)


def test_an_index_with_other_passages_is_not_taken_for_that_of_a_model(
    collections: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [document.text for document in open_corpus(str(collections[0])).documents()]
    model = str(write_encoder(tmp_path / "model", texts, 100, document_max_length=32))
    how = ["passages={length: 16}"]
    index = isthmus.index(str(collections[0]), tmp_path / "index", model, settings=how)
    capsys.readouterr()
    isthmus.evaluate(collections[0], [index, model, BM25], settings=FAST)
    said = capsys.readouterr().err
    assert "model: its index is kept in" in said
    assert f"bm25: it is in {index.folder} already" in said


def test_sizes_of_a_sparse_model_are_fields_of_one_index(
    collections: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curve of LexMAE: by field what an index of that many terms alone measures."""
    corpus = str(collections[0])
    tokenizer = new_tokenizer([one.text for one in open_corpus(corpus).documents()], 100)
    backbone = new_backbone("tiny", tokenizer.rows, tokenizer.pad_id, max_length=144, seed=0)
    with torch.no_grad():  # untrained weights say the same of every text
        for parameter in backbone.parameters():
            parameter.mul_(4)
    model = str(tmp_path / "model")
    SparseEncoder(backbone, tokenizer, SparseSettings()).save(Path(model))
    how = ["bm25=false", "sparse_sizes=[1, 4]"]
    curve = isthmus.index(corpus, tmp_path / "curve", model, settings=how)
    assert curve.names == ["sparse", "sparse-1", "sparse-4"]
    asked = {"q1": "tiger", "q2": "wolf bear"}
    found = []
    for size in (1, 4, None):
        how = ["bm25=false", f"sparse.terms={size or 'null'}"]
        alone = isthmus.index(corpus, tmp_path / f"{size}", model, settings=how)
        field = f"sparse-{size}" if size else "sparse"
        assert curve.search_many(asked, use=field) == alone.search_many(asked)
        found.append(alone.search_many(asked))
    assert found[0] != found[1] != found[2]
    assert curve.search_many(asked) == found[2], "sizes are searched by their names alone"
    capsys.readouterr()
    fields = [f"{curve.folder}/{name}" for name in curve.names]
    report = isthmus.evaluate(corpus, [*fields, model, BM25], settings=FAST)
    assert report.systems == (*curve.names, "model", BM25)
    assert f"model: it is in {curve.folder} already" in capsys.readouterr().err
    scores = report.per_query["nDCG@10"]
    assert scores["model"] == scores["sparse"]
