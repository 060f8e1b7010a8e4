"""Plain attention against torch's fused one on this CPU: training and encoding, as ratios.

Why the code trains with one and encodes with the other is in docs/decisions/attention-on-cpu.md.

    python benchmarks/cpu_attention.py [--model FOLDER] [--length 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Literal

import torch

from isthmus.config.models import MINILM, model_folder
from isthmus.nn.backbone import Backbone
from isthmus.nn.precision import native_bf16
from isthmus.pretraining.objectives.bag_of_words import bag_of_words

_BATCH = 32
_STEPS = 4
_MASKED = 0.30


def main() -> None:
    """Prints sequences per second of both kinds, and fused : plain as the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=MINILM, help="any encoder that isthmus loads")
    parser.add_argument("--length", type=int, default=64, help="tokens per sequence")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many is printed")
    options = parser.parse_args()
    backbones = {
        "eager": _load(options.model, "eager"),
        "sdpa": _load(options.model, "sdpa"),
    }
    generator = torch.Generator().manual_seed(0)
    size = len(backbones["eager"].word_embeddings)
    ids = torch.randint(1000, size, (_BATCH, options.length), generator=generator)
    labelled = torch.rand(ids.shape, generator=generator) < _MASKED
    precision = "bf16" if native_bf16() else "float32"
    print(
        f"{options.model}, {precision}, {_BATCH} sequences of {options.length} tokens, no dropout, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    for task, prepare in (("train", _training), ("encode", _encoding)):
        steps = {name: prepare(backbone, ids, labelled) for name, backbone in backbones.items()}
        speeds = _measure(steps, options.rounds)
        print(
            f"{task:>6}: eager {speeds['eager']:6.1f}  sdpa {speeds['sdpa']:6.1f} sequences/s, "
            f"eager : sdpa = {speeds['eager'] / speeds['sdpa']:.2f}"
        )


def _load(name: str, attention: Literal["eager", "sdpa"]) -> Backbone:
    return Backbone.load(model_folder(name), "add", dropout=0.0, attention=attention)


def _measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Sequences per second of each, taken in turns so that a busy machine slows both alike."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(_STEPS):
                step()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: _BATCH * _STEPS / statistics.median(taken) for name, taken in seconds.items()}


def _training(backbone: Backbone, ids: torch.Tensor, labelled: torch.Tensor) -> Callable[[], None]:
    """One optimiser step of masked LM and bag of words."""
    optimiser = torch.optim.AdamW(backbone.parameters(), lr=1e-5)
    mask = torch.ones_like(ids)
    bags = torch.zeros(len(ids), len(backbone.word_embeddings), dtype=torch.bool)
    bags.scatter_(1, ids, True)

    def step() -> None:
        backbone.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=native_bf16()):
            states = backbone(ids, mask)
            prediction = backbone.predict(states[labelled])
            hidden = prediction.cross_entropy(ids[labelled]) / labelled.sum()
            words = bag_of_words(backbone.head(states[:, 0]), bags).mean()
        (hidden + words).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()

    return step


def _encoding(backbone: Backbone, ids: torch.Tensor, labelled: torch.Tensor) -> Callable[[], None]:
    """One pass without gradients."""
    del labelled
    mask = torch.ones_like(ids)

    def step() -> None:
        backbone.eval()
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16, enabled=native_bf16()),
        ):
            backbone(ids, mask)

    return step


if __name__ == "__main__":
    main()
