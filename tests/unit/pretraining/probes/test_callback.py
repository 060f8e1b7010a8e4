"""Probes while training runs: when they run, what they keep, and that they disturb nothing."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.pretrain import run
from isthmus.pretraining.probes import (
    TOPIC,
    HeldOut,
    MaskedLm,
    Probe,
    Probing,
    assemble_probes,
)
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer
from isthmus.training.checkpoints import last_checkpoint
from isthmus.training.evaluation import BEST, best_evaluation, evaluations
from isthmus.training.trainer import STOPPED_EARLY, Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
DOCUMENTS = 420
STEPS = 8
AUTOENCODING: dict[str, Any] = {
    "bottleneck": "cls",
    "decoder": {"name": "bidirectional", "layers": 1},
    "decoder_corruption": {"name": "uniform", "rate": 0.5},
    "objectives": {"masked_lm": 1.0, "reconstruction": 1.0},
}
BOW: dict[str, Any] = {"objectives": {"masked_lm": 1.0, "bag_of_words": 1.0}}
Make = Callable[..., Trainer]
no_plots = pytest.mark.usefixtures("no_plots")
Line = dict[str, float]


class Killed(Exception):
    """Stands for the end of the process."""


class Scripted(Probe):
    """Says what it was told to say at each step."""

    def __init__(self, script: Mapping[int, float], better: str) -> None:
        super().__init__(None)
        self.script = script
        self.better = better  # type: ignore[assignment, misc]
        self.steps: list[int] = []

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> Line:
        assert not task.training
        assert not torch.is_grad_enabled()
        step = self.trainer.state.global_step
        self.steps.append(step)
        return {"": self.script.get(step, 0.0), "beside": 1.0}

    trainer: Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`corpus.jsonl`, `model`, and the cache."""
    folder = tmp_path_factory.mktemp("probing")
    generator = random.Random(0)
    syllables = ["ba", "do", "ke", "li", "mu", "na", "po", "ri"]
    words = ["".join(generator.choices(syllables, k=2)) for _ in range(40)]
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(DOCUMENTS):
            sentences = [
                " ".join(generator.choices(words, k=generator.randint(4, 7))) for _ in range(2)
            ]
            stream.write(json.dumps({"_id": f"d{number}", "text": "! ".join(sentences)}) + "\n")
    tokenizer = new_tokenizer([*words, "!"] * 2, 120)
    torch.manual_seed(0)
    config = bert(len(tokenizer), max_position_embeddings=40, initializer_range=0.02)
    Backbone(BertForMaskedLM(config)).save(folder / "model")
    tokenizer.save(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTHMUS_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def settings(folder: Path) -> Callable[..., PretrainSettings]:
    """A run of a few steps, with dropout; `output` names the folder."""

    def make(output: Path, **change: Any) -> PretrainSettings:
        training = {
            "max_steps": STEPS, "per_device_train_batch_size": 8, "logging_steps": 1,
            "save_steps": 2, "save_total_limit": None, "report_to": [], "bf16": False,
            "learning_rate": 1e-3, **change.pop("training", {}),
        }  # fmt: skip
        values = {
            "documents": str(folder / "corpus.jsonl"), "model": str(folder / "model"),
            "output": str(output), "max_length": 24, "corruption": "uniform", **BOW,
            "training": training, **change,
        }  # fmt: skip
        return PretrainSettings.parse(values, where="test")

    return make


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(str(folder / "model"))


@pytest.fixture(scope="module")
def corpus(folder: Path, tokenizer: Tokenizer) -> TokenisedCorpus:
    lines = map(json.loads, (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines())
    documents = (Document(line["_id"], line["text"]) for line in lines)
    return tokenise(documents, "probing", tokenizer.serialised)


@pytest.fixture(scope="module")
def make(
    settings: Callable[..., PretrainSettings],
    corpus: TokenisedCorpus,
    tokenizer: Tokenizer,
    folder: Path,
) -> Make:
    """A trainer on the same rows, with its own probes, a scripted one, or none."""
    backbone = Backbone.load(str(folder / "model"), "add")

    def build(
        output: Path, probes: dict[str, Any] | None, scripted: Scripted | None = None, **change: Any
    ) -> Trainer:
        chosen = settings(output, probes={} if scripted else probes or {}, **change)
        parts = assemble(chosen)
        torch.manual_seed(0)
        task = PretrainTask(copy.deepcopy(backbone), tokenizer, parts, seed=0)
        held_out = np.arange(0, len(corpus), 20)
        rows = np.setdiff1d(np.arange(len(corpus)), held_out)
        examples = PretrainExamples(corpus, parts.view, tokenizer, 24, 42, rows=rows)
        trainer = Trainer(task, examples, chosen.training, output)
        if probes is not None:
            measured: dict[str, Probe] = assemble_probes(chosen.probes, parts)
            wanted = chosen.probes
            if scripted is not None:
                scripted.trainer = trainer
                measured = {"scripted": scripted}
                wanted = type(wanted).parse({**probes, "measure": {}}, "test")

            def prepare() -> HeldOut:
                return HeldOut(examples, held_out, [], task, wanted)

            trainer.add_callback(Probing(trainer, measured, prepare, wanted))
        return trainer

    return build


def killed_at(step: int, trainer: Trainer, patch: pytest.MonkeyPatch) -> None:
    """Lets a trainer die when it is about to compute the step after `step`."""
    compute = trainer.compute_loss

    def dying(*arguments: Any, **options: Any) -> torch.Tensor:
        if trainer.state.global_step == step:
            raise Killed
        return compute(*arguments, **options)

    patch.setattr(trainer, "compute_loss", dying)
    with pytest.raises(Killed):
        trainer.fit()


def numbers(history: list[Line]) -> list[Line]:
    """The log without what tells the time."""
    return [line for line in history if "train_runtime" not in line]


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [
        (3, 8, [0, 3, 6, 8]),
        (4, 8, [0, 4, 8]),
        (50, 8, [0, 8]),
        (1, 3, [0, 1, 2, 3]),
        (0.25, 8, [0, 2, 4, 6, 8]),
        (0.3, 8, [0, 3, 6, 8]),  # 2.4 steps are three
        (0.01, 3, [0, 1, 2, 3]),
    ],
)
def test_when_they_evaluate(
    make: Make, tmp_path: Path, every: float, steps: int, expected: list[int]
) -> None:
    probe = Scripted({}, "higher")
    trainer = make(
        tmp_path, {"every": every}, probe, training={"max_steps": steps, "save_steps": 50}
    )
    history = trainer.fit()
    assert probe.steps == expected
    assert [line["step"] for line in evaluations(history, TOPIC)] == expected
    assert [line["step"] for line in history if "loss" in line] == list(range(1, steps + 1))
    assert trainer.task.training, "left as it was found"


@pytest.mark.parametrize(
    ("better", "script", "best"),
    [
        ("higher", {0: 1.0, 2: 3.0, 4: 2.0, 6: 0.0, 8: 1.0}, 2),
        ("lower", {0: 1.0, 2: 3.0, 4: 2.0, 6: 0.5, 8: 1.0}, 6),
        ("higher", {0: 1.0, 2: 2.0, 4: 2.0, 6: 0.0, 8: 2.0}, 2),  # the first of equals
        ("lower", {0: math.nan, 2: 3.0, 4: math.nan, 6: 2.0, 8: math.nan}, 6),
        ("higher", {0: 1.0, 2: math.nan, 4: 2.0, 6: math.nan, 8: math.nan}, 4),
        ("higher", {0: 5.0, 2: math.nan, 4: 2.0, 6: 1.0, 8: 4.0}, 0),
        ("lower", {0: 5.0, 2: -math.inf, 4: 2.0, 6: 1.0, 8: 4.0}, 2),
    ],
)
def test_the_best_model_is_kept(
    make: Make, tmp_path: Path, better: str, script: dict[int, float], best: int
) -> None:
    probe = Scripted(script, better)
    trainer = make(tmp_path, {"every": 2, "best_by": "scripted"}, probe)
    start = copy.deepcopy(trainer.task.state_dict())
    history = trainer.fit()
    assert len(evaluations(history, TOPIC)) == 5, "nothing stops without patience"
    assert best_evaluation(tmp_path, TOPIC)["step"] == best
    noted = json.loads((tmp_path / BEST / "probe.json").read_text(encoding="utf-8"))
    assert noted == {"step": best, "scripted": script[best]}
    kept = load_file(tmp_path / BEST / "model.safetensors")
    if best:
        saved = load_file(tmp_path / f"checkpoint-{best}" / "model.safetensors")
    else:
        saved = {name: start[f"backbone.model.{name}"] for name in kept}
    assert kept.keys() == saved.keys()
    assert all(torch.equal(kept[name].cpu(), saved[name].cpu()) for name in kept)


@pytest.mark.parametrize(
    ("better", "script", "patience", "end"),
    [
        ("higher", [1, 3, 2, 2, 2, 9, 9, 9, 9], 3, 4),
        ("higher", [1, 3, 2, 4, 2, 5, 2, 6, 2], 2, None),  # it improves in time, again and again
        ("lower", [5, 4, 4, 3, 3, 3, 1, 1, 1], 2, 5),  # an equal value is not better
        ("lower", [5, 6, math.nan, math.nan, 1, 1, 1, 1, 1], 3, 3),  # nor is none
        ("higher", [math.nan, 1, 2, 3, 4, 5, 6, 7, 8], 1, None),
        ("higher", [1, 2, 3, 4, 5, 6, 7, 8, 7], 1, 8),
    ],
)
def test_patience(
    make: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    better: str,
    script: list[float],
    patience: int,
    end: int | None,
) -> None:
    probe = Scripted(dict(enumerate(script)), better)
    probes = {"every": 1, "best_by": "scripted", "patience": patience}
    trainer = make(tmp_path, probes, probe, training={"save_steps": 100})
    history = trainer.fit()
    told = f"scripted has not improved for {patience} evaluations: stop"
    assert (told in capsys.readouterr().err) is (end is not None)
    assert [line[STOPPED_EARLY] for line in history if STOPPED_EARLY in line] == (
        [] if end is None else [end]
    )
    last = STEPS if end is None else end
    assert trainer.state.global_step == last
    assert last_checkpoint(tmp_path) == tmp_path / f"checkpoint-{last}"
    assert probe.steps == list(range(last + 1))
    assert [line["step"] for line in history if "loss" in line][-1] == last


def test_they_change_nothing_of_training(make: Make, tmp_path: Path) -> None:
    states, losses = [], []
    for name, probes in (("without", None), ("with", {"every": 1, "best_by": "masked_lm"})):
        trainer = make(tmp_path / name, probes, **AUTOENCODING)
        history = trainer.fit()
        assert len(evaluations(history, TOPIC)) == (9 if probes else 0)
        losses.append(
            [
                {key: value for key, value in line.items() if not key.startswith(f"{TOPIC}/")}
                for line in history
                if "loss" in line
            ]
        )
        states.append(trainer.task.state_dict())
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_interrupted_and_resumed_is_uninterrupted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = {"every": 1, "best_by": "bottleneck"}
    whole = make(tmp_path / "whole", probes, **AUTOENCODING)
    expected = whole.fit()
    assert {"probe/masked_lm", "probe/bottleneck/shuffled", "probe/retrieval"} <= set(expected[0])
    # Checkpoints are at 2, 4, 6 and 8, evaluations between them too: what is lost is done again.
    for step in (1, 3, 4):
        killed_at(step, make(tmp_path / "torn", probes, **AUTOENCODING), monkeypatch)
    resumed = make(tmp_path / "torn", probes, **AUTOENCODING)
    history = resumed.fit()
    assert numbers(history) == numbers(expected)
    steps = [best_evaluation(tmp_path / name, TOPIC)["step"] for name in ("torn", "whole")]
    assert steps[0] == steps[1]
    for file in ("model.safetensors", "pretraining.safetensors"):
        one, two = (load_file(tmp_path / name / BEST / file) for name in ("whole", "torn"))
        assert all(torch.equal(one[name], two[name]) for name in one)
    left, right = whole.task.state_dict(), resumed.task.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def finished(
    settings: Callable[..., PretrainSettings], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A whole run whose masked-LM probe is best at step 2, and stops it at step 6."""
    output = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        script_masked_lm(patch, [3.0, 2.0, 2.5, math.nan, 1.0])
        run(
            settings(
                output,
                **AUTOENCODING,
                probes={"every": 2, "best_by": "masked_lm", "patience": 2},
                training={"report_to": ["tensorboard"]},
            )
        )
    return output


def script_masked_lm(patch: pytest.MonkeyPatch, values: list[float]) -> None:
    left = iter(values)
    patch.setattr(MaskedLm, "__call__", lambda *_: {"": next(left)})


def test_final_is_the_best_model(finished: Path) -> None:
    snapshot = json.loads((finished / "isthmus.json").read_text(encoding="utf-8"))
    assert snapshot["complete"]
    results = snapshot["results"]
    assert results["best_step"] == 2
    assert results["held_out"] == 21
    assert results["documents"] == DOCUMENTS
    assert [line[STOPPED_EARLY] for line in results["log"] if STOPPED_EARLY in line] == [6]
    for file in ("model.safetensors", "pretraining.safetensors"):
        final = load_file(finished / "final" / file)
        best = load_file(finished / BEST / file)
        then = load_file(finished / "checkpoint-2" / file)
        last = load_file(finished / "checkpoint-6" / file)
        assert final.keys() == best.keys()
        assert all(torch.equal(final[name], best[name]) for name in final)
        assert all(torch.equal(final[name], then[name]) for name in final)
        assert not all(torch.equal(final[name], last[name]) for name in final)


@no_plots
def test_without_best_by_the_last_model_is_final(
    settings: Callable[..., PretrainSettings], tmp_path: Path
) -> None:
    run(settings(tmp_path / "run", probes={"every": 4}))
    final = load_file(tmp_path / "run" / "final" / "model.safetensors")
    last = load_file(tmp_path / "run" / f"checkpoint-{STEPS}" / "model.safetensors")
    assert all(torch.equal(final[name], last[name]) for name in final)
    assert not (tmp_path / "run" / BEST).exists()
    results = json.loads((tmp_path / "run" / "isthmus.json").read_text())["results"]
    assert "best_step" not in results


def test_the_table(finished: Path) -> None:
    log = json.loads((finished / "isthmus.json").read_text(encoding="utf-8"))["results"]["log"]
    header, *rows = (
        line.split("\t")
        for line in (finished / "probes.tsv").read_text(encoding="utf-8").splitlines()
    )
    assert header[0] == "step"
    assert set(header[1:]) == {
        "masked_lm", "bag_of_words", "coverage", "coverage/constant", "coverage/ceiling",
        "bottleneck", "bottleneck/true", "bottleneck/shuffled", "retrieval",
    }  # fmt: skip
    assert [row[0] for row in rows] == ["0", "2", "4", "6"]
    for row, line in zip(rows, evaluations(log, TOPIC), strict=True):
        for name, value in zip(header[1:], row[1:], strict=True):
            assert float(value) == pytest.approx(line[f"{TOPIC}/{name}"], nan_ok=True)
    masked = [row[header.index("masked_lm")] for row in rows]
    assert masked == ["3.0", "2.0", "2.5", "nan"]


@pytest.mark.parametrize(
    ("probes", "what", "where", "allowed"),
    [
        (
            {"measure": ["masked_ml"]},
            "no probe named 'masked_ml'", "probes.measure.masked_ml", "masked_lm",
        ),
        (
            {"measure": {"coverage": {"kk": 4}}},
            "unknown key 'probes.measure.coverage.kk'", "probes.measure.coverage", "k",
        ),
        (
            {"best_by": "bottleneck"},
            "probes.best_by = 'bottleneck' is not measured", "probes.best_by", "bag_of_words",
        ),
        ({"patience": 2}, "probes.patience is set", "probes.best_by", "bag_of_words"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_before_anything_loads(
    settings: Callable[..., PretrainSettings],
    tmp_path: Path,
    probes: dict[str, Any],
    what: str,
    where: str,
    allowed: str,
) -> None:
    chosen = settings(tmp_path / "run", probes=probes, documents="/nowhere.jsonl", model="/nowhere")
    with pytest.raises(SettingsError) as caught:
        run(chosen)
    error = caught.value
    assert what in error.what
    assert where in error.what
    assert error.expected.startswith(allowed)
    assert error.fix
    assert not (tmp_path / "run").exists()


@no_plots
def test_a_corpus_too_small_to_hold_some_out_trains_without(
    settings: Callable[..., PretrainSettings],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:399]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(settings(tmp_path / "run", documents=str(tmp_path / "small.jsonl")))
    told = capsys.readouterr().err
    assert "no probes: they need 20 held-out documents" in told
    assert "a twentieth of 400; there are 399" in told
    results = json.loads((tmp_path / "run" / "isthmus.json").read_text())["results"]
    assert (results["documents"], results["held_out"]) == (399, 0)
    assert not (tmp_path / "run" / "probes.tsv").exists()
