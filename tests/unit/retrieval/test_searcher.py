"""Searching fields of an index: alone, fused, weighed and filtered; for one query or many."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.collections import Problems, read_run
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.records import Query, Ranking
from isthmus.retrieval.change import open_writer
from isthmus.retrieval.index import index
from isthmus.retrieval.search import SearchSettings, search, search_file
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.retrieval.snippets import snippets

QUERIES = [Query("q1", "river"), Query("q2", "snow")]


def test_every_field_answers_alone_and_with_the_others(folder: Path, encoder: Any) -> None:
    for use in ("bm25", "dense", "tokens", None):
        searcher = open_searcher(folder, use)
        one, two = searcher.search(QUERIES, depth=2)
        assert (one.query_id, two.query_id, len(one)) == ("q1", "q2", 2)
        assert two.document_ids[0] == "d4"
        assert searcher.fields == ((use,) if use else ("bm25", "dense", "tokens"))
    with pytest.raises(SettingsError, match="no field 'dens'") as caught:
        open_searcher(folder, "dens")
    assert "dense" in caught.value.expected


def test_an_encoder_that_filled_several_fields_is_loaded_and_asked_once(
    corpus: str, tmp_path: Path, sparse_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = index(corpus, tmp_path / "index", "model", settings={"sparse_sizes": [1]})
    asked: list[str] = []
    plain = sparse_encoder.encode_queries
    monkeypatch.setattr(
        sparse_encoder, "encode_queries", lambda texts: asked.extend(texts) or plain(texts)
    )
    searcher = open_searcher(folder, fusion={"weights": {"sparse-1": 1.0}})
    assert searcher.fields == ("bm25", "sparse", "sparse-1")
    assert searcher.encoders["sparse"] is searcher.encoders["sparse-1"]
    searcher.search(QUERIES)
    assert asked == ["river", "snow"]


def test_mismatch_is_refused_when_built(bm25: Searcher, both: Searcher, encoder: Any) -> None:
    other = replace(encoder, name="others", fingerprint="words-2")
    with pytest.raises(MismatchError) as caught:
        Searcher(both.index, {"dense": other, "tokens": other})
    assert "the index was filled by the encoder 'model', this is 'others'" in caught.value.what
    assert "(fingerprint words-2, not words-1)" in caught.value.what
    assert "-s model=" in caught.value.fix
    with pytest.raises(MismatchError, match="and there is none here"):
        Searcher(both.index, {})
    with pytest.raises(MismatchError, match="filled by no encoder"):
        Searcher(bm25.index, {"bm25": encoder})


def test_moved_encoder_is_asked_for(corpus: str, tmp_path: Path, encoder: object) -> None:
    (tmp_path / "model").mkdir()
    folder = index(corpus, tmp_path / "index", str(tmp_path / "model"))
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="no longer at") as caught:
        open_searcher(folder)
    assert "-s model=" in caught.value.fix
    open_searcher(folder, model=str(tmp_path / "moved"))


def named_by(folder: Path, name: str) -> Path:
    """The index as if it had been received: it names its encoder, which was not named here."""
    received = folder.with_name("received")
    shutil.copytree(folder, received)
    file = received / "manifest.json"
    manifest = json.loads(file.read_text())
    for field in ("dense", "tokens"):
        manifest["fields"][field]["encoder"]["name"] = name
    file.write_text(json.dumps(sealed(manifest)))
    return received


@pytest.mark.parametrize("name", ["org/name", "name", "../outside", "~", "a; b"])
def test_an_encoder_that_is_not_on_this_disk_is_not_fetched(
    corpus: str, tmp_path: Path, encoder: Any, name: str
) -> None:
    received = named_by(index(corpus, tmp_path / "index", "model"), name)
    encoder.name = "none"
    for load in (open_searcher, lambda folder: open_writer(folder).fillings):
        with pytest.raises(InputError, match="which is not on this disk") as caught:
            load(received)
        assert repr(name) in caught.value.what
        assert f"-s {shlex.quote(f'model={name}')}" in caught.value.fix
        assert encoder.name == "none", "nothing was loaded"
    open_searcher(received, model=name)
    assert encoder.name == name


def test_an_encoder_in_the_cache_of_the_hub_is_loaded_from_there(
    corpus: str,
    tmp_path: Path,
    encoder: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    received = named_by(index(corpus, tmp_path / "index", "model"), "org/name")
    model = tmp_path / "hub" / "models--org--name"
    snapshot = model / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("123")
    capsys.readouterr()
    open_searcher(received)
    assert encoder.name == str(snapshot), "the folder itself: nothing asks the hub"
    assert f"loading its encoder {snapshot}" in "".join(capsys.readouterr().err.split("\n"))


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "x/" * 5000, "\ud800"])
def test_an_encoder_that_no_folder_can_be_is_refused(
    corpus: str, tmp_path: Path, encoder: Any, name: str
) -> None:
    received = named_by(index(corpus, tmp_path / "index", "model"), name)
    with pytest.raises(InputError, match="names the encoder"):
        open_searcher(received)


def test_an_encoder_inside_the_index_or_of_a_package_is_loaded(
    corpus: str, tmp_path: Path, encoder: Any
) -> None:
    received = named_by(index(corpus, tmp_path / "index", "model"), "encoder")
    (received / "encoder").mkdir()
    open_searcher(received)
    assert encoder.name == str(received / "encoder")
    shutil.rmtree(received)
    open_searcher(named_by(tmp_path / "index", "package:some"), encoders={})
    assert encoder.name == "package:some"


@pytest.mark.parametrize("text", ["", "  ", "of the"])
def test_query_without_tokens(bm25: Searcher, text: str) -> None:
    queries = [Query("q1", "river"), Query("q2", text), Query("q3", "snow")]
    with pytest.raises(InputError) as caught:
        bm25.search(queries)
    assert repr(text) in caught.value.what
    assert "query 'q2'" in caught.value.what
    problems = Problems("skip")
    found = bm25.search(queries, problems=problems)
    assert [ranking.query_id for ranking in found] == ["q1", "q2", "q3"]
    assert found[1] == Ranking("q2")
    assert len(found[2]) == 1
    assert problems.counts == {"query without tokens": 1}


def test_verb_for_one_query(bm25: Searcher, tmp_path: Path) -> None:
    hits = search(tmp_path / "bm25", "the river", settings=SearchSettings(k=1))
    assert [(hit.id, hit.title, hit.snippet) for hit in hits] == [("d0", "Title0", "river bank")]
    assert hits[0].score > 0
    assert search(tmp_path / "bm25", "zebra") == []


def test_verb_for_a_file_of_queries(
    bm25: Searcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\triver\nq2\tthe of\nq3\tsnow\n")
    settings = SearchSettings(tag="mine")
    path = search_file(tmp_path / "bm25", queries, tmp_path / "out.trec", settings=settings)
    told = " ".join(capsys.readouterr().err.split())
    assert "1 of 3 queries have no words to search for" in told
    assert "first 'q2': 'the of'" in told
    run = read_run(path)
    assert run.name == "mine"
    assert run.rankings["q1"].document_ids == ("d0", "d2")
    assert set(run.rankings) == {"q1", "q3"}


def test_a_run_file_of_another_search_stays(
    bm25: Searcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, run, queries = tmp_path / "bm25", tmp_path / "out.trec", tmp_path / "queries.tsv"
    queries.write_text("q1\triver\nq2\tsnow\n")
    run.write_text("")  # as mktemp makes it: nothing to lose
    search_file(index, queries, run)
    first = run.read_text()
    assert len(first.splitlines()) == 3
    capsys.readouterr()
    before = run.stat()
    assert search_file(index, queries, run) == run
    assert "already holds this run; nothing to do" in capsys.readouterr().err
    assert run.stat() == before
    rows = first.splitlines(keepends=True)
    for other in (
        first.replace("Q0 d2", "Q0 d9"),
        "".join(rows[:-1]),
        "".join([*rows, rows[-1].replace("q2", "q3")]),
        first.removesuffix("\n") + "\0",
    ):
        run.write_text(other)
        with pytest.raises(OutputError, match="already holds another run") as caught:
            search_file(index, queries, run)
        assert "--output" in caught.value.what
        assert run.read_text() == other


def snippet(text: str, query: str) -> str:
    (found,) = snippets([text], query)
    return found.text


def test_snippets_show_the_rarest_words() -> None:
    common = "a retriever of documents " * 20
    texts = [f"{common} with a bottleneck in it {common}", common, common]
    for query in ("retrievers with bottlenecks", "documents: the bottleneck"):
        shown, other, _ = (one.text for one in snippets(texts, query))
        assert "bottleneck in it" in shown
        assert other.startswith("a retriever")
    far = f"a retriever of documents {'filler ' * 100} one bottleneck {'filler ' * 100}"
    far_off, *_ = snippets([far, common, common], "a bottleneck of retrievers of documents")
    assert "one bottleneck" in far_off.text
    chinese = (
        "安装程序的图形版本。" * 40
        + "系统会询问您现在是否希望创建帐户。"
        + "安装程序的图形版本。" * 40
    )
    assert "创建帐户" in snippet(chinese, "如何创建帐户")
    assert "the tax" in snippet("of it " * 90 + "the tax", "what is the tax")


def test_snippets() -> None:
    assert snippet("short  text\n here", "query") == "short text here"
    assert snippet("## A heading\n\nof C # and #3", "query") == "A heading of C # and #3"
    long = "filler " * 100 + "the needle is here " + "filler " * 100
    found = snippet(long, "Where is the Needle?")
    assert "needle is here" in found
    assert found.startswith("… ")
    assert found.endswith(" …")
    assert len(found) <= 204
    assert snippet("x" * 500, "y") == "x" * 200 + " …"
    mixed = "系统会询问 Debian 系统" + "希望创建帐户" * 60 + "书" + "希望创建帐户" * 60
    assert len(snippet(mixed, "系统")) == 202, "not cut at the last space, far before the end"
    assert "书" in snippet(mixed, "书")
    thai = "ที่" * 100  # of three characters, two of which stand above the first
    assert snippet(thai, "x") == "ที่" * 66 + " …"


def test_fusion_is_of_the_fields_by_their_weights(folder: Path) -> None:
    bm25 = open_searcher(folder, "bm25").search(QUERIES)
    for fusion in ("weighted_sum", "reciprocal_rank"):
        fused = open_searcher(folder, fusion={"fusion": fusion})
        assert fused.search(QUERIES)[1].document_ids[0] == "d4"
        assert len(fused.search(QUERIES, depth=1)[0]) == 1
        how = {"fusion": fusion, "weights": {"dense": 0.0, "tokens": 0.0}}
        alone = open_searcher(folder, fusion=how)
        assert alone.fields == ("bm25",)
        assert alone.search(QUERIES) == bm25


def test_fusion_answers_with_the_best_of_all_that_was_found(
    both: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Second of all, and first of none."""
    orders = ("a", "b", "c"), ("c", "b", "a"), ("d", "b", "a")
    found = [Ranking("q", ids, (3.0, 2.5, 0.0)) for ids in orders]
    components = {name: [one] for name, one in zip(both.fields, found, strict=True)}
    assert both.fused(components, 1)[0].document_ids == ("b",)


def test_what_one_field_can_read_is_answered(both: Searcher) -> None:
    assert len(both.search([Query("q", "of the")])[0]) == 5
    with pytest.raises(InputError, match="query without tokens"):
        both.search([Query("q", " ")])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"other": 1.0}, "no field 'other'"), ({"dense": -1.0}, "is below 0"),
        (dict.fromkeys(("bm25", "dense", "tokens"), 0.0), "all weights are 0"),
    ],
)  # fmt: skip
def test_impossible_weights(folder: Path, weights: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        open_searcher(folder, fusion={"weights": weights})


def test_a_filter_is_applied_before_the_first_are_chosen(tmp_path: Path, encoder: object) -> None:
    records = [{"_id": f"d{n:02}", "text": f"river {n}", "year": 2000 + n} for n in range(40)]
    corpus = tmp_path / "years.jsonl"
    corpus.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    folder = index(str(corpus), tmp_path / "index", "model")
    for use in (None, "bm25", "dense", "tokens"):
        settings = SearchSettings(use=use, k=5)
        for chosen in ({"year": {"$gte": 2037}}, ["year>=2037"]):
            hits = search(folder, "river", filter=chosen, settings=settings)
            assert {hit.id for hit in hits} == {"d37", "d38", "d39"}
            assert {hit.metadata["year"] for hit in hits} == {2037, 2038, 2039}
    with pytest.raises(InputError, match="no document has a field 'yaer'"):
        search(folder, "river", filter={"yaer": 2000})


def test_bm25_search_starts_without_torch(tmp_path: Path) -> None:
    text = " ".join(f"The river is {n} feet deep here, and it was less before." for n in range(80))
    corpus = tmp_path / "long.jsonl"
    corpus.write_text(json.dumps({"_id": "d0", "text": text}), encoding="utf-8")
    index(str(corpus), tmp_path / "bm25")
    code = (
        "import sys; from isthmus import open_index; "
        f"print(open_index({str(tmp_path / 'bm25')!r}).search('river')[0].id); "
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("d0\n", 0), done.stderr
