"""What each masking costs: as a ratio to uniform masking, and what it adds to a training step.

The peers are the papers' own figures: CDMAE's table 6 has PMI masking at 2.75 times and RetroMAE's
per-row masks at 29 times the cost of uniform masking (batch 128, 150 tokens, CPU).

    python benchmarks/masking.py [--batch 128] [--length 150] [--model NAME] [--rounds 9]

On a GPU, the share of the kernels' time is what a step loses that the GPU is busy with. Where the
step is small, the host that launches the kernels is what takes time: try a larger --batch as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from isthmus.config.models import MINILM, model_folder
from isthmus.nn.randomness import key
from isthmus.nn.sizes import new_backbone
from isthmus.pretraining.corruption._budget import MaskingSettings
from isthmus.pretraining.corruption.importance import Importance, ImportanceSettings
from isthmus.pretraining.corruption.nested import Nested, NestedSettings
from isthmus.pretraining.corruption.uniform import Uniform
from isthmus.pretraining.corruption.whole_word import WholeWord
from isthmus.pretraining.decoders.enhanced import visibility
from isthmus.pretraining.examples import most_sizes
from isthmus.pretraining.labels import at_places, places_of
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_PIECES = 1.25  # tokens per word: English text in the vocabulary of BERT


def main() -> None:
    """Prints a line per strategy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=150)
    parser.add_argument("--model", default=MINILM, help="whose tokenizer is used")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9, help="the median of so many is printed")
    parser.add_argument("--repeat", type=int, default=10, help="calls that are timed together")
    options = parser.parse_args()
    device = torch.device(options.device)
    tokenizer = Tokenizer.load(model_folder(options.model))
    vocabulary = Vocabulary(tokenizer, len(tokenizer)).to(device)
    batch = _batch(options.batch, options.length, tokenizer, device)
    uniform = Uniform(MaskingSettings())
    both = {**batch, **uniform(batch, vocabulary)}
    importance = Importance(ImportanceSettings(rate=0.5))
    nested = Nested(NestedSettings(rate=0.5), "decoder")
    attended = batch["attention_mask"].bool()
    strategies: dict[str, Callable[[], object]] = {
        "uniform": lambda: uniform(batch, vocabulary),
        "whole_word": lambda: whole_word(batch, vocabulary),
        "importance": lambda: importance(batch, vocabulary),
        "nested": lambda: nested(both, vocabulary),
        "enhanced visibility": lambda: visibility(batch["keys"], batch["words"], attended, 0.5),
    }
    whole_word = WholeWord(MaskingSettings())
    print(
        f"{options.batch} texts of {options.length} tokens, {device.type}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    seconds = _measure(strategies, options, device)
    for name in strategies:
        ratio = seconds[name] / seconds["uniform"]
        print(f"{name:>20}: {1000 * seconds[name]:8.3f} ms, {ratio:6.2f} x uniform")
    if device.type == "cuda":
        step = _training_step(batch, tokenizer, device)
        whole = _kernels(step)
        print(
            f"a step of masked LM, BERT-base, bf16: {1000 * whole:.2f} ms of kernels; on top of it"
        )
        for name, strategy in strategies.items():
            share = _kernels(strategy) / whole
            added = _added(strategy, step, options, device)
            low, middle, high = (f"{value:+.2%}" for value in statistics.quantiles(added, n=4))
            print(f"{name:>20}: {share:6.2%} of kernels; {middle} of time ({low} to {high})")


def _batch(texts: int, length: int, tokenizer: Tokenizer, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(0)
    regular = torch.from_numpy(tokenizer.regular_ids)
    ids = regular[torch.randint(len(regular), (texts, length), generator=generator)]
    ids[:, 0], ids[:, -1] = tokenizer.prefix[0], tokenizer.suffix[0]
    begins = torch.rand(texts, length, generator=generator) < 1 / _PIECES
    begins[:, 1] = True
    words = begins.cumsum(1) - begins[:, :1].long() - 1
    words[:, 0] = words[:, -1] = -1
    pmi = torch.randn(texts, length, 3, generator=generator) + 2
    pmi[:, 0] = pmi[:, -1] = torch.nan
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "words": words,
        "keys": torch.tensor([key(0, 0, row) for row in range(texts)]),
        "pmi": pmi,
        "tokens": torch.arange(ids.numel()),
        "regular": (words >= 0).flatten().nonzero()[:, 0],
        "word_sizes": torch.from_numpy(most_sizes(words.numpy())),
    }
    return {name: value.to(device) for name, value in batch.items()}


def _training_step(batch: Batch, tokenizer: Tokenizer, device: torch.device) -> Callable[[], None]:
    backbone = new_backbone("base", len(tokenizer), tokenizer.pad_id).to(device)
    optimiser = torch.optim.AdamW(backbone.parameters(), lr=1e-5, fused=True)
    # As in training, the host never waits for the GPU to learn where something is.
    places = places_of(torch.rand(batch["input_ids"].shape, device=device) < 0.3)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            states = backbone(batch["input_ids"], batch["attention_mask"], batch["tokens"])
            labels, labelled = at_places(places, batch["input_ids"], states)
            loss = backbone.predict(labelled).cross_entropy(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()

    return step


def _kernels(job: Callable[[], object], repeat: int = 10) -> float:
    """Seconds that the GPU computes for one call, whatever the host does meanwhile."""
    job()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(repeat):
            job()
        torch.cuda.synchronize()
    total = sum(float(event.self_device_time_total) for event in seen.key_averages())
    return total / repeat / 1e6


def _added(
    strategy: Callable[[], object],
    step: Callable[[], object],
    options: argparse.Namespace,
    device: torch.device,
) -> list[float]:
    """What steps with the strategy take longer than those before and after them, as a share."""

    def both() -> None:
        strategy()
        step()

    found = []
    for _ in range(options.rounds):
        before, with_it, after = (
            _seconds(job, options.repeat, device) for job in (step, both, step)
        )
        found.append(2 * with_it / (before + after) - 1)
    return found


def _measure(
    jobs: dict[str, Callable[[], object]], options: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a busy machine slows all alike."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(options.rounds + 2):
        for name, job in jobs.items():
            seconds = _seconds(job, options.repeat, device)
            if number > 1:  # the first two rounds warm up
                taken[name].append(seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


def _seconds(job: Callable[[], object], repeat: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeat):
        job()
    _wait(device)
    return (time.perf_counter() - start) / repeat


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
