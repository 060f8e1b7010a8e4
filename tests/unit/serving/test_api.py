"""What the API answers: what `isthmus search` finds, and every refusal in its parts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from starlette.testclient import TestClient
from tests.factories import write_corpus
from tests.unit.serving.conftest import METADATA, TEXTS
from transformers import BertConfig, BertForSequenceClassification

import isthmus
from isthmus.errors import InputError
from isthmus.serving.app import page_address, page_files
from isthmus.serving.service import Service
from isthmus.serving.settings import ServeSettings
from isthmus.text.tokenizer import Tokenizer

Open = Callable[..., TestClient]
FAILED = "the server failed to answer"


def refusal(answer: object) -> str:
    """What an answer says is wrong; every refusal has all its parts."""
    error = answer.json()["error"]  # type: ignore[attr-defined]
    assert {"what", "fix"} <= error.keys() <= {"what", "expected", "fix"}
    assert all(error.values())
    return str(error["what"])


def test_every_retriever_answers_as_search_does(client: TestClient, folders: Path) -> None:
    about = client.get("/api/about").json()
    assert [one["type"] for one in about["retrievers"]] == ["bm25", "dense", "tokens", "fused"]
    assert about["default"] == "fused"
    assert about["documents"] == 6
    assert about["metadata"] == {
        "year": "number", "lang": "text", "tags": "text", "draft": "boolean", "place": "text",
    }  # fmt: skip
    for name in ("bm25", "dense", "tokens", "fused"):
        use = None if name == "fused" else name
        expected = isthmus.open_index(folders / "both").search("the river bank", k=4, use=use)
        found = client.get(
            "/api/search", params={"q": "the river bank", "use": name, "k": 4}
        ).json()
        assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
        scores = [hit["score"] for hit in found["hits"]]
        assert scores == pytest.approx([hit.score for hit in expected], rel=1e-5)
        shown = ["".join(part["text"] for part in hit["snippet"]) for hit in found["hits"]]
        assert shown == [hit.snippet for hit in expected]
        assert [hit["rank"] for hit in found["hits"]] == list(range(1, len(expected) + 1))
    bare = client.get("/api/search?q=the%20river%20bank&k=4&show=ids").json()["hits"]
    assert [(hit["id"], hit["score"]) for hit in bare] == [
        (hit["id"], hit["score"]) for hit in found["hits"]
    ]
    empty = ("title", "snippet", "text", "metadata")
    assert not any(hit[name] for hit in bare for name in empty)
    some = client.get("/api/search?q=the%20river%20bank&show=snippets").json()["hits"]
    assert all(hit["snippet"] and not hit["text"] for hit in some)
    assert {hit["id"]: hit["text"] for hit in found["hits"]}["river"] == TEXTS["river"][1]
    for hit in found["hits"]:
        assert hit["metadata"] == METADATA.get(hit["id"], {})


def test_snippets_mark_words_of_the_query_and_stages_their_time(client: TestClient) -> None:
    found = client.get("/api/search", params={"q": "the rivers", "use": "bm25"}).json()
    marked = {part["text"] for part in found["hits"][0]["snippet"] if part["match"]}
    assert marked == {"river"}
    spent = found["milliseconds"]
    assert spent.keys() == {"wait", "encode", "search", "rerank", "snippets", "total"}
    assert 0 < spent["search"] <= spent["total"]
    assert client.get("/api/search?q=a%20river&use=dense").json()["milliseconds"]["encode"]
    metrics = client.get("/metrics").text
    assert 'isthmus_stage_seconds_count{retriever="bm25",stage="search"}' in metrics
    assert 'isthmus_requests_total{path="/api/search",status="200"}' in metrics


def test_a_query_that_finds_nothing_says_why(client: TestClient) -> None:
    for query, note in (("the", "no words to search for"), ("zebra", "no document holds a term")):
        found = client.get("/api/search", params={"q": query, "use": "bm25"}).json()
        assert found["hits"] == []
        assert note in found["note"]


def test_documents_come_as_they_are_whole_or_in_passages(
    client: TestClient, folders: Path, tmp_path: Path, open_client: Open
) -> None:
    found = client.get("/api/document", params={"id": "script"}).json()
    assert found["title"] == "<script>alert(1)</script>"
    assert found["text"] == "A text with <b>marks</b> of HTML & entities."
    text = " ".join(f"Sentence number {n} speaks of water and stone." for n in range(120))
    corpus = write_corpus(tmp_path / "long.jsonl", {"long": text})
    isthmus.index(str(corpus), tmp_path / "cut", str(folders / "encoder"))
    cut = open_client(tmp_path / "cut")
    whole = cut.get("/api/document", params={"id": "long"}).json()
    assert whole["text"] == text
    assert whole["characters"] == len(text)
    for name in ("dense", "fused"):
        (hit,) = cut.get(f"/api/search?q=sentence%20number%2090&use={name}").json()["hits"]
        assert hit["text"] in text
        assert (hit["place"] or "passage 1").startswith("passage ")
        assert (hit["place"] is None) is text.startswith(hit["text"])
        assert len(hit["text"]) < len(text) / 2
    (hit,) = cut.get("/api/search?q=sentence%20number%2090&use=bm25").json()["hits"]
    assert (hit["text"], hit["place"]) == (text, None), "BM25 reads documents whole"


def test_explanations_are_those_of_the_command(client: TestClient, folders: Path) -> None:
    for name in ("bm25", "dense", "tokens", "fused"):
        asked = {"q": "river bank", "id": "river", "use": name}
        found = client.get("/api/explain", params=asked).json()
        use = None if name == "fused" else name
        expected = isthmus.open_index(folders / "both").explain("river bank", "river", use=use)
        assert found["kind"] == expected.kind
        assert found["score"] == pytest.approx(expected.score, rel=1e-5)


def test_what_is_fused_is_re_ranked_as_by_search(
    folders: Path, tmp_path: Path, open_client: Open
) -> None:
    tokenizer = Tokenizer.load(str(folders / "encoder"))
    config = BertConfig(
        vocab_size=tokenizer.rows, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=1, initializer_range=0.3,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    client = open_client(folders / "both", settings={"rerank": {"model": str(tmp_path)}})
    about = client.get("/api/about").json()
    types = {one["name"]: one["type"] for one in about["retrievers"]}
    assert types == {name: name for name in ("bm25", "dense", "tokens", "fused", "reranked")}
    assert about["default"] == "reranked"
    for name, model in (("fused", None), ("reranked", str(tmp_path))):
        expected = isthmus.open_index(folders / "both").search("a river", rerank=model)
        found = client.get("/api/search", params={"q": "a river", "use": name}).json()
        assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
        assert bool(found["milliseconds"]["rerank"]) is (name == "reranked")
    explained = client.get("/api/explain?q=a%20river&id=river").json()
    assert explained["before"]["kind"] == "fused"
    models = {one["name"]: one["model"] for one in about["retrievers"]}
    assert models["dense"] == "encoder"
    assert models["reranked"] == tmp_path.name
    for answer in (about, found, explained):
        assert str(folders.parent) not in json.dumps(answer), "where models are on this machine"


FILTERS = [
    ("year>=2020 lang=en", {"year": {"$gte": 2020}, "lang": "en"}, {"money", "snow"}),
    ("tags=boats", {"tags": "boats"}, {"river"}),
    ("draft=true", {"draft": True}, {"snow"}),
    ("lang!=en", {"lang": {"$ne": "en"}}, {"script", "tokyo", "turned"}),
    ('place="/east of here"', {"place": "/east of here"}, {"tokyo"}),
    ("year>2000 year<2000", {"$and": [{"year": {"$gt": 2000}}, {"year": {"$lt": 2000}}]}, set()),
]


@pytest.mark.parametrize(("short", "full", "expected"), FILTERS)
def test_a_filter_lets_the_same_documents_through_however_it_is_written(
    client: TestClient, short: str, full: dict[str, object], expected: set[str]
) -> None:
    for name in ("bm25", "dense", "tokens", "fused"):
        asked = {"q": "a river bank in winter", "use": name}
        every = client.get("/api/search", params=asked).json()["hits"]
        kept = [hit["id"] for hit in every if hit["id"] in expected]
        for found in (
            client.get("/api/search", params={**asked, "filter": short}),
            client.get("/api/search", params={**asked, "filter": json.dumps(full)}),
            client.post("/api/search", json={**asked, "filter": full}),
        ):
            assert {hit["id"] for hit in found.json()["hits"]} >= set(kept)
            assert {hit["id"] for hit in found.json()["hits"]} <= expected
            if name != "fused":  # whose votes depend on what else is there
                assert [hit["id"] for hit in found.json()["hits"]] == kept
    if not expected:
        assert "filter" in found.json()["note"]


@pytest.mark.parametrize(
    ("given", "what", "expected"),
    [
        ("yaer>2020", "no document has a field 'yaer'", "year"),
        ("year>new", "'year' is a number, and 'new' is not", ""),
        ("year>/etc/passwd", "and '/etc/passwd' is not", ""),
        ("year", "'year' does not compare", ">="),
        ("lang=en year>=", "'year>=' does not compare", ">="),
        ('{"year": {"$near": 3}}', "there is no operator '$near'", "$ne"),
        ('{"year": 2020', "is not JSON", ""),
        ('{"year": NaN}', "is compared with nan", ""),
        ('{"$not": ' * 20 + "{}" + "}" * 20, "nested more than 10 deep", ""),
    ],
)
def test_a_filter_that_cannot_be_is_refused_not_ignored(
    client: TestClient, given: str, what: str, expected: str
) -> None:
    answer = client.get("/api/search", params={"q": "river", "filter": given})
    assert answer.status_code == 422
    assert what in refusal(answer)
    assert expected in answer.json()["error"].get("expected", "")
    body = {"q": "river", "filter": {"year": {"$near": 3}}}
    assert "'$near'" in refusal(client.post("/api/search", json=body))
    assert "there is no fliter" in refusal(client.post("/api/search", json={**body, "fliter": 1}))


@pytest.mark.parametrize(
    ("path", "status", "what"),
    [
        ("/api/search?q=river&use=dens", 404, "no retriever 'dens'"),
        (f"/api/search?q={'a' * 1001}", 422, "should have at most 1000 characters"),
        ("/api/search?q=river&k=101", 422, "k = '101': should be less than or equal to 100"),
        ("/api/search?q=river&k=0", 422, "greater than or equal to 1"),
        ("/api/search", 422, "q is missing"),
        ("/api/document?id=nowhere", 404, "no document 'nowhere'"),
        ("/api/explain?q=river&id=nowhere", 404, "no document 'nowhere'"),
        ("/api/explain?q=the&id=river&use=bm25", 422, "'the' has no words for 'bm25'"),
        ("/api/judgements?q=river", 403, "takes no judgements"),
        ("/api/nothing", 404, "Not Found"),
        ("/page/..%2F..%2Fserve.py", 404, "Not Found"),
        ("/page/%2Fetc%2Fpasswd", 404, "Not Found"),
    ],
)
def test_requests_that_cannot_be_met_are_refused_in_parts(
    client: TestClient, path: str, status: int, what: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert what in refusal(answer)


def test_parameters_that_an_address_does_not_have_are_refused(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    addresses = [(method, path) for path, found in described.items() for method in found]
    addresses += [("get", "/openapi.json"), ("get", "/page/page.js")]
    assert {("get", "/api/search"), ("post", "/api/documents"), ("get", "/metrics")} < {*addresses}
    for method, path in addresses:
        answer = client.request(method, path, params={"fliter": "a"})
        assert answer.status_code == 422, path
        assert refusal(answer) == "there is no parameter 'fliter'"
    answer = client.get("/api/search?q=river&usee=bm25")
    assert answer.json()["error"]["expected"].startswith("use, ")
    assert client.get("/?q=river&r=bm25").status_code == 200, "what the page shows"


def test_what_a_server_was_not_started_for_is_refused(client: TestClient) -> None:
    for answer in (
        client.post("/api/documents", json={"documents": [{"id": "n", "text": "new"}]}),
        client.delete("/api/documents?id=river"),
        client.post("/api/judgements", json={"query": "a river", "id": "river", "grade": 1}),
    ):
        assert answer.status_code == 403
        assert "takes no" in refusal(answer)
    assert client.get("/api/document?id=river").status_code == 200


def test_every_file_of_the_page_and_nothing_else_is_served(client: TestClient) -> None:
    for name, (content, kind) in page_files().items():
        answer = client.get(page_address(name))
        assert answer.content == content
        assert answer.headers["content-type"].startswith(kind)
    assert client.get("/page/index.html").status_code == 404
    described = (content for content, _ in page_files().values())
    assert not any(b"https://" in content for content in described), "it works offline"


def test_an_error_inside_is_said_without_what_was_inside(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("isthmus.serving.service.snippets", broken)
    answer = client.get("/api/search?q=river")
    assert answer.status_code == 500
    assert refusal(answer) == FAILED
    assert "secret" not in answer.text
    assert "a secret" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("no folder '/home/my runs/dense' any more", 500),
        ("/srv/indexes/both/manifest.json is damaged", 500),
        (r"'C:\Users\me\runs' is gone", 500),
        ("'https://example.org/a/b' and 'a/b' are ids", 422),
    ],
)
def test_no_refusal_says_where_things_lie(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, what: str, status: int
) -> None:
    def refused(*_: object) -> None:
        raise InputError(what, "see '/etc/x/y'", "one of /etc/x")

    monkeypatch.setattr("isthmus.serving.service.snippets", refused)
    answer = client.get("/api/search?q=river")
    assert answer.status_code == status
    assert refusal(answer) == (what if status == 422 else FAILED)
    assert "/etc" not in answer.text


def test_no_refusal_says_where_things_lie_that_were_named_by_relative_paths(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_client: Open
) -> None:
    monkeypatch.chdir(tmp_path)
    model, judged = Path("kept/mine"), Path("kept/judged")
    shutil.copytree(folders / "encoder", model)
    isthmus.index(str(folders / "corpus.jsonl"), "dense", str(model))
    client = open_client(
        Path("dense"), read_write=True, judgements=judged, settings={"model": str(model)}
    )
    model.rename("elsewhere")
    (judged / "corpus.jsonl").write_text("{")
    answer = client.get("/api/explain?q=a%20river&id=river")
    assert refusal(answer) == FAILED
    assert "kept" not in answer.text
    body = {"query": "a river", "id": "river", "grade": 1}
    assert refusal(client.post("/api/judgements", json=body)) == FAILED


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        ("", "application/json", "the body is missing"),
        ("{", "application/json", "not JSON"),
        ("{}", "text/plain", "not a JSON object"),
        ("[]", "application/json", "not a JSON object"),
        ("{}", "application/json", "documents is missing"),
        ('{"documents": [], "a": 1}', "application/json", "documents = []: should have at least 1"),
        ('{"documents": [{"id": 1}]}', "application/json", "documents.0.id = 1: should be a valid"),
        ('{"documents": [{"id": "a", "x": {}}]}', "application/json", "documents.0.x = {}: should"),
        ('{"documents": [{"id": "a", "x": [1, "a"]}]}', "application/json", "documents.0.x = [1"),
        ('{"documents": [{"id": "a", "x": NaN}]}', "application/json", "documents.0.x = nan"),
    ],
)
def test_bodies_that_cannot_be_read_are_refused_in_plain_words(
    client: TestClient, content: str, kind: str, what: str
) -> None:
    answer = client.post("/api/documents", content=content, headers={"content-type": kind})
    assert answer.status_code == 422
    assert what in refusal(answer)


HALF = '"\\ud800"'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("judgements", '{"query": HALF, "id": "river", "grade": 1}'),
        ("judgements", '{"query": "a river", "id": HALF, "grade": 1}'),
        ("judgements", '{"query": "a river", "id": "river", "grade": 1, HALF: 1}'),
        ("documents", '{"documents": [{"id": HALF, "text": "a river"}]}'),
        ("documents", '{"documents": [{"id": "a", "text": HALF}]}'),
        ("documents", '{"documents": [{"id": "a", "title": HALF}]}'),
        ("documents", '{"documents": [{"id": "a", "text": "a", "x": HALF}]}'),
        ("documents", '{"documents": [{"id": "a", "text": "a", HALF: 1}]}'),
        ("documents", '{"documents": [{"id": "a", "text": "a", "metadata": {HALF: 1}}]}'),
    ],
)
def test_halves_of_characters_are_refused(client: TestClient, path: str, body: str) -> None:
    assert client.post(f"/api/{path}", content=body.replace("HALF", HALF)).status_code == 422


def test_pages_are_there_for_head_and_no_address_leads_elsewhere(client: TestClient) -> None:
    assert client.head("/").status_code == client.head("/page/page.js").status_code == 200
    answer = client.get("/page/page.js/", follow_redirects=False)
    assert answer.status_code == 404


def test_a_document_is_shown_while_another_is_explained(folders: Path) -> None:
    service = Service(folders / "both", ServeSettings(check_seconds=0.0))

    async def both() -> None:
        shown = Event()
        explaining = asyncio.create_task(service.explain(lambda: shown.wait(9)))
        await asyncio.sleep(0)
        assert await service.document(service.current, "river") is not None
        shown.set()
        assert await explaining

    asyncio.run(both())
    service.close()
