"""Models as they come: prompts, poolings and names, from the command line to other libraries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.tiny_t5 import save_gtr
from transformers import AutoModel

import isthmus
from isthmus.collections import open_collection
from isthmus.records import Query
from isthmus.retrieval.searcher import open_searcher

PROMPTS = {"query": "ba: ", "document": "do: "}
LITTLE = ("training.max_steps=2", "query_max_length=32", "document_max_length=32")
EXACT = "encoding.backend=torch-float32"
WHOLE = ("--set", EXACT, "--set", "passages=false")


def encoder_of(index: Path) -> Any:
    about = json.loads((index / "manifest.json").read_text(encoding="utf-8"))
    return about["fields"]["dense"]["encoder"]


def assert_as_there(
    index: Path, model: Path, collection: Path, prompts: dict[str, str] = PROMPTS
) -> None:
    """Compares the scores of an index with those that sentence-transformers gives."""
    there = SentenceTransformer(str(model), device="cpu")
    assert there.prompts == prompts
    documents = list(open_collection(str(collection)).documents())[:50]
    queries = [Query(query.id, query.text) for query in open_collection(str(collection)).queries()]
    vectors = there.encode_document([document.contents(True) for document in documents])
    expected = there.encode_query([query.text for query in queries[:5]]) @ vectors.T
    found = open_searcher(index, "dense", str(model)).search(queries[:5], 400)
    for ranking, scores in zip(found, expected, strict=True):
        own = dict(ranking)
        here = [own[document.id] for document in documents]
        np.testing.assert_allclose(here, scores, atol=1e-5)


def assert_loads_elsewhere(commands: Any, run: Path, collection: Path, scratch: Path) -> None:
    """Checks the run folder itself, its card, and that transformers misses no weight."""
    queries, output = collection / "queries.jsonl", scratch / "queries.npy"
    exact = ("--output", output, "--set", "exact=true")
    commands.succeed("export", queries, "--as", "queries", "--model", run, *exact)
    texts = [query.text for query in open_collection(str(collection)).queries()]
    there = SentenceTransformer(str(run), device="cpu")
    np.testing.assert_allclose(np.load(output), there.encode_query(texts), atol=1e-5)
    _, report = AutoModel.from_pretrained(run / "final", output_loading_info=True)
    assert not any(report.values()), report
    card = (run / "final" / "README.md").read_text(encoding="utf-8")
    assert "library_name: sentence-transformers" in card


@pytest.fixture(scope="module")
def e5(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder in E5's layout: mean, cosine, a prompt for each side."""
    folder: Path = tmp_path_factory.mktemp("e5")
    settings = {"pooling": "mean", "similarity": "cosine", "query_max_length": 32}
    own = {**settings, "document_max_length": 32}
    isthmus.load_encoder(str(model), own, exact=True).save(folder / "a")
    there = SentenceTransformer(str(folder / "a"), device="cpu")
    there.prompts = dict(PROMPTS)
    there.save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def test_prompts_from_the_model_to_the_retriever_that_is_trained(
    commands: Any, e5: Path, collection: Path, settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    run, index = tmp_path / "run", tmp_path / "index"
    mined = ("negatives.name=retriever", f"negatives.model={e5}", "negatives.num_negatives=1")
    told = commands.succeed(
        "finetune", "--model", e5, collection, "--output", run,
        *settings(*LITTLE, *mined, "pooling=mean", "similarity=cosine", "include_prompt=false"),
    ).stderr  # fmt: skip
    assert "queries begin with 'ba: ', documents with 'do: '" in " ".join(told.split())
    pooling = json.loads((run / "final" / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert pooling["include_prompt"] is False
    commands.succeed("index", collection, "--model", run, "--output", index, *WHOLE)
    assert encoder_of(index)["settings"]["query_prompt"] == "ba: "
    assert_as_there(index, run / "final", collection)
    assert "ba" in commands.succeed("search", index, "ba do ke").stdout
    assert_loads_elsewhere(commands, run, collection, tmp_path)


def test_an_index_keeps_how_its_encoder_encodes(
    commands: Any, e5: Path, collection: Path, tmp_path: Path
) -> None:
    shutil.copytree(e5, tmp_path / "model")
    commands.succeed(
        "index",
        collection,
        "--model",
        tmp_path / "model",
        "--output",
        tmp_path / "index",
        *WHOLE,
    )
    assert_as_there(tmp_path / "index", tmp_path / "model", collection)
    queries = [Query("q", "ba do ke li")]
    before = open_searcher(tmp_path / "index", use="dense", model=str(tmp_path / "model")).search(
        queries, 5
    )
    (tmp_path / "model" / "config_sentence_transformers.json").unlink()
    after = open_searcher(tmp_path / "index", use="dense", model=str(tmp_path / "model")).search(
        queries, 5
    )
    assert before == after
    added = tmp_path / "more.jsonl"
    added.write_text(json.dumps({"_id": "new", "title": "", "text": "ba do ke li"}) + "\n")
    commands.succeed("add", tmp_path / "index", added)
    (grown,) = open_searcher(tmp_path / "index", use="dense", model=str(tmp_path / "model")).search(
        queries, 1
    )
    assert grown.document_ids == ("new",)


def test_a_plain_model_is_told_how_to_encode(
    commands: Any, e5: Path, collection: Path, tmp_path: Path
) -> None:
    shutil.copytree(e5, tmp_path / "plain")
    for file in ("modules.json", "config_sentence_transformers.json"):
        (tmp_path / "plain" / file).unlink()
    told = commands.succeed(
        "index", collection, "--model", tmp_path / "plain", "--output", tmp_path / "silent",
    ).stderr  # fmt: skip
    assert "nothing beside the model says how to pool; using cls and dot" in " ".join(told.split())
    wanted = (
        EXACT, "pooling=mean", "similarity=cosine", "query_prompt='ba: '", "document_prompt='do: '",
        "query_max_length=32", "document_max_length=32",
    )  # fmt: skip
    told = commands.succeed(
        "index",
        collection,
        "--model",
        tmp_path / "plain",
        "--output",
        tmp_path / "told",
        *(part for one in wanted for part in ("--set", one)),
    ).stderr
    assert "nothing beside the model" not in told
    found = encoder_of(tmp_path / "told")
    shutil.copytree(e5, tmp_path / "described")
    commands.succeed(
        "index",
        collection,
        "--model",
        tmp_path / "described",
        "--output",
        tmp_path / "stated",
        "--set",
        EXACT,
    )
    assert found["fingerprint"] == encoder_of(tmp_path / "stated")["fingerprint"]
    refused = commands.run(
        "index", collection, "--output", tmp_path / "words", "--set", "pooling=mean"
    )
    assert "BM25 encodes nothing" in refused.stderr
    refused = commands.run(
        "index",
        collection,
        "--model",
        tmp_path / "plain",
        "--output",
        tmp_path / "words",
        "--set",
        "query_prompt=ba: ",
    )
    assert """'query_prompt="query: "'""" in refused.stderr


def test_a_t5_encoder_as_gtr_is_one(
    commands: Any, collection: Path, words: list[str], settings: Any, tmp_path: Path
) -> None:
    save_gtr(tmp_path / "gtr", words, length=32)
    run, index = tmp_path / "run", tmp_path / "index"
    commands.succeed(
        "finetune", "--model", tmp_path / "gtr", collection, "--output", run,
        *settings(*LITTLE, "pooling=mean", "similarity=cosine"),
    )  # fmt: skip
    commands.succeed("index", collection, "--model", run, "--output", index, "--set", EXACT)
    assert_as_there(index, run / "final", collection, {"query": "", "document": ""})
    before = isthmus.load_encoder(str(tmp_path / "gtr"), exact=True)
    assert encoder_of(index)["fingerprint"] != before.fingerprint, "it was trained"
    text = json.loads((collection / "corpus.jsonl").read_text().splitlines()[7])["text"]
    assert "d7" in commands.succeed("search", index, text).stdout
    table = commands.succeed(
        "evaluate", collection, tmp_path / "gtr", run,
        "--split", "train", "--output", tmp_path / "report",
    ).stdout  # fmt: skip
    assert "run" in table
    refused = commands.run(
        "pretrain", "--model", run, collection, "--output", tmp_path / "pretrained"
    )
    assert refused.returncode == 2
    assert "has no masked-LM head" in " ".join(refused.stderr.split())


def test_adapting_keeps_prompts(commands: Any, e5: Path, collection: Path, tmp_path: Path) -> None:
    little = (
        "finetune.training.max_steps=2", "finetune.training.per_device_train_batch_size=8",
        "finetune.training_max_length=32",
    )  # fmt: skip
    commands.succeed(
        "adapt", collection, "--model", e5, "--output", tmp_path / "run",
        *(part for one in little for part in ("--set", one)),
    )  # fmt: skip
    for model in (tmp_path / "run", tmp_path / "run" / "model"):
        assert SentenceTransformer(str(model), device="cpu").prompts == PROMPTS
    kept = encoder_of(tmp_path / "run" / "index")["settings"]
    assert (kept["query_prompt"], kept["document_prompt"]) == ("ba: ", "do: ")
