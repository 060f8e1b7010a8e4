"""Counting all 1..4-grams of a text in bounded memory against Python's Counter, which has no bound.

    python benchmarks/ngram_counting.py [--corpus FILE] [--memory 1024] [--rounds 3]

Memory is what all processes together hold (anonymous pages) beyond what the same processes held
before. The corpus is tokenised first, which is not counted; Counter gets a small part of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

from isthmus.collections import open_corpus
from isthmus.config.models import MINILM, model_folder
from isthmus.text.corpus import TokenisedCorpus, flat_tokens, tokenise
from isthmus.text.ngrams import count_ngrams
from isthmus.text.tokenizer import Tokenizer
from isthmus.text.windows import ORDERS

_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_COUNTER_TOKENS = 500_000
_SAMPLING_SECONDS = 0.005


def main() -> None:
    """Prints tokens per second of both, their ratio, and the peak of memory against the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", default=str(_DATA / "texts" / "enwiki_sample.jsonl.zst"))
    parser.add_argument("--model", default=MINILM, help="whose tokenizer")
    parser.add_argument("--memory", type=int, default=1024, help="the bound in MiB")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(model_folder(options.model))
    source = open_corpus(options.corpus)
    with tempfile.TemporaryDirectory() as cache:
        corpus = tokenise(
            source.documents(), source.fingerprint(), tokenizer.serialised, cache=Path(cache)
        )
        tokens = int(corpus.lengths.sum())
        print(
            f"{options.corpus}, {tokens:,} tokens of {len(tokenizer):,}, {options.workers} "
            f"processes, bound {options.memory} MiB, numpy {np.__version__}"
        )
        ours, peers, peaks = [], [], []
        for _ in range(options.rounds):
            shutil.rmtree(corpus.folder / "ngrams", ignore_errors=True)
            seconds, peak = _watched(
                lambda: count_ngrams(corpus, tokenizer, options.memory << 20, options.workers),
                lambda: _start(corpus.files[0], options.workers),
            )
            ours.append(tokens / seconds)
            peaks.append(peak / 2**20)
            peers.append(_with_counter(corpus, set(tokenizer.special_ids.tolist())))
    mine, peer = statistics.median(ours), statistics.median(peers)
    print(f"isthmus {mine:12,.0f} tokens/s, peak of memory {max(peaks):,.0f} MiB")
    print(f"Counter {peer:12,.0f} tokens/s, one process, {_COUNTER_TOKENS:,} tokens")
    ratio = max(peaks) / options.memory
    print(f"isthmus : Counter = {mine / peer:.1f}, peak : bound = {ratio:.2f}")


def _watched(work: Callable[[], object], prepare: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and the most bytes that this process and its children held beyond the beginning."""
    prepare()
    before = peak = _held()
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(_SAMPLING_SECONDS):
            peak = max(peak, _held())

    thread = threading.Thread(target=sample)
    thread.start()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    ended.set()
    thread.join()
    return seconds, peak - before


def _start(file: Path, workers: int) -> None:
    """Starts the processes that will count, and lets them import what reading a corpus needs."""
    Parallel(n_jobs=workers)(delayed(_ready)(file) for _ in range(4 * workers))


def _ready(file: Path) -> None:
    flat_tokens(file)
    time.sleep(0.2)  # so that no process takes all


def _held() -> int:
    """Bytes of anonymous memory of this process and all below it."""
    parents, held = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        values = dict(line.split(":", 1) for line in lines)
        process = int(folder.name)
        parents[process] = int(values["PPid"])
        held[process] = int(values.get("RssAnon", "0 kB").split()[0]) * 1024
    total = 0
    for process, size in held.items():
        ancestor = process
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        total += size if ancestor else 0
    return total


def _with_counter(corpus: TokenisedCorpus, special: set[int]) -> float:
    """Tokens per second of plain loops."""
    counters: dict[int, Counter[tuple[int, ...]]] = {order: Counter() for order in ORDERS}
    start, done = time.perf_counter(), 0
    for document in corpus:
        tokens = document.tokens.tolist()
        for order, counter in counters.items():
            windows = zip(*(tokens[place:] for place in range(order)), strict=False)
            counter.update(window for window in windows if special.isdisjoint(window))
        done += len(tokens)
        if done >= _COUNTER_TOKENS:
            break
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
