"""The runner of experiments/: its jobs can work, and are run in order, once, or twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from isthmus.config import resolve
from isthmus.finetuning import pipeline
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
NAMES = ("stages", "stages_running", "stages_table", "stages_answers")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    yield [__import__(name) for name in NAMES]
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("small", [False, True])
def test_the_settings_of_every_job_can_work(modules: Any, small: bool, tmp_path: Path) -> None:
    stages, *_ = modules
    for job in stages.all_jobs(stages.Place(tmp_path, tmp_path, small), [1]):
        arguments = {**job.arguments, "model": "m"}
        recipe, overrides = arguments.pop("recipe", None), arguments.pop("settings", {})
        if job.verb == "pretrain":
            values = resolve("pretrain", recipe, arguments, overrides)
            assemble(PretrainSettings.parse(values, job.name))
        elif job.verb == "finetune":
            if "stages.distilled.teacher.model" in overrides:
                overrides = {**overrides, "stages.distilled.teacher.model": "t"}
            pipeline.assemble(resolve("finetune", recipe, arguments, overrides), job.name)


def test_jobs_follow_what_they_need_and_never_share_a_folder_at_a_time(
    modules: Any, tmp_path: Path
) -> None:
    stages, *_ = modules
    before: dict[str, set[str]] = {}
    users: dict[str, str] = {}
    for job in stages.all_jobs(stages.Place(tmp_path, tmp_path, False), [1, 2, 3]):
        assert before.keys() >= set(job.needs)
        before[job.name] = set(job.needs).union(*(before[needed] for needed in job.needs))
        folder = job.arguments.get("output", job.name)
        assert users.get(folder, job.name) in {job.name, *before[job.name]}, job.name
        users[folder] = job.name
    assert len(before) == 140


def test_data_that_is_missing_is_named_at_once(
    modules: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages, *_ = modules
    data, output = tmp_path / "data", tmp_path / "output"
    words = ["stages.py", "--data", str(data), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", [*words, "--collections", "medquad"])
    for folder in (data, data / "texts", data / "collections" / "medquad"):
        with pytest.raises(SystemExit, match="2"):
            stages.main()
        told = capsys.readouterr().err
        assert told.startswith(f"error: there is no folder {str(folder)!r}\n")
        assert f"where:   --data {data}" in told
        assert "to do:   --data with a folder that holds" in told
        folder.mkdir(parents=True)
    assert not output.exists()
    stages.check_data(stages.Place(data, output, False), ["texts", "medquad/prepare"])


def test_every_model_is_measured_once(modules: Any, tmp_path: Path) -> None:
    stages, *_ = modules
    jobs = list(stages.all_jobs(stages.Place(tmp_path, tmp_path, False), [1, 2, 3]))
    names = [row.name for job in jobs for row in job.rows]
    # As they are: 6. Teachers: 3. Three stages of three models: 81. Other ways: 57, and 18 short.
    assert len(names) == len(set(names)) == 165


def test_a_failed_job_is_tried_once_more_while_others_go_on(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, running, *_ = modules
    fails_once = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = p.exists(); p.touch()"
    scripts = {
        "a": f"{fails_once}; sys.exit(not n)",
        "b": "import sys; sys.exit(3)",
        "c": "pass",
        "d": "pass",
    }
    needs = {"c": ("b",), "d": ("a",)}
    jobs = {
        name: running.Job(name, "verb", {"script": script}, needs.get(name, ()))
        for name, script in scripts.items()
    }

    def words(job: Any) -> list[str]:
        return [sys.executable, "-c", job.arguments["script"], str(tmp_path / job.name)]

    assert running.Runner(jobs, tmp_path / "out", words).run(2) == 1
    told = capsys.readouterr().out
    assert "a: failed with 1, once more" in told
    assert "failed twice: b" in told
    assert "not begun: c" in told
    assert running.Runner(jobs, tmp_path / "out", words).done == {"a", "d"}


def test_long_chains_go_first_and_what_may_wait_last(modules: Any) -> None:
    _, running, *_ = modules
    job = running.Job
    jobs = {
        "short": job("short", "v", {}, seconds=5),
        "first": job("first", "v", {}, seconds=1),
        "then": job("then", "v", {}, ("first",), seconds=9),
        "extra": job("extra", "v", {}, seconds=99, last=True),
    }
    assert [each.name for each in running.in_order(jobs)] == ["first", "then", "short", "extra"]


def test_the_table_compares_the_seeds_means_with_the_stage_before(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, table, _ = modules
    lines = []
    for stage, scores in ((1, (0.25, 0.5)), (2, (0.5, 1.0))):
        for seed, score in enumerate(scores, start=1):
            row = {"collection": "c", "model": "bow", "kind": "dense", "seed": seed}
            row |= {"stage": stage, "way": "plain"}
            report = tmp_path / "reports" / f"c-bow-dense-{seed}-{stage}-plain"
            report.mkdir(parents=True)
            rows = [f"RR@10\tq{number}\t{score}\n" for number in range(20)]
            header = f"measure\tquery\t{report.name}\n"
            (report / "per_query.tsv").write_text(header + "".join(rows))
            lines.append(json.dumps({**row, "RR@10": score, "nDCG@10": score}) + "\n")
    (tmp_path / "results.jsonl").write_text("".join(lines))
    table.print_tables(tmp_path, ["c"])
    told = capsys.readouterr().out
    assert "| `bow`, dense, stage 1 | .375 ± .177 |" in told
    assert "| `bow`, dense, stage 2 | .750 ± .354 (p < .001) |" in told
    # Of all questions about one article the sign is tossed once: two tosses of two are as extreme.
    (tmp_path / "tests" / "c").mkdir(parents=True)
    articles = json.dumps({f"q{number}": "one article" for number in range(20)})
    (tmp_path / "tests" / "c" / "articles.json").write_text(articles)
    table.print_tables(tmp_path, ["c"])
    assert "| `bow`, dense, stage 2 | .750 ± .354 (p 1.000) |" in capsys.readouterr().out


def test_wrong_first_answers_by_what_they_are_about(
    modules: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    *_, answers = modules
    folder = tmp_path / "collections" / "openwiki"
    (folder / "qrels").mkdir(parents=True)
    titles = {"right": "A", "beside": "A", "known": "B", "sibling": "B", "other": "C"}
    documents = [{"_id": name, "title": title, "text": "t"} for name, title in titles.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    queries = [{"_id": name, "text": "t"} for name in ("q0", "q1", "q2", "q3", "q4")]
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(f"{header}q0\tknown\t1\n")
    tests = "".join(f"q{number}\tright\t1\n" for number in range(1, 5))
    (folder / "qrels" / "test.tsv").write_text(header + tests)
    words = ["answers", "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"no run file .* --only 'openwiki/"):
        answers.main()
    (tmp_path / "out" / "searched").mkdir(parents=True)
    for seed, last in (("1", "sibling"), ("2", "other")):
        found = {"q1": "right", "q2": "beside", "q3": "known", "q4": last}
        lines = [
            f"{query} Q0 other-{query} 2 1.0 r\n" for query in found
        ]  # not the best, but first
        lines += [f"{query} Q0 {document} 1 2.0 r\n" for query, document in found.items()]
        file = tmp_path / "out" / "searched" / f"openwiki-bow-dense-{seed}-3-own.trec"
        file.write_text("".join(lines))
    answers.main()
    told = capsys.readouterr().out
    assert "0.400 of 5 paragraphs are of 1 articles trained on" in told
    assert "| bow dense 3 own | 3 | 0.50 |" in told  # two of three, and one of three
