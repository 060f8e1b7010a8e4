"""Turns of equal texts, ratios within a round, rows that fail alone, rows that are kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.benchmarks.speed import contestants
from isthmus.benchmarks.speed import speed as run_speed
from isthmus.benchmarks.speed.contestants import Ours, Turn, settings_for
from isthmus.benchmarks.speed.report import PLAIN, Round, Row, SpeedReport, measured
from isthmus.benchmarks.speed.settings import SpeedSettings
from isthmus.benchmarks.speed.texts import RandomCorpus, corpus_of, starting_model
from isthmus.errors import IsthmusError, SettingsError
from isthmus.nn.kernels import available
from isthmus.pretraining.decoders.enhanced import Enhanced
from isthmus.pretraining.task import PretrainTask
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
TINY: dict[str, Any] = {
    "vocabulary": 300, "batch": 4, "steps": 3, "rounds": 2, "warm_up": 1,
    "pretrain": {"training": {"bf16": False}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch, no_plots: None) -> None:
    """What a chip can do at best is measured in a moment; how it is drawn is tested elsewhere."""
    monkeypatch.setitem(contestants._MATRIX, "cpu", 256)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one to twenty words, in which every word has its own length of document."""
    file = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    lines = [{"_id": str(n), "text": " ".join(f"word{n}" for _ in range(1 + n))} for n in range(20)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_a_turn_is_all_texts_once(corpus: Path, tmp_path: Path) -> None:
    settings = SpeedSettings(init="tiny", corpus=str(corpus), **TINY)
    model = starting_model(settings, tmp_path)
    texts = corpus_of(settings, Tokenizer.load(model), 16, tmp_path)
    ours = Ours(settings_for("mlm", model, (16, 4), 0, settings.pretrain), texts, 3, tmp_path / "o")
    timed: list[list[Batch]] = []
    kept = ours.watch.on_step_end

    def look(arguments: Any, state: Any, control: Any, **more: Any) -> None:
        kept(arguments, state, control, **more)
        if state.global_step == state.max_steps:
            timed.append(list(ours.trainer.seen))

    ours.watch.on_step_end = look  # type: ignore[method-assign]
    ours.warm_up(1)
    turns = [ours.turn(), ours.turn()]
    wanted = Counter(int(row) for row in ours.examples.rows)
    for batches in timed[1:]:
        assert [len(batch["keys"]) for batch in batches] == [4, 4, 4]
        shown = Counter(tuple(row) for batch in batches for row in batch["input_ids"].tolist())
        assert sorted(shown.values()) == sorted(wanted.values())
    for turn in turns:
        assert turn.texts == 12
        assert turn.tokens == sum(int(mask.sum()) for mask in masks(ours))
        assert turn.operations == turns[0].operations
        assert turn.seconds > 0
        assert turn.peak is None or turn.peak > 0
        assert turn.step == turn.seconds / 3
        assert 0 < turn.data < turn.step
        assert 0 < turn.masking < turn.step
    # Of like length side by side, as `isthmus pretrain` has them; the plain loop knows no length.
    ours_width = sum(batch["input_ids"].numel() for batch in timed[-1])
    assert ours_width < sum(mask.numel() for mask in masks(ours))
    assert not list((tmp_path / "o").glob("checkpoint-*"))


def masks(ours: Ours) -> list[torch.Tensor]:
    return [batch["attention_mask"] for batch in ours.masked()]


@pytest.mark.parametrize("recipe", ["mlm", "cotmae", "bow-pmi"])
def test_random_texts_are_full(recipe: str, tmp_path: Path) -> None:
    settings = SpeedSettings(init="tiny", **TINY)
    model = starting_model(settings, tmp_path)
    tokenizer = Tokenizer.load(model)
    assert len(tokenizer) == 300
    texts = corpus_of(settings, tokenizer, 24, tmp_path)
    assert isinstance(texts, RandomCorpus)
    ours = Ours(settings_for(recipe, model, (24, 4), 0, settings.pretrain), texts, 2, tmp_path)
    ours.warm_up(1)
    turn = ours.turn()
    # A view of two spans has half as many documents in a step, and as many texts.
    assert (turn.texts, turn.tokens) == (8, 8 * 24)


@pytest.mark.parametrize("kernels", [True, False])
def test_what_is_timed_runs_kernels_as_its_settings_say(kernels: bool, tmp_path: Path) -> None:
    settings = SpeedSettings(init="tiny", **TINY)
    model = starting_model(settings, tmp_path)
    texts = corpus_of(settings, Tokenizer.load(model), 16, tmp_path)
    training = {"training": {"bf16": False, "kernels": kernels}}
    ours = Ours(settings_for("mlm", model, (16, 4), 0, training), texts, 2, tmp_path / "o")
    switches: list[bool] = []
    layer = ours.task.backbone.layers[0]
    layer.register_forward_hook(lambda *_: switches.append(available.KERNELS))
    ours.warm_up(1)
    ours.turn()
    assert set(switches) == {kernels}
    assert available.KERNELS, "as before"


def test_a_recipe_gets_the_shape_asked_for() -> None:
    settings = settings_for("cotmae", "model", (200, 7), 3, {"decoder": {"layers": 1}})
    assert (settings.max_length, settings.view["span"]) == (200, 200)
    assert settings.training.per_device_train_batch_size == 3
    assert settings.training.gradient_accumulation_steps == 1
    assert (settings.training.seed, settings.decoder) == (
        3, {"name": "bidirectional", "layers": 1, "init": "random", "head": "shared"},
    )  # fmt: skip


def turn(rate: float, operations: int | None = 100, peak: int | None = None) -> Turn:
    return Turn(seconds=10 / rate, texts=10, tokens=50, operations=operations, peak=peak)


def test_a_busy_round_slows_all_alike() -> None:
    def at(speed: float) -> Round:
        turns = {
            "mlm": turn(100 * speed),
            "bow": replace(
                turn(80 * speed, operations=110, peak=7), step=3.0, data=speed, masking=speed / 2
            ),
            PLAIN: turn(40 * speed),
        }
        return Round(turns, chip=5000 * speed)

    row = measured(144, 4, "bow", [at(1.0), at(0.2), at(0.9)])
    assert row.rate == pytest.approx(72)
    assert row.rates == pytest.approx((80, 16, 72))
    assert row.tokens == pytest.approx(360)
    assert row.lost == pytest.approx(0.2)
    assert row.against_plain == pytest.approx(2.0)
    assert row.operations == pytest.approx(11)
    assert row.useful == pytest.approx(72 * 11)
    assert row.of_chip == pytest.approx(880 / 5000)
    assert row.lost_by_arithmetic == pytest.approx(1 - 100 / 110)
    assert row.of_masked_lm == pytest.approx(0.8 * 1.1)
    assert row.lost_in_paper == 0.012
    assert row.peak == 7
    assert (row.step, row.data, row.masking) == pytest.approx((3.0, 0.9, 0.45))
    shown = SpeedReport((row,), 3, "Here.").table().rows[0][-1].text
    assert shown == "900, 450, 3,000"


def test_what_is_not_known_is_not_invented() -> None:
    rounds = [Round({"mine": turn(50, operations=None)}, chip=1.0)]
    row = measured(144, 4, "mine", rounds)
    assert row.rate == pytest.approx(50)
    known = (row.useful, row.of_chip, row.of_masked_lm, row.lost, row.against_plain, row.peak)
    assert known == (None,) * 6
    report = SpeedReport((row, Row(144, 4, "other", error="no memory")), 1, "Here.")
    table = report.table()
    assert [cell.text for cell in table.rows[0]][4:] == ["–"] * 9
    assert "| 50 (50–50) |" in table.markdown()
    assert [cell.text for cell in table.rows[1]][:3] == ["4 × 144", "other", "failed"]
    assert "other at 144 failed: no memory." in table.caption


def test_one_recipe_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory\nlong story")

    monkeypatch.setattr(Enhanced, "decode", full)
    output = tmp_path / "speed"
    report = run_speed(str(output), ["retromae", "bow"], init="tiny", lengths=[16], settings=TINY)
    assert [row.recipe for row in report.rows] == [PLAIN, "mlm", "retromae", "bow"]
    by_name = {row.recipe: row for row in report.rows}
    assert by_name["retromae"].error == "OutOfMemoryError: no memory"
    assert all(by_name[name].error is None for name in (PLAIN, "mlm", "bow"))
    assert by_name["bow"].lost is not None
    assert len(by_name["bow"].rates) == 2
    assert "retromae at 16 failed" in (output / "table.md").read_text(encoding="utf-8")


def test_rows_are_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, ...]] = []
    build = PretrainTask.__init__

    def stop(self: PretrainTask, *arguments: Any) -> None:
        objectives = tuple(arguments[2].objectives)
        built.append(objectives)
        if "term_frequency" in objectives and len(built) < 4:
            raise KeyboardInterrupt
        build(self, *arguments)

    monkeypatch.setattr(PretrainTask, "__init__", stop)
    output = tmp_path / "speed"
    chosen: dict[str, Any] = {
        "recipes": ["bow", "mlm-term-frequency"], "init": "tiny", "lengths": [16],
        "settings": {**TINY, "rounds": 1},
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run_speed(str(output), **chosen)
    kept = json.loads((output / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [row["recipe"] for row in kept] == [PLAIN, "mlm", "bow"]
    report = run_speed(str(output), **chosen)
    assert [row.recipe for row in report.rows] == [PLAIN, "mlm", "bow", "mlm-term-frequency"]
    assert list(report.rows[2].rates) == kept[2]["rates"]
    # The second time, masked LM to compare with, and what was missing.
    assert built[3:] == [("masked_lm",), ("masked_lm", "term_frequency")]
    assert run_speed(str(output), **chosen) == report
    assert len(built) == 5
    # Interrupted between its last row and the table of it.
    (output / "table.md").unlink()
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    snapshot["complete"] = False
    (output / "isthmus.json").write_text(json.dumps(snapshot), encoding="utf-8")
    assert run_speed(str(output), **chosen) == report
    assert (output / "table.md").is_file()


@pytest.mark.parametrize(
    ("wrong", "what", "allowed"),
    [
        ({"recipes": ["retormae"]}, "retormae", "retromae"),
        ({"recipes": ["dense"]}, "finetune", "mlm"),
        ({"lengths": [513]}, "513", "512"),
        ({"lengths": [4]}, "lengths.0 = 4", "tokens per text"),
        ({"init": "huge"}, "huge", "base"),
        ({"model": "nowhere/at/all", "init": None}, "nowhere", "folder"),
        ({"model": "x"}, "either model", "init"),
        ({"settings": {"batch": 4, "tokens": 64}}, "either batch", "tokens"),
        ({"settings": {"round": 4}}, "round", "rounds"),
        ({"settings": {"pretrain": {"training": {"dropuot": 0.1}}}}, "dropuot", "dropout"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    wrong: dict[str, Any], what: str, allowed: str, tmp_path: Path
) -> None:
    small = {"settings": {"vocabulary": 300}, "init": "tiny"}
    with pytest.raises(IsthmusError) as refused:
        run_speed(str(tmp_path / "speed"), **{**small, **wrong})
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert isinstance(refused.value, SettingsError) or "nowhere" in what


def test_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="2 processes"):
        run_speed(init="tiny")


def test_tokens_make_batches() -> None:
    assert SpeedSettings(tokens=32_768).texts(512, gpu=True) == 64
    assert SpeedSettings().texts(512, gpu=True) == 64
    assert SpeedSettings(tokens=100).texts(144, gpu=False) == 1
    assert SpeedSettings(batch=5).texts(144, gpu=False) == 5
    assert [SpeedSettings().size(gpu) for gpu in (True, False)] == ["base", "mini"]
