"""One step of pre-training: whose layers are the quickest, and where its time goes.

own: kernels of our own (docs/decisions/own-layers.md), the step captured into a CUDA graph.
launched: the same, one by one. captured: the layers of transformers in a CUDA graph, no kernel of
our own. compiled: these layers through torch.compile. plain: these layers as they are. Then, of a
profiled turn of each, the time of the device's kernels by kind, and the longest of them.

    python benchmarks/pretraining_step.py [--recipe mlm] [--length 512] [--batch 64]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from isthmus.benchmarks.speed.contestants import MatrixProduct, Ours, settings_for
from isthmus.benchmarks.speed.settings import SpeedSettings
from isthmus.benchmarks.speed.texts import corpus_of, starting_model
from isthmus.nn.precision import native_bf16
from isthmus.text.tokenizer import Tokenizer

ON_GPU = torch.cuda.is_available()
WAYS: dict[str, dict[str, Any]] = {
    "own": {"kernels": True, "torch_compile": False, "graphs": True},
    "launched": {"kernels": True, "torch_compile": False, "graphs": False},
    "captured": {"kernels": False, "torch_compile": False, "graphs": True},
    "compiled": {"kernels": False, "torch_compile": True, "graphs": False},
    "plain": {"kernels": False, "torch_compile": False, "graphs": False},
}
# What a kernel does, by its name; the first that fits.
KINDS = {
    "own kernels": r"^_(norm|gelu)_(forward|backward)$|^_replace$|^_find$|^_sum_(places|ranges)$",
    "attention": r"flash|fmha|sdpa|cudnn_generated|attention",
    "products": r"gemm|nvjet|cutlass|xmma|cublas|splitk|addmm|::mm|bmm",
    "optimiser": r"adam|multi_tensor|lpnorm",
    "compiled": r"^triton_",
    "copies": r"copy|cat|memcpy|memset",
}


def main() -> None:
    """Prints milliseconds of each way, and what they consist of."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", default="mlm")
    parser.add_argument("--length", type=int, default=512 if ON_GPU else 64, help="tokens a text")
    parser.add_argument("--batch", type=int, default=64 if ON_GPU else 4, help="texts a step")
    parser.add_argument("--corpus", help="real texts, cut to the length; otherwise random ones")
    parser.add_argument("--init", default="base" if ON_GPU else "tiny", help="size of the model")
    parser.add_argument("--steps", type=int, default=20 if ON_GPU else 3, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    ways = list(WAYS) if ON_GPU else ["plain"]
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=ways)
    parser.add_argument("--top", type=int, default=12, help="kernels that are listed")
    given = parser.parse_args()
    told = {
        "init": given.init, "lengths": [given.length], "batch": given.batch,
        "corpus": given.corpus,
    }  # fmt: skip
    settings = SpeedSettings.parse(told, "flags")
    chip = torch.cuda.get_device_name() if ON_GPU else "CPU"
    shape = f"{given.recipe}, {given.batch} texts of {given.length}, {given.init}"
    print(f"{shape}, torch {torch.__version__}, {chip}")
    with tempfile.TemporaryDirectory() as scratch:
        model = starting_model(settings, Path(scratch))
        corpus = corpus_of(settings, Tokenizer.load(model), given.length, Path(scratch))
        runs = {
            name: Ours(
                settings_for(
                    given.recipe, model, (given.length, given.batch), 1, {"training": WAYS[name]}
                ),
                corpus, given.steps, Path(scratch) / name,
            )
            for name in given.ways
        }  # fmt: skip
        for run in runs.values():
            run.warm_up(4)
        turns = {name: [run.turn()] for name, run in runs.items()}
        for _ in range(given.rounds - 1):
            for name, run in runs.items():
                turns[name].append(run.turn())
        rate = MatrixProduct(native_bf16()).rate()
        print(f"\n{'':10}{'ms a step':>12}{'texts/s':>10}{'of the chip':>13}")
        for name, found in turns.items():
            seconds = statistics.median(turn.seconds for turn in found) / given.steps
            useful = (found[0].operations or 0) / found[0].seconds / rate
            texts = statistics.median(turn.rate for turn in found)
            print(f"{name:10}{seconds * 1e3:12.2f}{texts:10.0f}{useful:13.1%}")
        for name, run in runs.items():
            show(name, run, given.steps + run.trainer.order.settling, given.top)


def show(name: str, run: Ours, steps: int, top: int) -> None:
    """Where the time of a turn goes, per step."""
    activities = [ProfilerActivity.CUDA if ON_GPU else ProfilerActivity.CPU]
    with profile(activities=activities) as seen:
        run.turn()
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in seen.key_averages():
        spent[event.key] += event.self_device_time_total if ON_GPU else event.self_cpu_time_total
        calls[event.key] += event.count
    kinds: Counter[str] = Counter()
    for key, time in spent.items():
        fits = (kind for kind, words in KINDS.items() if re.search(words, key, re.IGNORECASE))
        kinds[next(fits, "others")] += time
    total, launched = spent.total() / steps / 1e3, calls.total() / steps
    print(f"\n{name}: {total:.2f} ms of {launched:.0f} kernels a step")
    for kind, time in kinds.most_common():
        print(f"  {kind:14}{time / steps / 1e3:9.3f}")
    for key, time in spent.most_common(top):
        print(f"    {time / steps / 1e3:9.3f}{calls[key] / steps:8.1f} x  {key[:90]}")


if __name__ == "__main__":
    main()
