"""Protocols become steps: each needed one once, with equal budgets, known again by digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import write_collection, write_corpus

from isthmus.benchmarks.protocol.plan import Plan, Step
from isthmus.benchmarks.protocol.settings import Protocol, read_protocol
from isthmus.benchmarks.runner.run import benchmark
from isthmus.benchmarks.runner.schedule import Schedule
from isthmus.benchmarks.runner.steps import RunFolder
from isthmus.config import find_recipe, shipped_recipes
from isthmus.errors import InputError, SettingsError

SIDES = ("query", "document")
_STEPS = {"training.max_steps": 2, "training.per_device_train_batch_size": 4,
          "training.gradient_accumulation_steps": 1, "max_length": 16}  # fmt: skip


def values_in(folder: Path) -> dict[str, Any]:
    """The values of a protocol, next to all data that it names."""
    judged = {"train": [("q", "d")], "test": [("q", "d")]}
    write_collection(folder / "made", {"d": "one"}, {"q": "one"}, judged)
    write_corpus(folder / "texts.jsonl", {"t": "words"})
    return {
        "data": str(folder),
        "base": {"texts": ["jsonl:{data}/texts.jsonl"]},
        "collections": {"made": {"spec": "beir:{data}/made"}},
        "methods": {"none": {}, "mlm": {"recipe": "mlm"}, "bow": {"recipe": "bow"}},
        "retrievers": {"dense": {"recipe": "dense"}, "sparse": {"recipe": "splade"}},
        "tasks": {"all": {"collection": "made"}, "few": {"collection": "made", "queries": 1}},
        "pretraining": _STEPS,
        "seeds": {"pretraining": [1, 2], "finetuning": [1, 2]},
    }


def plan(values: dict[str, Any]) -> Plan:
    return Plan(Protocol.parse(values, where="test"))


def test_runs_share_what_they_have_in_common(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    steps = plan(values).steps
    works = [step.work for step in steps.values()]
    assert works.count("run") == 3 * 2 * 2 * 2 * 2
    assert [name for name in steps if name.startswith("pretrain")] == [
        "pretrain/mlm/made/p1", "pretrain/bow/made/p1",
        "pretrain/mlm/made/p2", "pretrain/bow/made/p2",
    ]  # fmt: skip
    assert works.count("base") == 1
    assert steps["few.dense.bow.p2.f1"].needs == ("pretrain/bow/made/p2",)
    assert steps["few.dense.none.p2.f1"].needs == ("base",)
    seeds = {s.values["training"]["seed"] for s in steps.values() if s.run is not None}
    assert len(seeds) == 4  # the same for all starts, others for every pair


def test_a_task_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    values["tasks"]["few"]["seeds"] = {"pretraining": [2, 3]}
    values["tasks"]["as-it-is"] = {"collection": "made", "finetune": False}
    steps = plan(values).steps
    runs = [step.run for step in steps.values() if step.run]
    pairs = {
        task: list(
            dict.fromkeys((c.pretraining_seed, c.finetuning_seed) for c in runs if c.task == task)
        )
        for task in values["tasks"]
    }
    assert pairs == {
        "all": [(1, 1), (1, 2), (2, 1), (2, 2)],
        "few": [(2, 1), (3, 1)],
        "as-it-is": [(1, 1), (2, 1)],
    }
    made = {
        s.run.retriever: s.encoder for s in steps.values() if s.run and s.run.task == "as-it-is"
    }
    assert made == {"dense": "dense", "sparse": "sparse"}
    assert steps["as-it-is.dense.bow.p1.f1"].digest != steps["as-it-is.sparse.bow.p1.f1"].digest
    # Seed by seed, so that what is done at any moment is a whole table of fewer seeds.
    assert [c.pretraining_seed for c in runs] == sorted(c.pretraining_seed for c in runs)


def test_collections_of_one_corpus_pre_train_by_their_own_settings(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    made = {"spec": "beir:{data}/made", "corpus": "jsonl:{data}/texts.jsonl"}
    longer = {**made, "pretraining": {"training.max_steps": 3}}
    tasks = {"one": {"collection": "made"}, "other": {"collection": "longer"}}
    changed = {
        "collections": {"made": made, "longer": longer},
        "tasks": tasks,
        "methods": {"mlm": {"recipe": "mlm"}, "far": {"recipe": "mlm", "corpus": "longer"}},
        "equal_tokens": False,
    }
    steps = plan({**values, **changed}).steps
    lengths = {
        (task, start): steps[steps[f"{task}.dense.{start}.p1.f1"].model].values["training"]
        for task in tasks
        for start in ("mlm", "far")
    }
    assert {key: training["max_steps"] for key, training in lengths.items()} == {
        ("one", "mlm"): 2, ("one", "far"): 3, ("other", "mlm"): 3, ("other", "far"): 3,
    }  # fmt: skip


def test_a_recipe_of_the_protocol_builds_on_another(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    own = {
        "short": {"base": "dense", "settings": {"query_max_length": 8, "document_max_length": 9}},
        "shorter": {"base": "short", "settings": {"query_max_length": 7}},
    }
    values["retrievers"]["dense"] = {"recipe": "short"}
    values["tasks"]["few"]["recipes"] = {"dense": "shorter"}
    steps = plan({**values, "recipes": own}).steps
    read = {
        task: [steps[f"{task}.dense.none.p1.f1"].values[f"{side}_max_length"] for side in SIDES]
        for task in ("all", "few")
    }
    assert read == {"all": [8, 9], "few": [7, 9]}


def test_a_digest_changes_with_what_a_run_depends_on(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    before = plan(values).steps

    def changed(**more: Any) -> set[str]:
        after = plan({**values, **more}).steps
        return {
            f"{s.run.method} {s.run.retriever}"
            for name, s in before.items()
            if s.run is not None and after[name].digest != s.digest
        }

    everything = {f"{start} {kind}" for start in values["methods"] for kind in values["retrievers"]}
    assert changed(pretraining={**_STEPS, "training.learning_rate": 0.5}) == {
        "mlm dense", "mlm sparse", "bow dense", "bow sparse",
    }  # fmt: skip
    sparse = {"recipe": "splade", "settings": {"temperature": 2.0}}
    assert changed(retrievers={**values["retrievers"], "sparse": sparse}) == {
        "none sparse", "mlm sparse", "bow sparse",
    }  # fmt: skip
    assert changed(measures=["AP"]) == everything
    assert changed(base={**values["base"], "init": "1x64"}) == everything
    # Neither do seeds that are added, nor how a run is watched.
    assert not changed(seeds={"pretraining": [1, 2, 3], "finetuning": [1, 2]})
    assert not changed(finetuning={"training.logging_steps": 7, "audit": False})
    (tmp_path / "made" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t0\n")
    assert changed() == everything


def test_unequal_budgets_are_refused(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    starts = {**values["methods"], "cotmae": {"recipe": "cotmae", "settings": {"view.span": 16}}}
    with pytest.raises(SettingsError, match=r"'cotmae' reads 256 tokens .* 'mlm' 128"):
        plan({**values, "methods": starts})
    plan({**values, "methods": starts, "equal_tokens": False})
    starts["cotmae"]["settings"]["training.per_device_train_batch_size"] = 2
    plan({**values, "methods": starts})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tasks", {"all": {"collection": "mad"}}, "tasks.all.collection names 'mad'"),
        ("methods", {"bow": {"recipe": "bwo"}}, "there is no recipe named 'bwo'"),
        ("methods", {"Bow": {}}, "'Bow' becomes part of file names"),
        ("methods", {"a": {"recipe": "bow", "after": "a"}}, "methods.a comes after itself"),
        ("recipes", {"a": {"base": "a", "settings": {}}}, "recipes.a builds on itself"),
        ("measures", ["RR@ten"], "not the name of a measure"),
        ("measures", ["RR@10", "AP", "MRR@10"], "listed twice"),
        (
            "measures",
            ["RR@10", "Answer@5"],
            "'Answer@5' needs answers, and these queries have judgements only",
        ),
        ("finetuning", {"trainnig": {}}, "unknown key 'trainnig'"),
        ("collections", {"made": {"spec": "beir:{data}/made", "split": "tset"}}, "'tset'"),
        ("zero_shot", ["made", "other"], "zero_shot names 'other'"),
        (
            "collections",
            {"made": {"spec": "beir:{data}/made", "split": "train"}},
            "is tested, but training uses it too",
        ),
        ("finetuning", {"development": {"split": "test"}}, "is tested, but training uses it too"),
        (
            "retrievers",
            {"dense": {"recipe": "dense", "settings": {"encoder": "cross"}}},
            "encoder = 'cross' makes no retriever",
        ),
        ("base", {"model": ""}, "base.model = '' cannot be used"),
        ("base", {"texts": ["jsonl:{data}/texts.jsonl"], "init": "2x32"}, "no size '2x32'"),
        ("pretraining", {"training": 7}, "training = 7 cannot be used"),
        (
            "finetuning",
            {"queries": 8},
            "queries has no effect: set queries of a task",
        ),
        (
            "finetuning",
            {"training.seed": 3},
            "training.seed has no effect: set seeds",
        ),
        (
            "pretraining",
            {"model": "scratch:tiny"},
            "model has no effect: set model or init of the base",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_run(
    path: str, value: Any, message: str, tmp_path: Path
) -> None:
    values = values_in(tmp_path)
    with pytest.raises((SettingsError, InputError), match=message):
        plan({**values, path: value})


def test_a_dry_run_says_the_jobs_and_then_what_is_missing(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    file, output = tmp_path / "mine.yaml", tmp_path / "output"
    file.write_text(json.dumps({"verb": "benchmark", "settings": values}))
    outcome = benchmark(str(file), output, dry_run=True)
    jobs = str(outcome)
    assert "few.dense.none.p1.f1, after base" in jobs
    assert jobs.endswith(f"0 done, {outcome.left} left, 0 failed")
    assert not outcome.missing
    (tmp_path / "texts.jsonl").unlink()
    outcome = benchmark(str(file), output, dry_run=True)
    assert [*outcome.missing] == [f"jsonl:{tmp_path}/texts.jsonl"]
    *said, missing, fix, counts = str(outcome).splitlines()
    assert missing.startswith(f"missing: jsonl:{tmp_path}/texts.jsonl")
    assert "--data" in fix
    assert [*said, counts] == jobs.splitlines()
    with pytest.raises(InputError, match="1 of the data and models") as refused:
        benchmark(str(file), output)
    assert f"jsonl:{tmp_path}/texts.jsonl" in refused.value.what
    assert not output.exists()


def test_answers_alone_are_not_measured_by_judgements(tmp_path: Path) -> None:
    values = values_in(tmp_path)
    (tmp_path / "dpr").mkdir()
    (tmp_path / "dpr" / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\ta city\tParis\n")
    (tmp_path / "dpr" / "nq-test.qa.csv").write_text("which\t['Paris']\n")
    asked = {"spec": "dpr:{data}/dpr", "split": "nq-test"}
    tasks = {"all": {"collection": "made", "finetune": False}}
    given = {**values, "collections": {"made": asked}, "tasks": tasks}
    protocol = Protocol.parse(given, where="test")
    with pytest.raises(SettingsError, match="'RR@10' needs judgements") as refused:
        Plan(protocol)
    assert "collections.made: measures" in refused.value.what
    plan({**given, "measures": ["Answer@5"]})


@pytest.mark.parametrize("name", [recipe.name for recipe in shipped_recipes("benchmark")])
def test_shipped_protocols_can_be_run(name: str, tmp_path: Path) -> None:
    protocol = Protocol.given(None, None, name)
    home = find_recipe(name, Protocol.verb).file
    found = Plan(protocol, home)
    assert any(step.run is not None for step in found.steps.values())
    for table in protocol.expected:
        assert table.retriever in protocol.retrievers
        assert table.task in protocol.tasks
        for value in table.values() if protocol.scale == "paper" else ():
            assert value.collection in protocol.collections
            assert value.measure in protocol.measures
    known = {value.method for table in protocol.expected for value in table.values()}
    assert not protocol.expected or known & protocol.methods.keys()


def test_a_failed_model_fails_all_runs_that_need_it_and_no_other(tmp_path: Path) -> None:
    made = plan(values_in(tmp_path))
    schedule = Schedule(made, made.chosen(["few.dense.*.p1.f1"]), RunFolder.of(made, tmp_path))
    assert list(schedule.waiting) == [
        "base", "pretrain/mlm/made/p1", "pretrain/bow/made/p1",
        "few.dense.none.p1.f1", "few.dense.mlm.p1.f1", "few.dense.bow.p1.f1",
    ]  # fmt: skip
    base = taken(schedule)
    assert schedule.next() is None  # everything waits for the base
    schedule.finish(base)
    mlm = taken(schedule)
    assert schedule.fail(mlm, "lost")
    again = [taken(schedule).name for _ in range(3)]
    assert again == ["pretrain/bow/made/p1", "few.dense.none.p1.f1", "pretrain/mlm/made/p1"]
    assert not schedule.fail(mlm, "no memory")
    reasons = {
        "pretrain/mlm/made/p1": "no memory",
        "few.dense.mlm.p1.f1": "pretrain/mlm/made/p1: no memory",
    }
    assert schedule.failed == reasons
    assert list(schedule.waiting) == ["few.dense.bow.p1.f1"]


_MADE = {"made": {"RR@10": {"q": 1.0}}}


@pytest.mark.parametrize(
    ("tests", "cost", "message"),
    [
        ({}, {}, "is damaged: tests"),
        ({"made": {"RR@10": {}}}, {}, "is damaged: tests.made"),
        ({"made": {"RR@10": {"q": float("inf")}}}, {}, "is damaged: tests.made = inf"),
        (_MADE, {"index_bytes": -1.0}, "is damaged: cost.index_bytes = -1.0"),
    ],
)
def test_a_run_without_the_scores_of_its_tests_is_refused(
    tests: dict[str, Any], cost: dict[str, float], message: str, tmp_path: Path
) -> None:
    made = plan(values_in(tmp_path))
    step = made.steps["few.dense.none.p1.f1"]
    assert step.run is not None
    result = {
        "run": step.run.model_dump(), "settings": step.digest, "cost": cost,
        "tests": {
            name: {"measures": dict.fromkeys(scores, 1.0), "per_query": scores}
            for name, scores in tests.items()
        },
    }  # fmt: skip
    file = step.run.file(tmp_path)
    file.parent.mkdir()
    file.write_text(json.dumps(result))
    with pytest.raises(InputError, match=message) as refused:
        Schedule(made, made.chosen([]), RunFolder.of(made, tmp_path))
    assert refused.value.fix == "remove the file: the run is repeated"


def taken(schedule: Schedule) -> Step:
    step = schedule.next()
    assert step is not None
    return step


_CLAIM = {"statement": "it helps", "higher": {"methods": ["bow"]}, "lower": {"methods": ["mlm"]}}
_TABLE = {"paper": "p", "table": "1", "retriever": "dense", "task": "all",
          "rows": {"bow": [0.1, None]}, "columns": ["made RR@10", "far RR@10"]}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"claims": {"c": {**_CLAIM, "measure": "RR@5"}}}, "claims.c.measure names 'RR@5'"),
        ({"expected": [{**_TABLE, "retriever": "danse"}]}, "expected.0.retriever names 'danse'"),
        (
            {"expected": [{**_TABLE, "rows": {"bow": [None, 0.1]}}], "scale": "paper"},
            "expected.0.columns names 'far'",
        ),
    ],
)
def test_claims_and_tables_that_the_runs_cannot_answer_are_refused(
    more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = values_in(tmp_path)
    with pytest.raises(SettingsError, match=message):
        Protocol.parse({**values, **more}, where="test")


def test_a_folder_without_a_protocol_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    for text in (None, "{", "{}"):
        if text is not None:
            (tmp_path / "protocol.json").write_text(text)
        with pytest.raises((InputError, SettingsError), match=r"protocol\.json"):
            read_protocol(tmp_path)
