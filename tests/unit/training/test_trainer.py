"""Checkpoints: whole, without pickle of ours, rotated; the log names every loss."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import tokenised
from torch import Tensor
from torch._dynamo.utils import counters

from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.nn.kernels import available
from isthmus.nn.kernels.bert_layer import Rates
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.checkpoints import kept, last_checkpoint, seal
from isthmus.training.evaluation import EvaluationCallback
from isthmus.training.graphs import Graphs
from isthmus.training.task import Batch
from isthmus.training.trainer import Trainer, compile_layers

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 70)
BACKBONE = new_backbone("tiny", len(TOKENIZER), 0)


TEXTS = ["the lazy fox jumps " * (1 + n % 5) for n in range(12)]


@pytest.fixture
def corpus(tmp_path: Path) -> TokenisedCorpus:
    return tokenised(TEXTS, TOKENIZER, tmp_path / "cache")


def trainer(corpus: TokenisedCorpus, output: Path, **training: Any) -> Trainer:
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny", "corruption": "uniform",
        "objectives": {"masked_lm": 1.0, "bag_of_words": 1.0},
        "training": {
            "per_device_train_batch_size": 4, "max_steps": 4, "save_steps": 1, "bf16": False,
            "logging_steps": 2, "report_to": [], "learning_rate": 1e-3, "warmup_ratio": 0.0,
            "graphs": False, **training,
        },
    }  # fmt: skip
    settings = PretrainSettings.parse(values, where="test")
    backbone = copy.deepcopy(BACKBONE)
    for module in backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert backbone.own_layers is not None
    backbone.own_layers = backbone.own_layers._replace(rates=Rates())
    task = PretrainTask(backbone, TOKENIZER, assemble(settings))
    examples = PretrainExamples(corpus, task.parts.view, TOKENIZER, 32, settings.training.seed)
    return Trainer(task, examples, settings.training, output)


def test_checkpoints_hold_everything_and_no_arguments(
    corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    log = trainer(corpus, output, save_total_limit=2).fit()
    folders = sorted(folder.name for folder in output.glob("checkpoint-*"))
    assert folders == ["checkpoint-3", "checkpoint-4"]
    files = {file.name for file in (output / "checkpoint-4").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "optimizer.pt", "scheduler.pt",
            "trainer_state.json", "complete.json"} <= files  # fmt: skip
    assert not list(output.rglob("training_args.bin"))
    assert not list(output.rglob("*.bin"))
    again = Backbone.load(str(output / "checkpoint-4"))
    assert again.has_head
    entries = [entry for entry in log if "loss" in entry]
    assert len(entries) == 2, "every two steps"
    for entry in entries:
        assert {"masked_lm", "bag_of_words", "bag_of_words/gap"} <= set(entry)
        total = entry["masked_lm"] + entry["bag_of_words"]
        assert entry["loss"] == pytest.approx(total, rel=1e-3)


def test_only_whole_checkpoints_are_resumed_and_torn_ones_go(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for step in (9, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    for step in (9, 10):
        seal(tmp_path / f"checkpoint-{step}", {})
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert not (tmp_path / "checkpoint-11").exists()
    assert (tmp_path / "checkpoint-best").exists(), "not ours"


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three of its four checkpoints."""
    home = tmp_path_factory.mktemp("half")
    trainer(tokenised(TEXTS, TOKENIZER, home / "cache"), home / "run", save_total_limit=None).fit()
    shutil.rmtree(home / "run" / "checkpoint-4")
    return home / "run"


FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "model.safetensors")


@pytest.mark.parametrize("file", [*FILES, "complete.json"])
def test_a_damaged_checkpoint_is_passed_over(
    half: Path, corpus: TokenisedCorpus, tmp_path: Path, file: str, capsys: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(half, run)
    damaged = run / "checkpoint-3" / file
    damaged.write_bytes(damaged.read_bytes()[:-3])
    assert trainer(corpus, run, save_total_limit=None).fit()[-1]["step"] == 4
    assert f"{file}" in (told := capsys.readouterr().err.replace("\n", ""))
    assert "checkpoint-2 is whole" in told
    for step in (1, 2, 3):
        missing = run / f"checkpoint-{step}" / "optimizer.pt"
        missing.unlink()
    (run / "checkpoint-4" / "optimizer.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"checkpoint-4' is damaged: optimizer.pt") as caught:
        trainer(corpus, run).fit()
    assert str(run / "checkpoint-4") in caught.value.what
    assert "remove it" in caught.value.fix
    assert len(list(run.glob("checkpoint-*"))) == 4, "nothing is lost"


class Marking:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("file", FILES)
def test_a_checkpoint_of_others_runs_no_code(
    half: Path, corpus: TokenisedCorpus, tmp_path: Path, file: str
) -> None:
    run, mark = tmp_path / "run", tmp_path / "mark"
    shutil.copytree(half, run)
    newest = run / "checkpoint-3"
    torch.save(Marking(mark), newest / file)
    torch.save(Marking(mark), newest / "training_args.bin")
    torch.save(Marking(mark), newest / "pytorch_model.bin")
    seal(newest, kept(newest))
    with pytest.raises(InputError, match="checkpoint-3' is damaged") as caught:
        trainer(corpus, run).fit()
    assert str(newest) in caught.value.what
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"last_logged": "two"}, {"sums": [1]}, {"sums": {"a": None}}, {"files": {"../a": "b"}},
        {"files": 3}, {"files": None},
    ],
)  # fmt: skip
def test_what_the_trainer_kept_is_checked(
    half: Path, corpus: TokenisedCorpus, tmp_path: Path, change: dict[str, Any]
) -> None:
    newest = tmp_path / "run" / "checkpoint-3"
    shutil.copytree(half / "checkpoint-3", newest)
    file = newest / "complete.json"
    file.write_text(json.dumps(sealed({**kept(newest), **change})))
    with pytest.raises(InputError, match="checkpoint-3' is damaged"):
        trainer(corpus, newest.parent).fit()


CURVE_TOLERANCE = 1e-4  # relative, over so many steps in float32 without dropout
ROUNDED_TOLERANCE = 2e-2  # the same where states are rounded to bf16 in other places
CURVE_STEPS = 24
Curve = list[dict[str, float]]


def curve(run: Trainer) -> Curve:
    """What training logs at each step."""
    return [entry for entry in run.fit() if "loss" in entry]


def check_same_curves(
    made: Callable[..., Trainer],
    setting: str,
    trained: Callable[[Trainer, bool], Curve],
    names: Sequence[str] = ("masked_lm", "bag_of_words", "grad_norm"),
    tolerance: float = CURVE_TOLERANCE,
) -> None:
    """With and without a setting, `trained` sees the same losses, and something is learnt."""
    length = {"max_steps": CURVE_STEPS, "logging_steps": 1, "save_steps": 100}
    curves = [trained(made(str(way), **length, **{setting: way}), way) for way in (True, False)]
    assert len(curves[0]) == CURVE_STEPS
    for name in names:
        ours, theirs = ([entry[name] for entry in each] for each in curves)
        assert ours == pytest.approx(theirs, rel=tolerance), name
    assert curves[0][-1]["loss"] < 0.7 * curves[0][0]["loss"], "something was learnt"


@pytest.fixture
def made(corpus: TokenisedCorpus, tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer by the name of its folder."""
    return lambda name, **training: trainer(corpus, tmp_path / name, **training)


@pytest.fixture
def no_dropout_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not a module's, it is that of the configuration."""
    monkeypatch.setattr(BACKBONE.config, "attention_probs_dropout_prob", 0.0)


def backbone_of(run: Trainer) -> Backbone:
    assert isinstance(run.task, PretrainTask)
    return run.task.backbone


def calls_of_their_layers(run: Trainer) -> list[int]:
    """Grows with every call of the encoder of transformers."""
    calls: list[int] = []
    encoder = backbone_of(run).encoder
    forward = encoder.forward

    def noted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return forward(*given, **named)

    encoder.forward = noted  # not a hook, for which own layers step aside
    return calls


@pytest.mark.usefixtures("no_dropout_of_attention")
def test_the_curve_of_a_packed_run_is_that_of_a_padded_one(made: Callable[..., Trainer]) -> None:
    def trained(run: Trainer, packing: bool) -> Curve:
        backbone = backbone_of(run)
        assert backbone.use_packing is packing
        rows: list[int] = []
        backbone.encoder.embeddings.register_forward_hook(
            lambda _, given, got: rows.append(len(got))
        )
        found = curve(run)
        # Some batches have enough padding to be packed.
        assert 1 in rows if packing else set(rows) == {4}
        return found

    check_same_curves(made, "packing", trained)


@pytest.mark.nightly
def test_the_curve_of_a_compiled_run_is_that_of_an_uncompiled_one(
    made: Callable[..., Trainer],
) -> None:
    def trained(run: Trainer, compiled: bool) -> Curve:
        assert run.compiled is compiled
        before = counters["stats"]["unique_graphs"]
        found = curve(run)
        assert (counters["stats"]["unique_graphs"] > before) is compiled
        return found

    check_same_curves(partial(made, packing=False), "torch_compile", trained)


@pytest.mark.usefixtures("no_dropout_of_attention")
def test_the_curve_of_own_layers_is_that_of_the_layers_of_transformers(
    made: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they are kernels; here, what says the same in plain torch."""
    monkeypatch.setattr("isthmus.nn.backbone.has_kernels", lambda states: available.KERNELS)

    def trained(run: Trainer, kernels: bool) -> Curve:
        theirs = calls_of_their_layers(run)
        found = curve(run)
        # A CPU leaves batches with little padding to them.
        assert len(theirs) < CURVE_STEPS if kernels else len(theirs) == CURVE_STEPS
        return found

    check_same_curves(made, "kernels", trained)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.usefixtures("no_dropout_of_attention")
def test_the_curve_of_kernels_is_that_of_plain_layers(made: Callable[..., Trainer]) -> None:
    """What the test above says of plain torch, of the kernels themselves: states are in bf16."""

    def trained(run: Trainer, kernels: bool) -> Curve:
        theirs = calls_of_their_layers(run)
        found = curve(run)
        assert len(theirs) == (0 if kernels else CURVE_STEPS)
        return found

    rounded = partial(made, bf16=True, torch_compile=False)
    names = ("masked_lm", "bag_of_words")
    check_same_curves(rounded, "kernels", trained, names, ROUNDED_TOLERANCE)


def test_the_curve_of_steady_batches_is_that_of_the_same_batches_as_they_are(
    corpus: TokenisedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What graphs are captured of: places of padding beside the tokens, texts of all lengths."""
    monkeypatch.setattr("isthmus.nn.packing.LEAST_PADDING", {"cpu": 0.0})
    monkeypatch.setattr("isthmus.nn.packing.GRANULES", 4)
    curves, fillers = {}, []
    for fill in (True, False):
        run = trainer(corpus, tmp_path / str(fill), max_steps=24, logging_steps=1, save_steps=100)
        run.examples.steady = True  # the same order for both
        if not fill:
            monkeypatch.setattr("isthmus.nn.packing.steady_number", lambda tokens, _: tokens)
        forward = run.task.forward

        def counted(batch: Any, forward: Any = forward) -> Any:
            fillers.append(len(batch["tokens"]) - int(batch["attention_mask"].sum()))
            return forward(batch)

        monkeypatch.setattr(run.task, "forward", counted)
        curves[fill] = [entry for entry in run.fit() if "loss" in entry]
    assert max(fillers[:24]) > 0 == max(fillers[24:])
    for name in ("masked_lm", "bag_of_words", "grad_norm"):
        filled, other = ([entry[name] for entry in curves[way]] for way in (True, False))
        assert filled == pytest.approx(other, rel=CURVE_TOLERANCE), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_curve_of_graphs_is_that_of_kernels_one_by_one(
    made: Callable[..., Trainer], dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, but for attention's gradient: what is dropped is the same too."""

    def trained(run: Trainer, graphs: bool) -> Curve:
        assert isinstance(run.task, PretrainTask)
        own = run.task.backbone.own_layers
        run.task.backbone.own_layers = own and own._replace(rates=Rates(0.0, dropout, dropout))
        run.examples.steady = True  # the same order for both
        # A weight that changes from step to step.
        monkeypatch.setattr(
            run.task, "weights", lambda done: {"masked_lm": 1.0, "bag_of_words": 1.0 - done / 2}
        )
        found = curve(run)
        assert (run.graphs is not None) is graphs
        assert run.graphs is None or 0 < len(run.graphs.captured) < 6
        return found

    check_same_curves(partial(made, bf16=True, torch_compile=False), "graphs", trained)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_pass_that_waits_for_the_gpu_is_not_captured(capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))

    def run(batch: Batch) -> dict[str, Tensor]:
        loss = (torch.nn.functional.dropout(batch["states"] * weight)).sum()
        loss.backward()
        assert loss.item() is not None
        return {"loss": loss.detach()}

    graphs, stream = Graphs(run, [weight]), torch.cuda.current_stream()
    for _ in range(4):
        weight.grad = None
        graphs({"states": torch.ones(4, device="cuda")})
        assert weight.grad is not None
    assert not graphs.captured
    assert "not captured" in capsys.readouterr().err
    assert torch.cuda.current_stream() == stream
    torch.rand(3, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_what_a_launched_pass_keeps_is_not_written_over_by_graphs() -> None:
    weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
    tables: dict[int, Tensor] = {}

    def run(batch: Batch) -> dict[str, Tensor]:
        states = batch["states"]
        if len(states) not in tables:
            tables[len(states)] = torch.full((len(states), 1024), 2.0, device="cuda")
        for _ in range(4):
            states = (states * weight).tanh() + tables[len(batch["states"])]
        loss = states.mean()
        loss.backward()
        return {"loss": loss.detach()}

    graphs = Graphs(run, [weight])
    captured = []
    for rows in [4000, 4000, 4000, 3000, 4000, 4000, 3000, 4000, 3000]:
        graphs({"states": torch.ones(rows, 1024, device="cuda")})
        weight.grad = None
        captured.append(len(graphs.captured))
        for table in tables.values():
            assert table.eq(2).all()
    assert captured == [0, 0, 1, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("steady", [True, False])
def test_a_resumed_run_goes_on_in_the_order_it_began_with(
    made: Callable[..., Trainer], steady: bool
) -> None:
    """On a machine where another one would be chosen."""
    first = made("run")
    first.examples.steady = steady
    first.fit()
    shutil.rmtree(Path(first.args.output_dir) / "checkpoint-4")
    again = made("run")
    again.examples.steady = not steady
    again.fit()
    assert again.examples.steady is steady


def test_batches_that_others_prepare_are_the_same(corpus: TokenisedCorpus, tmp_path: Path) -> None:
    curves = []
    for workers in (0, 2):
        run = trainer(
            corpus, tmp_path / str(workers), dataloader_num_workers=workers, max_steps=12,
            logging_steps=1, save_steps=100,
        )  # fmt: skip
        assert run.args.dataloader_num_workers == workers
        curves.append([entry["masked_lm"] for entry in run.fit() if "loss" in entry])
    assert len(set(curves[0])) == 12, "epochs differ"
    assert curves[0] == curves[1]


@pytest.mark.nightly
def test_an_evaluation_compiles_nothing(
    corpus: TokenisedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "isthmus.training.trainer.compile_layers", partial(compile_layers, backend="aot_eager")
    )
    run = trainer(corpus, tmp_path / "run", torch_compile=True, max_steps=2)
    ids = torch.arange(5, 15, device=run.args.device)[None]

    def graphs() -> int:
        return int(counters["stats"]["unique_graphs"])

    def measure() -> dict[str, float]:
        before = graphs()
        assert isinstance(run.task, PretrainTask)
        run.task.backbone(ids, torch.ones_like(ids))
        return {"compiled": graphs() - before}

    run.add_callback(EvaluationCallback(run, "evaluation", measure, 1))
    before = graphs()
    compiled = [line["evaluation/compiled"] for line in run.fit() if "evaluation/compiled" in line]
    assert compiled == [0, 0, 0]
    assert graphs() > before, "but training does"


def test_interrupted_and_resumed_is_uninterrupted_to_the_bit(
    corpus: TokenisedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_dropout(name: str) -> Trainer:
        made = trainer(corpus, tmp_path / name, logging_steps=1)
        for module in made.task.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        return made

    whole = with_dropout("whole")
    expected = curve(whole)
    torn = with_dropout("torn")  # only now: a trainer seeds torch when it is made
    compute = torn.compute_loss

    def interrupted(*given: Any, **options: Any) -> Any:
        if torn.state.global_step == 2:
            raise KeyError
        return compute(*given, **options)

    monkeypatch.setattr(torn, "compute_loss", interrupted)
    with pytest.raises(KeyError):
        torn.fit()
    resumed = with_dropout("torn")
    found = curve(resumed)
    for name in ("loss", "masked_lm", "bag_of_words", "grad_norm", "learning_rate"):
        assert [entry[name] for entry in found] == [entry[name] for entry in expected], name
    states = (dict(run.task.state_dict()) for run in (resumed, whole))
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_gradient_checkpointing_saves_memory_not_gradients(
    corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    plain = trainer(corpus, tmp_path / "plain", max_steps=2)
    saving = trainer(corpus, tmp_path / "saving", max_steps=2, gradient_checkpointing=True)
    for run, expected in ((plain, False), (saving, True)):
        assert isinstance(run.task, PretrainTask)
        assert run.task.backbone.model.is_gradient_checkpointing is expected
    first, second = plain.fit()[0], saving.fit()[0]
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
    assert second["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-4)


def test_the_schedule_warms_up_and_ends_where_it_should(
    corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    settings = {
        "max_steps": 8, "warmup_ratio": 0.25, "lr_scheduler_type": "cosine_with_min_lr",
        "min_lr_rate": 0.1, "logging_steps": 1, "save_steps": 100,
    }  # fmt: skip
    run = trainer(corpus, tmp_path / "run", **settings)
    rates = [entry["learning_rate"] for entry in run.fit() if "loss" in entry]
    assert rates[0] < 1e-3
    assert max(rates) == pytest.approx(1e-3)
    assert rates.index(max(rates)) == 2
    assert run.lr_scheduler.get_last_lr()[0] == pytest.approx(1e-4)
