"""A benchmark, killed and continued, with runs brought back, failed ones, and new seeds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

_TRAINING = {
    "max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
    "report_to": [], "save_total_limit": 0, "bf16": False,
}  # fmt: skip
_SHORT = {"query_max_length": 8, "document_max_length": 16, "audit": False}


@pytest.fixture(scope="module")
def protocol(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    values: dict[str, Any] = {
        "base": {"model": str(model)},
        "collections": {"made": {"spec": "beir:{data}"}},
        "methods": {"none": {}, "bow": {"recipe": "bow"}},
        "retrievers": {"dense": {"recipe": "dense"}},
        "tasks": {
            "few": {"collection": "made", "queries": 8},
            "as-it-is": {"collection": "made", "finetune": False, "methods": ["bow"]},
        },
        "pretraining": {"max_length": 16, "probes": {"documents": 0}, "training": _TRAINING},
        "finetuning": {
            **_SHORT, "negatives": {"num_negatives": 1}, "development": None, "training": _TRAINING,
        },
        "measures": ["RR@10"],
    }  # fmt: skip
    file = tmp_path_factory.mktemp("protocol") / "small.yaml"
    file.write_text(yaml.safe_dump({"verb": "benchmark", "settings": values}))
    return file


@pytest.fixture(scope="module")
def whole(
    commands: Any, protocol: Path, judged: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a benchmark that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "benchmark"
    run(commands, protocol, judged, folder)
    return folder


def run(commands: Any, protocol: Path, data: Path, folder: Path, *more: str) -> str:
    result = commands.succeed(*words(protocol, data, folder), *more)
    assert isinstance(result.stdout, str)
    return result.stdout


def words(protocol: Path, data: Path, folder: Path) -> list[str]:
    place = ["--data", str(data), "--output", str(folder), "--workers", "0"]
    return ["research", "benchmark", str(protocol), *place]


def table(folder: Path) -> dict[str, Any]:
    """All that runs found, without what it took."""
    runs = [json.loads(file.read_text()) for file in sorted((folder / "runs").iterdir())]
    return {f"{one['run']}": [one[key] for key in ("tests", "settings")] for one in runs}


def test_killed_it_ends_with_the_same_table(
    commands: Any, whole: Path, protocol: Path, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    command = words(protocol, judged, folder)
    commands.kill_when(lambda: list(folder.glob("models/*")), *command)
    commands.succeed(*command)
    assert table(folder) == table(whole)
    assert len(table(folder)) == 3
    # What no run needs any more is not kept.
    assert not list((folder / "models").iterdir())
    assert not list((folder / "work").iterdir())


@pytest.mark.nightly
def test_a_worker_that_is_killed_costs_nothing(
    whole: Path, protocol: Path, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    typed = words(protocol, judged, folder)[:-1]
    starter = subprocess.Popen([sys.executable, "-m", "isthmus", *typed, "2"])
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
    while not list(folder.glob("work/*")):  # a worker has begun
        assert starter.poll() is None
        time.sleep(0.2)
    workers = [
        int(child) for child in children.read_text().split()
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]  # fmt: skip
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    assert starter.wait() == 0
    assert table(folder) == table(whole)


def test_runs_brought_back_count_and_seeds_added_later_run_alone(
    commands: Any, whole: Path, protocol: Path, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "models")
    before = {file: file.stat().st_mtime_ns for file in (folder / "runs").iterdir()}
    said = run(commands, protocol, judged, folder, "--set", "seeds.finetuning=[1,2]")
    assert "5 done, 0 left, 0 failed" in said
    assert before == {file: file.stat().st_mtime_ns for file in before}
    new = {file.name for file in (folder / "runs").iterdir()} - {file.name for file in before}
    assert new == {"few.dense.none.p1.f2.json", "few.dense.bow.p1.f2.json"}


def test_a_run_of_other_settings_is_never_mixed_in(
    commands: Any, whole: Path, protocol: Path, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    shutil.copytree(whole / "runs", folder / "runs")
    result = commands.run(
        *words(protocol, judged, folder), "--set", "finetuning.training.learning_rate=1e-3"
    )
    assert result.returncode == 2
    assert "was made with other settings or data: fine-tuning" in result.stderr


def test_a_run_that_fails_has_its_reason_and_the_others_continue(
    commands: Any, whole: Path, protocol: Path, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "benchmark"
    # A model without layers cannot be read: what begins with it fails, the rest does not.
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    result = commands.run(
        *words(protocol, judged, folder),
        "--set", f"methods={{none: {{}}, broken: {{model: {broken}, recipe: bow}}}}",
        "--set", "tasks={few: {collection: made, queries: 8}}",
    )  # fmt: skip
    assert result.returncode == 1
    assert "1 done, 0 left, 1 failed" in result.stdout
    failed = json.loads((folder / "isthmus.json").read_text())["results"]["failed"]
    assert failed.keys() == {"few.dense.broken.p1.f1"}
    assert str(broken) in failed["few.dense.broken.p1.f1"]
    report = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "1 of 2 runs are done" in report
    same = table(whole).keys() & table(folder).keys()
    assert [table(folder)[run] for run in same] == [table(whole)[run] for run in same]
    assert same
