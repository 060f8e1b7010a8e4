"""A benchmark of questions, tested by the answers that retrieved passages hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

_TRAINING = {
    "max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
    "report_to": [], "save_total_limit": 0, "bf16": False,
}  # fmt: skip


def test_questions_are_tested_by_their_answers(
    commands: Any, collection: Path, model: Path, tmp_path: Path
) -> None:
    questions = _write_dpr(tmp_path / "dpr", collection)
    values = {
        "base": {"model": str(model)},
        "collections": {"nq": {"spec": "dpr:{data}/dpr", "split": "nq-test"}},
        "methods": {"none": {}, "bow": {"recipe": "bow"}},
        "retrievers": {"dense": {"recipe": "bow-retriever-qa"}},
        "tasks": {"bm25": {
            "collection": "nq", "settings": {"split": "nq-train", "stages": {"mined": None}},
        }},
        "pretraining": {"max_length": 16, "training": _TRAINING, "probes": {"documents": 0}},
        "finetuning": {
            "query_max_length": 8, "document_max_length": 16, "audit": False,
            "development": None, "training": _TRAINING,
        },
        "measures": ["Answer@10", "Answer@1"],
    }  # fmt: skip
    file = tmp_path / "qa.yaml"
    file.write_text(yaml.safe_dump({"verb": "benchmark", "settings": values}))
    folder = tmp_path / "benchmark"
    said = commands.succeed(
        "research", "benchmark", file, "--data", tmp_path, "--output", folder, "--workers", "0"
    )
    assert "2 done, 0 left, 0 failed" in said.stdout
    run = json.loads((folder / "runs" / "bm25.dense.bow.p1.f1.json").read_text())
    tested = run["tests"]["nq"]["per_query"]
    first, deep = tested["Answer@1"], tested["Answer@10"]
    assert first.keys() == deep.keys() == questions
    assert all(first[question] <= deep[question] for question in questions)
    assert {*deep.values()} == {0.0, 1.0}


def _write_dpr(folder: Path, collection: Path) -> set[str]:
    """Writes DPR's files; returns the ids of the questions that test."""
    folder.mkdir()
    lines = (collection / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    passages = [f"{one['_id']}\t{one['text']}\t{one['title']}" for one in documents]
    (folder / "psgs_w100.tsv").write_text("\n".join(["id\ttext\ttitle", *passages, ""]))
    lines = (collection / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["text"] for line in lines]
    answers = [one["text"].split()[0] for one in documents]  # question n is about document n
    training = [
        {"question": text, "answers": [answer], "positive_ctxs": [{"passage_id": one["_id"]}]}
        for text, answer, one in zip(questions[:60], answers, documents, strict=False)
    ]
    (folder / "biencoder-nq-train.json").write_text(json.dumps(training))
    asked = list(zip(questions[60:], answers[60:], strict=False))
    tests = "".join(f"{text}\t['{answer}']\n" for text, answer in asked)
    (folder / "nq-test.qa.csv").write_text(tests)
    return {f"nq-test-{number}" for number in range(len(asked))}
