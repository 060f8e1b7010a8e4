"""Pre-training here against the usual first loop with Hugging Face: texts per second and memory.

ours: what `isthmus pretrain` runs with a recipe (its trainer, views, masking, optimiser, dropout
and precision), one pass per step, with nothing saved. plain: `AutoModelForMaskedLM` as it comes,
padded batches in random order, logits of every position, autocast, AdamW, clipped gradients,
dropout; its batches lie masked on the device before the clock runs, which is in its favour. All
take turns on the same texts, in one run: a busy machine slows all alike.

    python benchmarks/training_speed.py [--recipe bow] [--length 144] [--batch 256] [--corpus SPEC]
    python benchmarks/training_speed.py --recipe "mlm training.kernels=false" --full --length 512

A recipe may be followed by settings. The model is a BERT with random weights, or --model.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does

import numpy as np
import torch
import transformers

from isthmus.collections import Problems, open_corpus
from isthmus.config import resolve, shipped_recipes
from isthmus.config.models import model_folder
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer
from isthmus.training.task import Batch, EpochOrder
from isthmus.training.trainer import Trainer

_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_ON_GPU = torch.cuda.is_available()
_DEVICE = torch.device("cuda" if _ON_GPU else "cpu")
_PLAIN, _REFERENCE = "plain", "mlm"
_SETTLING = 2  # steps at the beginning of every turn that are not timed: memory is allocated again
_NEVER = 10**9
_SEED = 42


def main() -> None:
    """Prints texts and tokens per second, memory, and ratios within a round."""
    options = _options()
    chip = torch.cuda.get_device_name() if _ON_GPU else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{options.model or f'BERT-{options.init}, random weights'}; {options.corpus}"
        f"{', joined to full length' if options.full else ''}; {options.batch} texts of at most "
        f"{options.length} tokens, {options.steps} steps a turn, {options.rounds} rounds; {chip}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )
    print(
        f"{'':32}{'texts/s':>10}{'slowest - fastest':>20}{'tokens/s':>11}{'GiB':>7}"
        f"{'x mlm':>8}{'x plain':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="isthmus-") as scratch:
        documents = list(_documents(options))
        model = options.model and model_folder(options.model)
        model = model or _new_model(options, documents, Path(scratch))
        corpus = tokenise(documents, "", Tokenizer.load(model).serialised, cache=Path(scratch))
        reference = Ours(_REFERENCE, options, model, corpus, Path(scratch))
        reference.warm_up(options.warm_up)
        bf16 = bool(reference.trainer.args.bf16)  # what the settings mean on this machine
        plain = Plain(model, reference.masked(), bf16)
        plain.warm_up(options.warm_up)
        # Only these two stay: every recipe is compared with what they did in the same seconds.
        fixed: dict[str, Ours | Plain] = {_PLAIN: plain, _REFERENCE: reference}
        gc.freeze()  # a trainer collects whenever it begins: all of torch would be looked through
        _show([_PLAIN, _REFERENCE], _raced(fixed, options.rounds))
        for recipe in options.recipe:
            try:
                entered = Ours(recipe, options, model, corpus, Path(scratch))
                entered.warm_up(options.warm_up)
                rounds = _raced({**fixed, recipe: entered}, options.rounds)
            except Exception as error:  # out of memory above all: the others go on
                print(f"{recipe:32}  {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            else:
                _show([recipe], rounds)
            entered = None  # type: ignore[assignment]
            gc.collect()
            if _ON_GPU:
                torch.cuda.empty_cache()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--recipe", action="append", help="repeatable; all shipped ones but simlm, if none"
    )
    parser.add_argument("--model", help="a folder, a hub name, package:NAME")
    parser.add_argument("--init", default="base" if _ON_GPU else "mini", help="or a size")
    parser.add_argument("--corpus", default=str(_DATA / "collections" / "insuranceqa"))
    parser.add_argument("--documents", type=int, default=20_000, help="of the corpus, at most")
    parser.add_argument("--full", action="store_true", help="join documents: texts of full length")
    parser.add_argument("--length", type=int, default=144, help="tokens of a text at most")
    parser.add_argument("--batch", type=int, default=256 if _ON_GPU else 8, help="texts a step")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before the first turn")
    parser.add_argument("--steps", type=int, default=8, help="timed in a turn")
    parser.add_argument("--rounds", type=int, default=5, help="medians over so many are printed")
    options = parser.parse_args()
    if options.recipe is None:
        # SimLM needs a generator to be named.
        names = (recipe.name for recipe in shipped_recipes("pretrain"))
        options.recipe = [name for name in names if name not in (_REFERENCE, "simlm")]
    return options


def _documents(options: argparse.Namespace) -> Iterator[Document]:
    """The first documents; joined, each is two texts long, for views that show two of one."""
    found = open_corpus(options.corpus, Problems("skip")).documents()
    for document in islice(found, options.documents):
        text = document.contents()
        while options.full and len(text.split()) < 2 * options.length:
            following = next(found, None)
            if following is None:
                return
            text = f"{text} {following.contents()}"
        yield Document(document.id, text)


def _new_model(options: argparse.Namespace, documents: list[Document], scratch: Path) -> str:
    """A BERT with random weights and as many terms as BERT has, also where texts have fewer."""
    tokenizer = new_tokenizer([document.text for document in documents], 30_522)
    folder = scratch / "model"
    tokenizer.save(folder)
    new_backbone(options.init, 30_522, tokenizer.pad_id, seed=_SEED).save(folder)
    return str(folder)


@dataclass(frozen=True)
class Turn:
    """What was done in one turn, in how long."""

    seconds: float
    texts: int
    tokens: int  # without padding
    peak: int  # bytes in use at most, without what others hold

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds


class Ours:
    """`isthmus pretrain` with one recipe; a turn trains on all texts once."""

    def __init__(
        self,
        recipe: str,
        options: argparse.Namespace,
        model: str,
        corpus: TokenisedCorpus,
        scratch: Path,
    ) -> None:
        self.before = _allocated()
        settings = _settings(recipe, options, model)
        parts = assemble(settings)
        tokenizer = Tokenizer.load(model)
        backbone = Backbone.load(model, "add", settings.training.dropout, _SEED)
        columns = parts.columns(corpus, tokenizer)
        batch = settings.training.per_device_train_batch_size
        # The same documents for all, in random order; repeated where there are fewer.
        order = np.random.default_rng(_SEED).permutation(np.flatnonzero(corpus.lengths >= 2))
        rows = np.resize(order, batch * options.steps)
        length = settings.max_length
        self.task = PretrainTask(backbone, tokenizer, parts, _SEED)
        self.examples = PretrainExamples(
            corpus, parts.view, tokenizer, length, _SEED, columns, rows
        )
        self.trainer = Watched(self.task, self.examples, settings.training, scratch / "training")
        self.steps = options.steps
        self.clock = Clock(self.trainer.seen)
        self.trainer.add_callback(self.clock)

    def warm_up(self, steps: int) -> None:
        """Runs steps that are not timed: compiles, and allocates what stays."""
        # A shape is captured into a CUDA graph when it is seen again.
        self._train(0, max(steps, self.steps + 1) if self.trainer.graphs else steps)
        self.own = _allocated() - self.before

    def turn(self) -> Turn:
        """Trains on all texts once; some of them, before, to settle."""
        settling = self.trainer.order.settling
        self._train(settling, settling + self.steps)
        masks = [batch["attention_mask"] for batch in self.trainer.seen]
        texts, tokens = sum(len(mask) for mask in masks), sum(int(mask.sum()) for mask in masks)
        return Turn(self.clock.seconds, texts, tokens, self.clock.peak + self.own)

    def _train(self, skipped: int, steps: int) -> None:
        self.trainer.args.max_steps = steps
        self.clock.start(skipped)
        self.trainer.train()
        self.trainer.make_room()  # others need it

    def masked(self) -> list[Batch]:
        """The texts for a loop that does not sort by length: in random order, masked."""
        size = len(self.examples) // self.steps
        batches = []
        for start in range(0, len(self.examples), size):
            rows = range(start, start + size)
            batch = self.examples.collate([self.examples[0, row] for row in rows])
            with torch.no_grad():
                sent = {name: value.to(_DEVICE) for name, value in batch.items()}
                batches.append(self.task.prepare(sent))
        return batches


def _settings(recipe: str, options: argparse.Namespace, model: str) -> PretrainSettings:
    """A recipe at the given shape, one pass per optimiser step, nothing saved."""
    name, *told = recipe.split()
    fixed = {
        "max_length": options.length,
        "probes.documents": 0,
        "training.gradient_accumulation_steps": 1,
        "training.max_steps": 1,
        "training.logging_steps": _NEVER,
        "training.save_steps": _NEVER,
        "training.torch_compile": _ON_GPU,  # as a training of usual length
        "training.report_to": [],
        "training.seed": _SEED,
    }
    flags = {"documents": "benchmark", "output": "benchmark", "model": model}

    def read(texts: int) -> PretrainSettings:
        size = f"training.per_device_train_batch_size={texts}"
        given = [size, *(f"{path}={value}" for path, value in fixed.items()), *told]
        return PretrainSettings.parse(resolve("pretrain", name, flags, given), where=recipe)

    # The same number of texts a step where a view shows two of a document.
    return read(max(1, options.batch // assemble(read(1)).view.rows))


class Watched(Trainer):
    """The product's trainer, whose batches are kept, to be counted outside of the timed steps."""

    def __init__(self, task: PretrainTask, examples: PretrainExamples, *more: Any) -> None:
        super().__init__(task, examples, *more)
        self.seen: list[Batch] = []
        batch = self._step_batch_size()
        # Where steps are captured, all of them first: then all shapes of batches have been seen.
        settling = _SETTLING if self.graphs is None else len(examples) // batch
        self.order: Settled = Settled(examples, batch, settling)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], dict[str, torch.Tensor]]:
        """The trainer's batches, kept in `seen`."""
        batches, totals = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.seen += batches
        return batches, totals


class Settled(EpochOrder):
    """An epoch, and before it some of its end once more: what is timed is the whole epoch."""

    def __init__(self, examples: PretrainExamples, batch: int, settling: int) -> None:
        super().__init__(examples, batch, _SEED)
        self.settling = settling

    def __iter__(self) -> Iterator[tuple[int, int]]:
        whole = list(super().__iter__())
        ahead = self.settling * self.batch
        return iter([*(whole * -(-ahead // len(whole)))[-ahead:], *whole])

    def __len__(self) -> int:
        return self.settling * self.batch + super().__len__()


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """Times the steps of a training after the first few; nothing is saved."""

    def __init__(self, seen: list[Batch]) -> None:
        self.seen = seen

    def start(self, skipped: int) -> None:
        """Resets the clock and the counters before a training."""
        self.skipped, self.seconds, self.began = skipped, 0.0, _now()
        self.seen.clear()
        # Here: what is captured takes its memory then, and keeps some of it.
        self.before = _reset_peak()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last step is logged, so that the trainer refuses a loss that is not finite."""
        if state.global_step == state.max_steps:
            self.seconds, self.peak = _now() - self.began, _peak(self.before)
            control.should_log = True
        elif state.global_step == self.skipped:
            self.seen.clear()
            self.began = _now()
        control.should_save = False


class Plain:
    """The usual first loop, on a model of transformers as it comes."""

    def __init__(self, model: str, batches: list[Batch], bf16: bool) -> None:
        self.before = _allocated()
        found = transformers.AutoModelForMaskedLM.from_pretrained(model, dtype=torch.float32)
        self.model = found.to(_DEVICE).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=_ON_GPU
        )
        self.bf16, self.steps = bf16, len(batches)
        self.texts = sum(len(batch["attention_mask"]) for batch in batches)
        self.tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        names = {
            "input_ids": "encoder_ids",
            "attention_mask": "attention_mask",
            "labels": "labels",
        }
        self.batches = cycle(
            [{theirs: batch[ours] for theirs, ours in names.items()} for batch in batches]
        )

    def warm_up(self, steps: int) -> None:
        """Runs steps that are not timed."""
        for _ in range(steps):
            self._step()
        self.own = _allocated() - self.before

    def turn(self) -> Turn:
        """Trains on all texts once."""
        for _ in range(_SETTLING):
            self._step()
        before, began = _reset_peak(), _now()
        for _ in range(self.steps):
            loss = self._step()
        seconds = _now() - began
        if not torch.isfinite(loss):
            sys.exit(f"the loss of the plain loop is {loss.item()}: choose another --model")
        return Turn(seconds, self.texts, self.tokens, _peak(before) + self.own)

    def _step(self) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(_DEVICE.type, torch.bfloat16, enabled=self.bf16):
            loss: torch.Tensor = self.model(**next(self.batches)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return loss


def _raced(contestants: dict[str, Ours | Plain], rounds: int) -> list[dict[str, Turn]]:
    return [{name: each.turn() for name, each in contestants.items()} for _ in range(rounds)]


def _show(names: list[str], rounds: list[dict[str, Turn]]) -> None:
    """Medians over rounds, and medians of the ratios within a round."""
    for name in names:
        turns = [turns[name] for turns in rounds]
        rates = [turn.rate for turn in turns]
        against = [
            statistics.median(one[name].rate / one[other].rate for one in rounds)
            for other in (_REFERENCE, _PLAIN)
        ]
        tokens = statistics.median(turn.tokens / turn.seconds for turn in turns)
        memory = f"{max(turn.peak for turn in turns) / 2**30:7.1f}" if _ON_GPU else f"{'':7}"
        print(
            f"{name:32}{statistics.median(rates):10,.1f}"
            f"{f'{min(rates):,.1f} - {max(rates):,.1f}':>20}{tokens:11,.0f}{memory}"
            f"{against[0]:8.2f}{against[1]:9.2f}",
            flush=True,
        )


def _now() -> float:
    """Seconds, once the device has done what it was given."""
    if _ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def _allocated() -> int:
    return torch.cuda.memory_allocated() if _ON_GPU else 0


def _reset_peak() -> int:
    """Starts to count the bytes in use again; returns how many are."""
    if _ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    return _allocated()


def _peak(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before if _ON_GPU else 0


if __name__ == "__main__":
    main()
