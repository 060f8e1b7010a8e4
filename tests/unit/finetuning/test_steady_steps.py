"""Fine-tuning in steady batches, and as CUDA graphs: the same curves as without."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tokenised

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import Encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.finetuning.losses import losses
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, TaughtScores
from isthmus.finetuning.regularizers import ControlWeights, regularizers
from isthmus.finetuning.tasks import BiEncoderTask, SparseTask
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.nn.kernels.bert_layer import Rates
from isthmus.records import Query
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.settings import TrainingSettings
from isthmus.training.trainer import Trainer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "and", "runs"]
TOKENIZER = new_tokenizer([" ".join(WORDS)] * 2, 90)
BACKBONE = new_backbone("tiny", len(TOKENIZER), 0)
LENGTHS = {"query_max_length": 8, "document_max_length": 24}
KINDS: dict[str, DenseSettings | SparseSettings] = {
    "cls": DenseSettings(pooling="cls", **LENGTHS),
    "mean": DenseSettings(pooling="mean", similarity="cosine", **LENGTHS),
    "splade": SparseSettings(**LENGTHS),
    "lexmae": SparseSettings(form="lexmae", **LENGTHS),
    "query terms": SparseSettings(query="terms", **LENGTHS),
}
WHOLE = Rates()
STEPS = 12
QUERIES, BATCH = 24, 8


@pytest.fixture
def corpus(tmp_path: Path) -> TokenisedCorpus:
    draw = np.random.default_rng(3)
    texts = [" ".join(draw.choice(WORDS, size=1 + 5 * n % 17)) for n in range(60)]
    return tokenised(texts, TOKENIZER, tmp_path / "cache")


def trainer(
    corpus: TokenisedCorpus, output: Path, kind: str, rates: Rates = WHOLE, **training: Any
) -> Trainer:
    settings, backbone = KINDS[kind], copy.deepcopy(BACKBONE)
    for module in backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert backbone.own_layers is not None
    backbone.own_layers = backbone.own_layers._replace(rates=rates)
    encoder: Encoder
    if isinstance(settings, DenseSettings):
        encoder = DenseEncoder(backbone, TOKENIZER, settings)
    else:
        encoder = SparseEncoder(backbone, TOKENIZER, settings)
    draw = np.random.default_rng(5)
    queries = [Query(str(n), " ".join(draw.choice(WORDS, size=1 + n % 4))) for n in range(QUERIES)]
    labelled = LabelledQueries(queries, [[n] for n in range(QUERIES)])
    negatives = draw.integers(QUERIES, len(corpus), (QUERIES, 4)).astype(np.int32)
    chosen_losses = {"contrastive": {}, "kl": {"weight": 0.5}}
    learnt = losses(chosen_losses, {"scores", "targets", "group", "teacher"})
    taught = TaughtScores(*(draw.normal(size=(QUERIES, number)) for number in (1, 4)))
    task = BiEncoderTask(encoder, 3, 1.0, learnt)
    if encoder.uses_head:
        chosen = {"flops": {"documents": 1e-3, "target": {"documents": 20}, "ramp": 0.2}}
        task = SparseTask(encoder, 3, 1.0, learnt, regularizers(chosen))
    examples = PairExamples(
        labelled, negatives, 3, corpus, TOKENIZER, settings, taught, alike=encoder.alike
    )
    values = {
        "per_device_train_batch_size": BATCH, "max_steps": STEPS, "save_steps": 100,
        "logging_steps": 1, "report_to": [], "learning_rate": 2e-3, "warmup_ratio": 0.0, **training,
    }  # fmt: skip
    made = Trainer(task, examples, TrainingSettings.parse(values, where="test"), output)
    if isinstance(task, SparseTask):
        made.add_callback(ControlWeights(task, lambda: {"documents": torch.tensor(1.5)}))
    made.examples.steady = True  # the same order, whatever is captured
    return made


def curve(run: Trainer) -> dict[str, list[float]]:
    """What training logs at each step, by name."""
    log = [entry for entry in run.fit() if "loss" in entry]
    assert len(log) == STEPS
    named = set(log[0]) - {"epoch", "step", "learning_rate"}
    return {name: [entry[name] for entry in log] for name in named}


@pytest.mark.parametrize("kind", KINDS)
def test_places_of_padding_change_nothing(
    kind: str, corpus: TokenisedCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.nn.packing.LEAST_PADDING", {"cpu": 0.0})
    monkeypatch.setattr("isthmus.nn.packing.GRANULES", 4)
    monkeypatch.setattr("isthmus.training.parallel.WHOLE", ("cpu", "cuda"))
    monkeypatch.setattr(Backbone, "leaves_padding_out", True)
    found, fillers = [], []
    given: list[Any] = []
    for fill in (True, False):
        run = trainer(corpus, tmp_path / str(fill), kind, bf16=False, graphs=False)
        if not fill:
            monkeypatch.setattr("isthmus.nn.packing.steady_number", lambda tokens, _: tokens)
        task = run.task
        assert isinstance(task, BiEncoderTask)
        forward, represent = task.forward, task.encoder.represent_documents

        def remembered(ids: Any, mask: Any, tokens: Any = None, represent: Any = represent) -> Any:
            given.append(tokens)
            return represent(ids, mask, tokens)

        monkeypatch.setattr(task.encoder, "represent_documents", remembered)

        def counted(batch: Any, forward: Any = forward, kind: str = kind) -> Any:
            read = batch["passage_mask"].sum()
            read = read if kind == "query terms" else read + batch["query_mask"].sum()
            fillers.append(len(batch["tokens"]) - int(read))
            given.clear()
            found = forward(batch)
            assert given == [batch["tokens"]], "what the batch knows is what is read"
            return found

        monkeypatch.setattr(task, "forward", counted)
        found.append(curve(run))
    assert max(fillers[:STEPS]) > 0 == max(fillers[STEPS:])
    filled, other = found
    assert filled.keys() == other.keys()
    for name, values in filled.items():
        assert values == pytest.approx(other[name], rel=1e-3), name
    assert filled["contrastive"][-1] < 0.95 * filled["contrastive"][0], "something was learnt"


def test_a_step_of_several_passes_is_not_captured() -> None:
    encoder = DenseEncoder(copy.deepcopy(BACKBONE), TOKENIZER, DenseSettings())
    for mini_batch_size in (None, 2):
        task = BiEncoderTask(encoder, 3, 1.0, [], mini_batch_size=mini_batch_size)
        assert task.capturable is (mini_batch_size is None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("rates", [WHOLE, Rates(0.0, 0.1, 0.1)], ids=["whole", "dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_of_graphs_is_that_of_kernels_one_by_one(
    kind: str, rates: Rates, corpus: TokenisedCorpus, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("isthmus.nn.packing.GRANULES", 4)  # two or three shapes: most are replayed
    found = []
    for graphs in (True, False):
        run = trainer(corpus, tmp_path / str(graphs), kind, rates, bf16=True, graphs=graphs)
        assert (run.graphs is not None) is graphs
        found.append(curve(run))
        assert run.graphs is None or 0 < len(run.graphs.captured) < STEPS / 2
    one, other = found
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values == pytest.approx(other[name], rel=1e-3), name
