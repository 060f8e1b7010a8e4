"""The loss of an optimiser step is the mean over its items, however the step is split."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.factories import tokenised

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.settings import TrainingSettings
from isthmus.training.task import Batch
from isthmus.training.trainer import Trainer

# One letter, a line, nothing the tokenizer knows, thirty words: lengths, labels and bags that a
# mean of means would weigh wrongly.
TEXTS = [
    "a",
    "the cat sat on a mat",
    "ж",
    "a dog ran to a cat quickly " * 5,
    "cat",
    "a mat the end",
    "on on on on",
    "the dog sat on the mat the cat ran to the end",
]
LEARNING_RATE = 1e-3


@pytest.fixture
def corpus(tokenizer: Tokenizer, tmp_path: Path) -> TokenisedCorpus:
    return tokenised(TEXTS, tokenizer, tmp_path / "cache")


class KeepGradients(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        named = model.named_parameters()
        self.steps.append({n: p.grad.clone() for n, p in named if p.grad is not None})


def task_of(backbone: Backbone, tokenizer: Tokenizer, objectives: dict[str, Any]) -> PretrainTask:
    settings = PretrainSettings.parse(
        {
            "documents": "c",
            "output": "o",
            "model": "scratch:tiny",
            "corruption": {"name": "uniform", "rate": 0.3},
            "objectives": objectives,
        },
        where="test",
    )
    return PretrainTask(copy.deepcopy(backbone).float(), tokenizer, assemble(settings))


def train(
    task: PretrainTask, corpus: TokenisedCorpus, folder: Path, batch: int, passes: int
) -> tuple[list[dict[str, float]], list[dict[str, torch.Tensor]]]:
    settings = TrainingSettings(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=passes,
        max_steps=3,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        bf16=False,
        logging_steps=1,
        save_steps=100,
        report_to=[],
        seed=5,
    )
    examples = PretrainExamples(corpus, task.parts.view, task.tokenizer, 32, settings.seed)
    trainer = Trainer(task, examples, settings, folder)
    gradients = KeepGradients()
    trainer.add_callback(gradients)
    log = [entry for entry in trainer.fit() if "loss" in entry]
    return log, gradients.steps


OBJECTIVES = {"masked_lm": {"weight": 1.0}, "bag_of_words": {"weight": 0.5}}


def test_splitting_changes_neither_losses_nor_gradients_nor_weights(
    backbone: Backbone, tokenizer: Tokenizer, corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    runs = {}
    for batch, passes in [(8, 1), (4, 2), (2, 4)]:
        task = task_of(backbone, tokenizer, OBJECTIVES)
        folder = tmp_path / f"{batch}x{passes}"
        runs[batch] = (*train(task, corpus, folder, batch, passes), task.state_dict())
    whole_log, whole_gradients, whole_weights = runs[8]
    assert len(whole_log) == 3
    for batch in (4, 2):
        log, gradients, weights = runs[batch]
        for name in ("loss", "masked_lm", "bag_of_words", "bag_of_words/gap", "grad_norm"):
            found = [entry[name] for entry in log]
            expected = [entry[name] for entry in whole_log]
            assert found == pytest.approx(expected, rel=1e-4), name
        for step, expected_step in zip(gradients, whole_gradients, strict=True):
            torch.testing.assert_close(step, expected_step, rtol=1e-3, atol=2e-5)
        for name, weight in weights.items():
            # softmax does not see a key's bias: its gradient is rounding noise, which Adam scales.
            if not name.endswith("key.bias"):
                torch.testing.assert_close(
                    weight, whole_weights[name], rtol=0, atol=0.02 * LEARNING_RATE, msg=name
                )
    moved = [
        (whole_weights[name] - start).abs().max()
        for name, start in task_of(backbone, tokenizer, OBJECTIVES).state_dict().items()
    ]
    assert max(moved) > LEARNING_RATE, "training did change the weights"


def test_the_first_loss_is_the_mean_over_all_labels_and_over_all_texts_with_a_bag(
    backbone: Backbone, tokenizer: Tokenizer, corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    task = task_of(backbone, tokenizer, OBJECTIVES)
    examples = PretrainExamples(corpus, task.parts.view, tokenizer, 32, seed=5)
    # One text at a time, from the model's logits at all positions: no sum over a batch is shared.
    token_losses, bag_losses, gaps, means = [], [], [], []
    for row in range(len(TEXTS)):
        with torch.no_grad():
            batch = task.prepare(examples.collate([examples[0, row]]))
            logits = task.backbone.model(batch["encoder_ids"], batch["attention_mask"]).logits[0]
        scores = logits.double().log_softmax(-1).tolist()
        labelled = [(p, t) for p, t in enumerate(batch["labels"][0].tolist()) if t != -100]
        token_losses += [-scores[place][token] for place, token in labelled]
        if labelled:
            means.append(sum(-scores[place][token] for place, token in labelled) / len(labelled))
        tokens = set(batch["input_ids"][0].tolist()) & set(tokenizer.regular_ids.tolist())
        if tokens:
            bag_losses.append(-sum(scores[0][token] for token in tokens) / len(tokens))
            gaps.append(bag_losses[-1] - math.log(len(tokens)))
    assert len(bag_losses) == len(TEXTS) - 1
    expected = {
        "masked_lm": sum(token_losses) / len(token_losses),
        "bag_of_words": sum(bag_losses) / len(bag_losses),
        "bag_of_words/gap": sum(gaps) / len(gaps),
    }
    mean_of_means = sum(means) / len(means)
    assert abs(mean_of_means / expected["masked_lm"] - 1) > 0.01, "the texts tell both apart"
    log, _ = train(task, corpus, tmp_path / "run", batch=2, passes=4)
    assert {name: log[0][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    total = expected["masked_lm"] + 0.5 * expected["bag_of_words"]
    assert log[0]["loss"] == pytest.approx(total, rel=1e-4)


def test_a_weight_decays_by_cosine_counted_in_optimiser_steps(
    backbone: Backbone, tokenizer: Tokenizer, corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    objectives = {"masked_lm": {}, "bag_of_words": {"weight": 2.0, "decay_to": 0.1}}
    task = task_of(backbone, tokenizer, objectives)
    for progress, share in [(0.0, 1.0), (0.5, 0.55), (1.0, 0.1), (1.5, 0.1)]:
        weights = task.weights(progress)
        assert weights["bag_of_words"] == pytest.approx(2.0 * share)
        assert weights["masked_lm"] == 1.0
    quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    assert task.weights(0.25)["bag_of_words"] == pytest.approx(2.0 * quarter)
    log, _ = train(task, corpus, tmp_path / "run", batch=4, passes=2)
    for step, entry in enumerate(log):
        weight = 2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 2)) / 2)
        total = entry["masked_lm"] + weight * entry["bag_of_words"]
        assert entry["loss"] == pytest.approx(total, rel=1e-4)


def test_masks_are_fresh_every_epoch(
    backbone: Backbone, tokenizer: Tokenizer, corpus: TokenisedCorpus, tmp_path: Path
) -> None:
    task = task_of(backbone, tokenizer, OBJECTIVES)
    seen: list[Batch] = []
    prepare = task.prepare

    def keep(batch: Batch) -> Batch:
        seen.append(prepare(batch))
        return seen[-1]

    task.prepare = keep  # type: ignore[method-assign]
    train(task, corpus, tmp_path / "run", batch=8, passes=1)
    labels = [
        {tuple(row.tolist()) for row in batch["labels"] if (row != -100).sum() > 1}
        for batch in seen
    ]
    assert len(labels) == 3
    assert labels[0] != labels[1] != labels[2] != labels[0]
