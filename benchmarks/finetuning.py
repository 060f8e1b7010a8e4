"""Fine-tuning here against sentence-transformers' own trainer: examples per second and memory.

Both train the same model on the same texts, batches, negatives, lengths, precision and loss
(in-batch and given negatives, cosine), each in a process of its own, in turns.

    python benchmarks/finetuning.py [--model NAME] [--collection SPEC] [--batch 16] [--negatives 7]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from isthmus.config.models import MINILM, model_folder
from isthmus.nn.numerics import native_bf16

_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_TEMPERATURE = 0.05
_SIDES = ("isthmus", "sentence-transformers")


def main() -> None:
    """Prints both sides' speed and peak memory, and isthmus : sentence-transformers as ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=MINILM, help="any encoder that both sides load")
    parser.add_argument("--collection", default=str(_DATA / "collections" / "insuranceqa"))
    parser.add_argument("--batch", type=int, default=16, help="queries per step")
    parser.add_argument("--negatives", type=int, default=7, help="per query")
    parser.add_argument("--length", type=int, default=144, help="tokens of a text at most")
    parser.add_argument("--steps", type=int, default=8, help="timed, after a few that warm up")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    parser.add_argument("--mini-batch-size", type=int, help="isthmus alone: gradient caching")
    parser.add_argument("--side", choices=_SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--groups", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(_measure(options)))
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    precision = "bf16" if native_bf16() else "float32"
    print(
        f"{options.model}, {options.collection}, {options.batch} queries with {options.negatives} "
        f"negatives each, {options.length} tokens, {precision}, {device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers "
        f"{transformers.__version__}"
    )
    seen: dict[str, list[dict[str, float]]] = {side: [] for side in _SIDES}
    with tempfile.TemporaryDirectory() as folder:
        groups = Path(folder) / "groups.json"
        groups.write_text(json.dumps(_groups(options)), encoding="utf-8")
        for _ in range(options.rounds):
            for side in _SIDES:
                measured = _in_its_own_process(side, groups)
                seen[side].append(measured)
                told = ", ".join(f"{name} {value:.1f}" for name, value in measured.items())
                print(f"{side}: {told}", file=sys.stderr, flush=True)
    ours, theirs = (
        {name: statistics.median(one[name] for one in seen[side]) for name in seen[side][0]}
        for side in _SIDES
    )
    for name, unit in (
        ("speed", "examples/s"),
        ("work", "examples per second of processor time"),
        ("memory", "MB at most"),
        ("held", "MB taken by torch, or by the process"),
    ):
        ratios = sorted(a[name] / b[name] for a, b in zip(*seen.values(), strict=True))
        print(
            f"{name:>6}: isthmus {ours[name]:8.1f}  sentence-transformers {theirs[name]:8.1f} "
            f"{unit}, isthmus : sentence-transformers = {ours[name] / theirs[name]:.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def _groups(options: argparse.Namespace) -> list[list[str]]:
    """A query, a relevant text and other texts each; speed does not ask how hard they are."""
    from isthmus.collections import Problems, open_collection

    collection = open_collection(options.collection, Problems("skip"))
    texts = {document.id: document.contents() for document in collection.documents()}
    queries = {query.id: query.text for query in collection.queries()}
    ids, generator = list(texts), random.Random(0)
    judged = list(collection.judgements("train").items())
    groups = []
    for query, documents in generator.sample(judged, len(judged)):
        relevant = [document for document in documents if document in texts]
        if relevant and query in queries:
            others = (texts[generator.choice(ids)] for _ in range(options.negatives))
            groups.append([queries[query], texts[relevant[0]], *others])
    return groups[: options.batch * (_warm_up(options.steps) + options.steps)]


def _warm_up(steps: int) -> int:
    """As many steps as kernels need and, on a GPU, as have seen almost all shapes of batches."""
    return steps + 1 if torch.cuda.is_available() else 3


def _in_its_own_process(side: str, groups: Path) -> dict[str, float]:
    command = [sys.executable, *sys.argv, "--side", side, "--groups", str(groups)]
    # As the command line has it: threads that spin while they wait would slow both sides.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    answered = subprocess.run(  # noqa: S603
        command, check=False, capture_output=True, text=True, env=environment
    )
    if answered.returncode:
        sys.exit(answered.stderr)
    measured: dict[str, float] = json.loads(answered.stdout.splitlines()[-1])
    return measured


def _measure(options: argparse.Namespace) -> dict[str, float]:
    groups = json.loads(options.groups.read_text(encoding="utf-8"))
    train = _isthmus if options.side == "isthmus" else _sentence_transformers
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(_warm_up(options.steps))
        train(options, groups, Path(folder), clock)
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated()
        held = torch.cuda.max_memory_reserved()  # CUDA graphs keep theirs between steps
    else:
        memory = held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    examples = options.batch * options.steps
    return {
        "speed": examples / clock.wall,
        "work": examples / clock.processor,
        "memory": memory / 2**20,
        "held": held / 2**20,
    }


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """The time between the end of the warm-up and the last step, and the processor's share."""

    wall = processor = 0.0

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reads the time where it matters."""
        if state.global_step in (self.warm_up, state.max_steps):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            # The first time, these are not durations; the second time they are.
            self.wall = time.perf_counter() - self.wall
            self.processor = time.process_time() - self.processor


def _isthmus(
    options: argparse.Namespace, groups: list[list[str]], folder: Path, clock: Clock
) -> None:
    import numpy as np

    from isthmus.encoders.dense import DenseEncoder, DenseSettings
    from isthmus.finetuning.losses import losses
    from isthmus.finetuning.pairs import LabelledQueries, PairExamples
    from isthmus.finetuning.tasks import BiEncoderTask
    from isthmus.nn.backbone import Backbone
    from isthmus.records import Document, Query
    from isthmus.text.corpus import tokenise
    from isthmus.text.tokenizer import Tokenizer
    from isthmus.training.settings import TrainingSettings
    from isthmus.training.trainer import Trainer

    name = model_folder(options.model)
    settings = DenseSettings(
        pooling="mean",
        similarity="cosine",
        query_max_length=options.length,
        document_max_length=options.length,
    )
    encoder = DenseEncoder(Backbone.load(name), Tokenizer.load(name), settings)
    texts = [text for group in groups for text in group[1:]]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    corpus = tokenise(documents, "benchmark", encoder.tokenizer.serialised, cache=folder)
    rows = np.arange(len(texts), dtype=np.int32).reshape(len(groups), -1)
    labelled = LabelledQueries(
        [Query(str(number), group[0]) for number, group in enumerate(groups)],
        [[int(row)] for row in rows[:, 0]],
    )
    group = rows.shape[1]
    examples = PairExamples(
        labelled, rows[:, 1:], group, corpus, encoder.tokenizer, settings, alike=encoder.alike
    )
    learnt_by = losses({"contrastive": {}}, {"scores", "targets"})
    task = BiEncoderTask(
        encoder, group, _TEMPERATURE, learnt_by, mini_batch_size=options.mini_batch_size
    )
    training = TrainingSettings(
        per_device_train_batch_size=options.batch,
        max_steps=_warm_up(options.steps) + options.steps,
        save_steps=1_000_000,
        report_to=[],
    )
    trainer = Trainer(task, examples, training, folder / "run")
    trainer.add_callback(clock)
    trainer.fit()


def _sentence_transformers(
    options: argparse.Namespace, groups: list[list[str]], folder: Path, clock: Clock
) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    read = Transformer(model_folder(options.model), max_seq_length=options.length)
    pooling = Pooling(read.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[read, pooling, Normalize()])
    names = ["query", "positive", *(f"negative_{n + 1}" for n in range(options.negatives))]
    columns = zip(names, zip(*groups, strict=True), strict=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch,
        max_steps=_warm_up(options.steps) + options.steps,
        bf16=native_bf16(),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({name: list(column) for name, column in columns}),
        loss=MultipleNegativesRankingLoss(model, scale=1 / _TEMPERATURE),
        callbacks=[clock],
    )
    trainer.train()


if __name__ == "__main__":
    main()
