"""Files for engines, read by somebody else who scores as the engines document it; real Lucene."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.errors import InputError, MismatchError, OutputError
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.verification import read_manifest
from isthmus.records import Ranking
from isthmus.retrieval.verbs.export import ExportSettings, export

ENGINES = ["elasticsearch", "opensearch"]


def kept(weight: float) -> float:
    """What Lucene's FeatureField keeps of a weight: the upper half of a float32 without its sign.

    That is eight bits of exponent and eight after the leading one, nine significant bits in all.
    """
    bits = np.float32(weight).view(np.uint32) >> np.uint32(15) << np.uint32(15)
    return float(bits.view(np.float32))


class Documented:
    """Reads index.json and bulk files, and answers as the documentation of the engine says."""

    def __init__(self, folder: Path) -> None:
        self.body = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        self.kinds = self.body["mappings"]["properties"]
        self.documents: dict[str, dict[str, Any]] = {}
        for file in sorted((folder / "bulk").iterdir()):
            lines = file.read_text(encoding="utf-8").split("\n")
            assert lines.pop() == "", "a bulk request ends with a line break"
            for action, source in zip(lines[::2], lines[1::2], strict=True):
                (name,) = json.loads(action)["index"].values()
                assert name not in self.documents
                self.documents[name] = json.loads(source)
                assert set(self.documents[name]) <= set(self.kinds), "the mapping is strict"

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        """`sort` is by score, then by the keyword field `id`."""
        assert body["sort"] == [{"_score": "desc"}, {"id": "asc"}]
        assert self.kinds["id"] == {"type": "keyword"}
        scorer = self.scorer(body["query"])
        scores = {name: scorer(source) for name, source in self.documents.items()}
        found = sorted(
            ((np.float32(score), name) for name, score in scores.items() if score is not None),
            key=lambda pair: (-pair[0], self.documents[pair[1]]["id"]),
        )
        hits = [{"_id": n, "sort": [float(s), n]} for s, n in found[: body["size"]]]
        return {"hits": {"hits": hits}}

    def scorer(self, query: dict[str, Any]) -> Callable[[dict[str, Any]], float | None]:
        ((kind, inner),) = query.items()
        if kind == "sparse_vector":
            field = self.kinds[inner["field"]]
            assert field["type"] == "sparse_vector"
            assert inner["prune"] is False, "light terms would be left out"
            assert field["index_options"] == {"prune": False}
            return self.linear(inner["field"], inner["query_vector"])
        if kind == "bool":
            weights: dict[str, float] = {}
            for clause in inner["should"]:
                feature = clause["rank_feature"]
                assert feature["linear"] == {}
                field, _, term = feature["field"].rpartition(".")
                assert self.kinds[field]["type"] == "rank_features"
                weights[term] = feature["boost"]
            return self.linear(field, weights)
        assert kind == "script_score"
        script = inner["script"]
        if script.get("lang") == "knn":
            asked = script["params"]
            assert script["source"] == "knn_score"
            assert asked["space_type"] == "innerproduct"
            assert self.kinds[asked["field"]]["type"] == "knn_vector"
            size, vector = self.kinds[asked["field"]]["dimension"], asked["query_value"]
        else:
            assert "dotProduct(params.vector, 'dense')" in script["source"]
            assert "s < 0 ? 1 / (1 - s) : s + 1" in script["source"]
            assert self.kinds["dense"]["type"] == "dense_vector"
            size, vector = self.kinds["dense"]["dims"], script["params"]["vector"]

        def product(source: dict[str, Any]) -> float:
            assert len(source["dense"]) == len(vector) == size
            score = float(np.float32(source["dense"]) @ np.float32(vector))
            return 1 / (1 - score) if score < 0 else score + 1

        return product

    def linear(
        self, field: str, weights: dict[str, float]
    ) -> Callable[[dict[str, Any]], float | None]:
        """boost * value per term, summed; a document without any of the terms is no hit."""
        assert all(weight > 0 for weight in weights.values())

        def score(source: dict[str, Any]) -> float | None:
            assert all(weight > 0 for weight in source[field].values())
            shared = weights.keys() & source[field].keys()
            return sum(weights[t] * kept(source[field][t]) for t in shared) if shared else None

        return score


@pytest.fixture
def serve() -> Iterator[Callable[[Path, str], str]]:
    """The address of an engine that was filled from a folder."""
    servers = []

    def start(folder: Path, name: str) -> str:
        engine = Documented(folder)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == f"/{name}/_mapping"
                self.answer({f"{name}-000001": {"mappings": engine.body["mappings"]}})

            def do_POST(self) -> None:
                assert self.path == f"/{name}/_search"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(engine.search(json.loads(body)))

            def answer(self, value: Any) -> None:
                if "token" in os.environ.get("ISTHMUS_ENGINE_TOKEN", ""):
                    assert self.headers["Authorization"] == "ApiKey token"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("to", ENGINES)
def test_the_same_answers(medline, loads, tmp_path: Path, serve, to: str, monkeypatch) -> None:
    """Dense and sparse from one export: whole numbers up to 511 are exact, ties go by id."""
    monkeypatch.setenv("ISTHMUS_ENGINE_TOKEN", "ApiKey token")
    output = tmp_path / "out"
    settings = ExportSettings(name="passages")
    following = export(
        medline.folders["sparse"], to, output, medline.folders["dense"], settings=settings
    )
    assert "ADDRESS/passages/_bulk" in following
    address = serve(output, "passages")
    for name in ("sparse", "dense"):
        settings = ExportSettings(name="passages", depth=1000)  # down to negative scores
        found = export(
            medline.folders[name], to, verify=address, queries=medline.query_file, settings=settings
        )
        assert found.exact
        if name == "sparse":
            assert all(one.same_order for one in found.comparisons)


@pytest.mark.parametrize("to", ENGINES)
def test_what_nine_bits_lose_is_said(medline, loads, tmp_path: Path, serve, to: str) -> None:
    export(medline.folders["heavy"], to, tmp_path / "out")
    address = serve(tmp_path / "out", "isthmus")
    found = export(medline.folders["heavy"], to, verify=address, queries=medline.query_file)
    assert not found.exact
    assert 0 < max(one.score_difference for one in found.comparisons) < 0.004
    assert np.mean([one.overlap for one in found.comparisons]) > 0.95


def test_float_weights_come_back_as_they_are(medline, tmp_path: Path) -> None:
    export(medline.folders["float"], "elasticsearch", tmp_path / "out")
    documents = Documented(tmp_path / "out").documents
    encoder = medline.encoders["float"]
    texts = [f"{source['title']}\n{source['text']}" for source in documents.values()]
    for source, row in zip(documents.values(), encoder.encode_queries(texts), strict=True):
        found = {int(term): np.float32(weight) for term, weight in source["sparse"].items()}
        assert found == dict(zip(row.indices.tolist(), row.data, strict=True))


@pytest.mark.parametrize("to", ENGINES)
def test_approximate_asks_for_the_graph(medline, tmp_path: Path, to: str) -> None:
    from isthmus.indexes.engines import engines

    settings = ExportSettings(approximate=True)
    export(medline.folders["dense"], to, tmp_path / "out", settings=settings)
    body = json.loads((tmp_path / "out" / "index.json").read_text())
    field = body["mappings"]["properties"]["dense"]
    engine = engines.load(to)("http://localhost:9200", "isthmus")
    query = engine.query("dense", [1.0], 500, approximate=True)
    if to == "elasticsearch":
        assert field["similarity"] == "max_inner_product"
        assert field["index_options"] == {"type": "hnsw"}
        assert query["knn"]["num_candidates"] == 1000
    else:
        assert body["settings"] == {"index.knn": True}
        assert field["method"]["space_type"] == "innerproduct"
        assert query == {"knn": {"dense": {"vector": [1.0], "k": 500}}}


def test_large_exports_are_shared_out(medline, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.indexes.engines._json_lines.write_lines.__defaults__", (100_000,))
    export(medline.folders["sparse"], "opensearch", tmp_path / "out")
    files = sorted((tmp_path / "out" / "bulk").iterdir())
    assert len(files) > 5
    assert max(file.stat().st_size for file in files) <= 100_000
    assert len(Documented(tmp_path / "out").documents) == 1033


def test_the_same_export_is_reused_and_another_refused(
    medline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    first = export(medline.folders["sparse"], "opensearch", output)
    before = (output / "bulk" / "00000.ndjson").stat().st_mtime_ns
    assert export(medline.folders["sparse"], "opensearch", output) == first
    assert "nothing to do" in " ".join(capsys.readouterr().err.split())
    assert (output / "bulk" / "00000.ndjson").stat().st_mtime_ns == before
    with pytest.raises(OutputError, match=r"differs in .*fingerprints\.sparse"):
        export(medline.folders["heavy"], "opensearch", output)
    with pytest.raises(OutputError, match="is an address"):
        export(medline.folders["sparse"], "opensearch", "http://localhost:9200")


def test_addresses_that_do_not_answer(medline, loads, tmp_path: Path, serve) -> None:
    for address in ("localhost:9200", "http://127.0.0.1:9", "file:///etc"):
        with pytest.raises(InputError, match=r"no address|did not answer") as caught:
            export(
                medline.folders["sparse"], "opensearch", verify=address, queries=medline.query_file
            )
        assert "ISTHMUS_ENGINE_TOKEN" in caught.value.remedy
    export(medline.folders["sparse"], "opensearch", tmp_path / "out")
    address = serve(tmp_path / "out", "isthmus")
    with pytest.raises(MismatchError, match="no dense vectors"):
        export(medline.folders["dense"], "opensearch", verify=address, queries=medline.query_file)
    body = json.loads((tmp_path / "out" / "index.json").read_text())
    del body["mappings"]["_meta"]
    (tmp_path / "out" / "index.json").write_text(json.dumps(body))
    with pytest.raises(InputError, match="not written by isthmus"):
        export(
            medline.folders["sparse"],
            "opensearch",
            verify=serve(tmp_path / "out", "isthmus"),
            queries=medline.query_file,
        )


def test_on_the_command_line(medline, loads, tmp_path: Path, serve) -> None:
    runner, folder = CliRunner(), str(medline.folders["sparse"])
    to = ["--to", "elasticsearch"]
    ended = runner.invoke(app, ["export", folder, *to, "--output", str(tmp_path / "out")])
    assert ended.exit_code == 0, ended.output
    assert "_bulk" in ended.output
    at = ["--verify", serve(tmp_path / "out", "isthmus"), "--queries", str(medline.query_file)]
    file = tmp_path / "parity.tsv"
    more = ["--depth", "5", "--output", str(file)]
    ended = runner.invoke(app, ["export", folder, *to, *at, *more])
    assert ended.exit_code == 0, ended.output
    assert "30 queries, depth 5" in ended.output
    header, *lines = [line.split("\t") for line in file.read_text().splitlines()]
    assert header[:3] == ["query", "overlap", "same_order"]
    assert len(lines) == 30
    assert lines[0][:4] == ["1", "1.0", "True", "True"]


@pytest.fixture(scope="module")
def anserini(medline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anserini") / "out"
    following = export(medline.folders["sparse"], "anserini", folder)
    assert f"-input {folder}/collection -index {folder}/lucene" in following
    return folder


def test_anserini_files(medline, anserini: Path) -> None:
    """Whole numbers that, multiplied and summed, are our scores."""
    lines = (file.read_text(encoding="utf-8") for file in (anserini / "collection").iterdir())
    records = [json.loads(line) for text in lines for line in text.splitlines()]
    assert len(records) == read_manifest(medline.folders["sparse"]).documents
    queries = medline.vectors("sparse")
    ours = InvertedIndex.open(medline.folders["sparse"]).search(queries, 50, medline.ids)
    for row, expected in zip(queries, ours, strict=True):
        asked = {
            str(term): int(np.floor(100 * np.float64(weight)))
            for term, weight in zip(row.indices, row.data, strict=True)
        }
        scores = {}
        for record in records:
            assert all(type(weight) is int and weight > 0 for weight in record["vector"].values())
            shared = asked.keys() & record["vector"].keys()
            if score := sum(asked[term] * record["vector"][term] for term in shared):
                scores[record["id"]] = score
        assert Ranking.sorted(expected.query_id, scores, 50) == expected


def test_real_lucene_answers_the_same(medline, anserini: Path, loads) -> None:
    if shutil.which("java") is None or not os.environ.get("ANSERINI_JAR"):
        pytest.skip("needs java, and ANSERINI_JAR naming a fatjar of Anserini")
    settings = ExportSettings(depth=1000)
    found = export(
        medline.folders["sparse"],
        "anserini",
        verify=str(anserini),
        queries=medline.query_file,
        settings=settings,
    )
    assert found.exact
    assert all(one.same_order for one in found.comparisons)


def test_anserini_takes_whole_numbers_only(medline, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(MismatchError, match="of kind 'float'"):
        export(medline.folders["float"], "anserini", tmp_path / "out")
    with pytest.raises(MismatchError, match="takes no dense vectors"):
        export(medline.folders["dense"], "anserini", tmp_path / "out")
    assert not (tmp_path / "out" / "collection").exists()


def test_anserini_without_its_jar(
    medline, anserini: Path, loads, tmp_path: Path, monkeypatch
) -> None:
    copy = shutil.copytree(anserini, tmp_path / "out", ignore=lambda *_: ["lucene"])
    for jar, message in (("", "ANSERINI_JAR=''|java"), (__file__, "Anserini ended with|java")):
        monkeypatch.setenv("ANSERINI_JAR", jar)
        with pytest.raises(InputError, match=message):
            export(
                medline.folders["sparse"], "anserini", verify=str(copy), queries=medline.query_file
            )
        assert not (copy / "lucene").exists()
