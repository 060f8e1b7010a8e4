"""Training without padding against training with it, at the lengths of real texts, as ratios.

What is padded away depends on the order of the texts: at random, or as the trainer puts like
beside like. docs/decisions/packing.md says what was decided by it.

    python benchmarks/packing.py [CORPUS] [--model FOLDER] [--batch 32] [--rounds 5]
    python benchmarks/packing.py [COLLECTION] --pairs    # a re-ranker instead of masked LM
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.collections import open_collection, open_corpus
from isthmus.config.models import MINILM, model_folder
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import Classifier, load_classifier
from isthmus.nn.precision import native_bf16
from isthmus.text.batches import bucketed_order
from isthmus.text.tokenizer import Tokenizer

_DATA = Path(os.environ.get("ISTHMUS_DATA", "../shared/data"))
_MASKED = 0.30
_BATCHES = 3
Batch = tuple[Tensor, Tensor, Tensor, Tensor]
Step = Callable[[Batch, bool], None]


def main() -> None:
    """Prints the padding of both orders, and seconds padded : packed as the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "corpus",
        nargs="?",
        default=str(_DATA / "collections" / "insuranceqa"),
        help="any corpus of texts",
    )
    parser.add_argument("--model", default=MINILM, help="any encoder that isthmus loads")
    parser.add_argument("--pairs", action="store_true", help="train a re-ranker on query + text")
    parser.add_argument("--batch", type=int, default=32, help="texts per step")
    parser.add_argument("--length", type=int, default=144, help="tokens per text, at most")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many is printed")
    options = parser.parse_args()
    folder = model_folder(options.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = _lengths(options.corpus, Tokenizer.load(folder), options.length, options.pairs)
    load = load_classifier if options.pairs else Backbone.load
    backbone = load(folder, "add", dropout=options.dropout).to(device).train()
    print(
        f"{options.model}, {'bf16' if native_bf16() else 'float32'}, {options.batch} "
        f"{'pairs' if options.pairs else 'texts'} of {lengths.mean():.0f} tokens on average, "
        f"{lengths.max()} at most, dropout "
        f"{options.dropout}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    generator = np.random.default_rng(0)
    orders = {
        "at random": generator.permutation(len(lengths)),
        "like beside like": bucketed_order(lengths, options.batch, 0, 0),
    }
    for name, order in orders.items():
        chosen = order[: options.batch * _BATCHES].reshape(_BATCHES, options.batch)
        batches = [_batch(lengths[rows], len(backbone.word_embeddings), device) for rows in chosen]
        padding = 1 - sum(len(batch[2]) for batch in batches) / sum(
            batch[0].numel() for batch in batches
        )
        padded, packed, ratio = _measure(_training(backbone, device), batches, options.rounds)
        print(
            f"{name:>16}: {padding:4.0%} padding, {padded:.3f} s a step padded, "
            f"{packed:.3f} packed, ratio {ratio:.2f}",
            flush=True,
        )


def _lengths(corpus: str, tokenizer: Tokenizer, longest: int, pairs: bool) -> npt.NDArray[np.int64]:
    documents = [document.contents(True) for document in open_corpus(corpus).documents()]
    lengths = np.array([len(row) for row in tokenizer.encode(documents, longest)])
    if pairs:
        queries = [query.text for query in open_collection(corpus).queries()]
        sizes = np.array([len(row) - 1 for row in tokenizer.encode(queries, longest)])
        lengths += np.random.default_rng(1).choice(sizes, len(lengths))  # negatives, mostly
    return lengths


def _batch(lengths: npt.NDArray[np.int64], terms: int, device: str) -> Batch:
    """Random ids, their mask, the places of the tokens, and those that are hidden."""
    generator = torch.Generator().manual_seed(int(lengths.sum()))
    mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
    ids = torch.randint(1000, terms, mask.shape, generator=generator) * mask
    hidden = (torch.rand(mask.shape, generator=generator) < _MASKED) & mask
    tokens = mask.flatten().nonzero()[:, 0]
    return ids.to(device), mask.long().to(device), tokens.to(device), hidden.to(device)


def _training(backbone: Backbone, device: str) -> Step:
    """One optimiser step of masked LM or a re-ranker, packed or padded."""
    optimiser = torch.optim.AdamW(backbone.parameters(), lr=1e-5)

    def step(batch: Batch, packing: bool) -> None:
        ids, mask, tokens, hidden = batch
        backbone.use_packing = packing
        with torch.autocast(device, torch.bfloat16, enabled=native_bf16()):
            if isinstance(backbone, Classifier):
                scores = backbone.score(ids, mask, torch.zeros_like(ids), tokens)
                loss = -scores.log_softmax(0)[0]  # the first is relevant
            else:
                states = backbone(ids, mask, tokens)
                loss = backbone.predict(states[hidden]).cross_entropy(ids[hidden]) / hidden.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()

    return step


def _measure(step: Step, batches: list[Batch], rounds: int) -> tuple[float, float, float]:
    """Seconds of a step padded and packed, of the processor or, beside a GPU, of the clock.

    Each batch is taken both ways in turn, so that a busy machine slows both alike; the third number
    is the median of the ratios.
    """
    on_gpu = torch.cuda.is_available()
    now = time.perf_counter if on_gpu else time.process_time
    pairs: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        for batch in batches:
            seconds = {}
            for packing in (number % 2 == 0, number % 2 == 1):
                start = now()
                step(batch, packing)
                if on_gpu:
                    torch.cuda.synchronize()
                seconds[packing] = now() - start
            if number:  # the first round warms up
                pairs.append((seconds[False], seconds[True]))
    padded, packed = (statistics.median(side) for side in zip(*pairs, strict=True))
    return padded, packed, statistics.median(one / other for one, other in pairs)


if __name__ == "__main__":
    main()
