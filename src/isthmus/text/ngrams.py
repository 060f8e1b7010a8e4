"""Exact counts of all n-grams of one to four tokens of a tokenised corpus, in bounded memory.

Pieces of the corpus are counted by themselves, their keys sorted and spilled to disk as runs; the
runs are merged range of keys by range of keys. Each file is written beside its name and renamed,
so whoever finds a count half-done in `.ngrams.building/` goes on from the files that are there.
The folder `ngrams/` appears whole, by one rename.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from isthmus.config.output import write_json, writing
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.progress import Bar
from isthmus.text.corpus import TokenisedCorpus, flat_tokens
from isthmus.text.tokenizer import Tokenizer

ORDERS = (1, 2, 3, 4)
LONGEST = ORDERS[-1]
_FORMAT = 1
_MANIFEST = "manifest.json"
# What a token of a piece, or an entry of a range, costs at most while it is worked on, measured:
# keys, their sorted distinct copy, places and counts at once, and the allocator's slack.
_ENTRY_BYTES = 64
_OWN_BYTES = 8 << 20  # the vocabulary, the pool of processes
# Starting processes costs more than counting so few tokens.
_WORTH_PROCESSES = 1 << 20

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]
Tokens = npt.NDArray[np.uint32]
Piece = list[tuple[Path, int, int]]
"""A stretch of the corpus: of each block file the first token, and the one after the last."""


class NgramCounts:
    """How often each n-gram of a corpus occurs; the tables stay on disk, memory-mapped."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.tokenizer: str = manifest["tokenizer"]
        self.corpus: str = manifest["corpus"]
        self.vocabulary: int = manifest["vocabulary"]
        self.totals: dict[int, int] = dict(zip(ORDERS, manifest["totals"], strict=True))
        self._keys: dict[int, Keys] = {}
        self._counts: dict[int, Counts] = {}
        for order, distinct in zip(ORDERS, manifest["distinct"], strict=True):
            self._keys[order] = np.load(_table(folder, "keys", order), mmap_mode="r")
            self._counts[order] = np.load(_table(folder, "counts", order), mmap_mode="r")
            if not len(self._keys[order]) == len(self._counts[order]) == distinct:
                raise ValueError(f"the {order}-grams are not {distinct:,}")
        self._coding = _Coding(self.vocabulary, self._keys[2])

    @classmethod
    def load(cls, folder: Path) -> NgramCounts:
        """The counts in a folder; one that is not whole or holds something else is refused."""
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
            if manifest["format"] != _FORMAT or manifest["kind"] != "ngrams":
                raise ValueError(f"kind {manifest['kind']!r}, format {manifest['format']!r}")
            return cls(folder, manifest)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            reason = f"{_MANIFEST} has no {error}" if isinstance(error, KeyError) else error
            raise InputError(
                f"{str(folder)!r} does not hold whole n-gram statistics: {reason}",
                where=str(folder),
                allowed=f"a folder 'ngrams' of format {_FORMAT} beside a tokenised corpus",
                remedy="check the path; to count again, remove the folder",
            ) from None

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuses a tokenizer other than the one whose ids were counted."""
        if tokenizer.fingerprint != self.tokenizer:
            raise MismatchError(
                f"the n-gram statistics were counted with another tokenizer ({self.tokenizer}, "
                f"not {tokenizer.fingerprint})",
                where=str(self.folder),
                allowed="statistics of a corpus that was tokenised by the model's own tokenizer",
                remedy="give the statistics of such a corpus, or none: they are then counted",
            )

    def count(self, order: int, windows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """How often each row of an [n, order] array of ids occurs; 0 where it never does."""
        assert windows.ndim == 2
        assert windows.shape[1] == order
        inside = ((windows >= 0) & (windows < self.vocabulary)).all(axis=1)
        keys, known = self._coding.encode(windows.astype(np.uint32, copy=False))
        places, found = _find(self._keys[order], keys)
        counted = np.zeros(len(windows), dtype=np.int64)
        found &= inside & known
        counted[found] = self._counts[order][places[found]]
        return counted


def count_ngrams(
    corpus: TokenisedCorpus,
    tokenizer: Tokenizer,
    memory: int = 1 << 30,
    workers: int | None = None,
) -> NgramCounts:
    """The counts of all 1..4-grams of a corpus, counted on all cores unless they are there already.

    N-grams never cross documents and never contain a special token.

    Args:
        corpus: What to count; the result is stored beside it.
        tokenizer: The one that made the corpus.
        memory: The most bytes that all processes together allocate for it.
        workers: Processes; None means one per core. Fewer are taken where memory is short.

    """
    folder = corpus.folder / "ngrams"
    building = corpus.folder / ".ngrams.building"
    with writing(folder), FileLock(corpus.folder / ".ngrams.lock"):
        if not folder.exists():
            tables = _Counting(corpus, tokenizer, memory, workers, building).run()
            tables.rename(folder)
        shutil.rmtree(building, ignore_errors=True)
    counts = NgramCounts.load(folder)
    counts.check(tokenizer)
    return counts


class _Counting:
    """One count, or what is left of it: runs, merged parts and finished tables in a folder."""

    def __init__(
        self,
        corpus: TokenisedCorpus,
        tokenizer: Tokenizer,
        memory: int,
        workers: int | None,
        building: Path,
    ) -> None:
        self.corpus, self.tokenizer, self.building = corpus, tokenizer, building
        self.tables = building / "tables"
        self.tokens = int(corpus.lengths.sum(dtype=np.int64))
        self.jobs, self.entries = _share(self.tokens, memory, workers or os.cpu_count() or 1)
        self.regular = regular_tokens(tokenizer)
        self.dtype = np.dtype("<u4" if self.tokens < 1 << 32 else "<u8")
        # Equal pieces for all processes.
        rounds = max(1, -(-self.tokens // (self.entries * self.jobs)))
        self.pieces = list(cut(corpus, max(1, -(-self.tokens // (rounds * self.jobs)))))

    def run(self) -> Path:
        """The folder of finished tables."""
        plan = {"format": _FORMAT, "tokenizer": self.tokenizer.fingerprint,
                "pieces": len(self.pieces), "entries": self.entries, "jobs": self.jobs}  # fmt: skip
        if not _holds(self.building / "plan.json", plan):
            shutil.rmtree(self.building, ignore_errors=True)
            self.tables.mkdir(parents=True)
            write_json(self.building / "plan.json", plan)
        # A 4-gram of a large vocabulary is named by its bigrams, which must be numbered first.
        wide = _Coding(len(self.regular)).wide
        for orders in ((1, 2, 3), (4,)) if wide else (ORDERS,):
            pending = [order for order in orders if not self._finished(order)]
            if pending:
                self._spill(pending)
                for order in pending:
                    self._merge(order)
        if self.jobs > 1:
            get_reusable_executor().shutdown()  # idle workers would keep their memory for minutes
        self._describe()
        return self.tables

    def _finished(self, order: int) -> bool:
        return all(_table(self.tables, kind, order).is_file() for kind in ("keys", "counts"))

    def _run(self, order: int, number: int) -> Path:
        return self.building / f"run-{order}-{number:06d}"

    def _spill(self, orders: list[int]) -> None:
        """Counts every piece by itself."""
        tasks = (
            delayed(_spill_piece)(
                piece, {order: self._run(order, number) for order in orders},
                self.regular, self.tables, self.dtype,
            )
            for number, piece in enumerate(self.pieces)
        )  # fmt: skip
        description = f"count {' '.join(f'{order}-grams' for order in orders)}"
        with Bar(description, self.tokens, unit="tokens") as bar:
            for done in in_parallel(tasks, self.jobs):
                bar.advance(done)

    def _merge(self, order: int) -> None:
        """Adds up the runs of one order; these are removed when its tables are whole."""
        runs = [_Run.open(self._run(order, n), self.dtype) for n in range(len(self.pieces))]
        cuts = _cuts(runs, self.entries, self.jobs)
        parts = [self.building / f"part-{order}-{n:06d}" for n in range(len(cuts) - 1)]
        tasks = (
            delayed(_merge_range)(runs, cuts[number], cuts[number + 1], part)
            for number, part in enumerate(parts)
        )
        with Bar(f"merge {order}-grams", sum(run.size for run in runs), unit="n-grams") as bar:
            for done in in_parallel(tasks, self.jobs):
                bar.advance(done)
        merged = [_Run.open(part, self.dtype) for part in parts]
        shape = (sum(run.size for run in merged),)
        keys = (run.keys(0, run.size) for run in merged)
        write_array(_table(self.tables, "keys", order), keys, np.dtype("<u8"), shape)
        counts = (run.counts(0, run.size) for run in merged)
        write_array(_table(self.tables, "counts", order), counts, self.dtype, shape)
        for run in (*runs, *merged):
            run.file.unlink()

    def _describe(self) -> None:
        counts = [np.load(_table(self.tables, "counts", n), mmap_mode="r") for n in ORDERS]
        write_json(
            self.tables / _MANIFEST,
            {
                "kind": "ngrams",
                "format": _FORMAT,
                "tokenizer": self.tokenizer.fingerprint,
                "corpus": self.corpus.fingerprint,
                "vocabulary": len(self.regular),
                "totals": [int(table.sum(dtype=np.int64)) for table in counts],
                "distinct": [len(table) for table in counts],
            },
        )


@dataclass(frozen=True)
class _Coding:
    """Numbers for n-grams, in the order of their ids, exact: different n-grams, different keys.

    The ids stand side by side in 64 bits. Where four do not fit (more than 65,536 tokens), a 4-gram
    is the pair of its bigrams' places in the bigram table.
    """

    vocabulary: int
    bigrams: Keys | None = None

    @property
    def bits(self) -> int:
        return max(1, (self.vocabulary - 1).bit_length())

    @property
    def wide(self) -> bool:
        return LONGEST * self.bits > 64

    def encode(self, windows: Tokens) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """The key of each row, and whether it has one: an unseen bigram makes no 4-gram."""
        if windows.shape[1] < LONGEST or not self.wide:
            return self._pack(windows), np.ones(len(windows), dtype=np.bool_)
        assert self.bigrams is not None
        assert len(self.bigrams) <= 1 << 32
        head, known = _find(self.bigrams, self._pack(windows[:, :2]))
        tail, also_known = _find(self.bigrams, self._pack(windows[:, 2:]))
        head <<= 32
        head |= tail
        return head.view(np.uint64), known & also_known

    def _pack(self, windows: Tokens) -> Keys:
        assert windows.shape[1] * self.bits <= 64
        keys = windows[:, 0].astype(np.uint64)
        for place in range(1, windows.shape[1]):
            keys <<= np.uint64(self.bits)
            keys |= windows[:, place]
        return keys


@dataclass(frozen=True)
class _Run:
    """A file of sorted distinct keys followed by their counts."""

    file: Path
    size: int
    dtype: np.dtype[np.unsignedinteger[Any]]

    @classmethod
    def open(cls, file: Path, dtype: np.dtype[np.unsignedinteger[Any]]) -> _Run:
        return cls(file, file.stat().st_size // (8 + dtype.itemsize), dtype)

    def keys(self, start: int, stop: int) -> Keys:
        return np.fromfile(self.file, "<u8", stop - start, offset=8 * start)

    def counts(self, start: int, stop: int) -> Counts:
        offset = 8 * self.size + self.dtype.itemsize * start
        return np.fromfile(self.file, self.dtype, stop - start, offset=offset)

    def mapped_keys(self) -> Keys:
        if not self.size:
            return np.zeros(0, dtype=np.uint64)
        return np.memmap(self.file, "<u8", mode="r", shape=(self.size,))


def regular_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.bool_]:
    """Of every id whether it may be part of an n-gram: all but the special ones."""
    highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    regular = np.ones(highest + 1, dtype=np.bool_)
    regular[tokenizer.special_ids] = False
    return regular


def cut(corpus: TokenisedCorpus, size: int) -> Iterator[Piece]:
    """The corpus in pieces of `size` tokens, wherever documents and blocks begin."""
    piece: Piece = []
    room = size
    for file in corpus.files:
        start, end = 0, len(flat_tokens(file)[0])
        while start < end:
            stop = min(end, start + room)
            piece.append((file, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def read(piece: Piece, regular: npt.NDArray[np.bool_]) -> tuple[Tokens, npt.NDArray[np.uint8]]:
    """The tokens of a piece and three more, and the longest n-gram that starts at each (0 to 4)."""
    length = sum(stop - start for _, start, stop in piece)
    tokens = np.zeros(length + LONGEST - 1, dtype=np.uint32)
    joined = np.zeros(length + LONGEST - 1, dtype=np.bool_)  # with the token that follows
    filled = 0
    for file, start, stop in piece:
        flat, offsets = flat_tokens(file)
        seen = flat[start : stop + LONGEST - 1]  # beyond `stop` at the end of the piece only
        tokens[filled : filled + len(seen)] = seen
        joined[filled : filled + len(seen)] = True
        inside = np.searchsorted(offsets, [start, start + len(seen)], side="right")
        ends = offsets[inside[0] : inside[1]].astype(np.int64) - start
        joined[filled + ends - 1] = False
        filled += stop - start
    if (highest := int(tokens.max(initial=0))) >= len(regular):
        raise MismatchError(
            f"the corpus holds token {highest:,}, but the tokenizer has {len(regular):,} tokens",
            where=str(piece[0][0]),
            allowed="the tokenizer that made the corpus",
            remedy="tokenise the corpus again",
        )
    good = regular[tokens]
    joined[:-1] &= good[1:]
    reach = np.ones(length, dtype=np.uint8)
    for place in reversed(range(LONGEST - 1)):
        reach *= joined[place : place + length]
        reach += 1
    reach *= good[:length]
    return tokens, reach


def windows_of(tokens: Tokens, order: int) -> npt.NDArray[np.uint32]:
    """The n-gram that starts at each token of what `read` gives: [n, order], a view."""
    length = len(tokens) - LONGEST + 1
    return np.lib.stride_tricks.sliding_window_view(tokens, order)[:length]


def in_parallel(tasks: Iterable[Any], jobs: int) -> Iterator[Any]:
    """The results of joblib's tasks in their order, few of them waiting."""
    results: Iterator[Any] = Parallel(
        n_jobs=jobs, return_as="generator", pre_dispatch="2*n_jobs", batch_size=1
    )(tasks)
    return results


def write_whole(file: Path, write: Callable[[Any], None]) -> None:
    """Writes a file that appears under its name only when it is whole."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with partial.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def write_array(
    file: Path, parts: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    """Writes a .npy file from parts that come one after the other."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}

    def write(stream: Any) -> None:
        np.lib.format.write_array_header_1_0(stream, header)
        for part in parts:
            part.tofile(stream)

    write_whole(file, write)


def _share(tokens: int, memory: int, workers: int) -> tuple[int, int]:
    """How many processes work, and how many tokens or entries each may hold at a time.

    Merging samples every run at as many places as there are runs, so with r runs of n entries it is
    bounded by the same n as long as r * r <= n. Where memory is short, fewer processes share it.
    """
    jobs = workers if tokens > _WORTH_PROCESSES else 1
    for processes in range(jobs, 0, -1):
        entries = max(0, memory - _OWN_BYTES) // (processes * _ENTRY_BYTES)
        if entries and entries**3 >= tokens**2:
            return processes, entries
    least = _OWN_BYTES + _ENTRY_BYTES * (int(tokens ** (2 / 3)) + 2)
    raise SettingsError(
        f"{memory:,} bytes of memory are too few to count the n-grams of {tokens:,} tokens",
        where="memory",
        allowed=f"{least:,} bytes or more",
        remedy="allow more memory; a gibibyte counts billions of tokens",
    )


def _spill_piece(
    piece: Piece,
    runs: dict[int, Path],
    regular: npt.NDArray[np.bool_],
    tables: Path,
    dtype: np.dtype[np.unsignedinteger[Any]],
) -> int:
    """Writes the runs of one piece that are not there yet; returns its tokens."""
    missing = {order: file for order, file in runs.items() if not file.is_file()}
    if missing:
        bigrams = _table(tables, "keys", 2)
        numbered = np.load(bigrams, mmap_mode="r") if bigrams.is_file() else None
        coding = _Coding(len(regular), numbered)
        tokens, reach = read(piece, regular)
        for order, file in missing.items():
            keys = coding.encode(windows_of(tokens, order))[0][reach >= order]
            keys.sort()
            _write_run(file, keys, None, dtype)
    return sum(stop - start for _, start, stop in piece)


def _cuts(runs: list[_Run], entries: int, jobs: int) -> npt.NDArray[np.int64]:
    """Where to cut each run, [ranges + 1, runs], so that no range of keys has too many entries.

    The keys at every `step`-th place of each run are sorted together, and every as-many-th as there
    are runs begins a range. A key is at most once in a run, so fewer than two samples per run fall
    into a range, and three steps of each run is the most it can hold.
    """
    sizes = np.array([run.size for run in runs], dtype=np.int64)
    if not sizes.sum():
        return np.zeros((1, len(runs)), dtype=np.int64)
    most = min(entries, -(-int(sizes.sum()) // jobs))
    step = max(1, most // (3 * len(runs)))
    samples = np.concatenate([np.array(run.mapped_keys()[::step]) for run in runs])
    samples.sort()
    begins = np.unique(samples[:: len(runs)])[1:]
    cuts = np.zeros((len(begins) + 2, len(runs)), dtype=np.int64)
    for number, run in enumerate(runs):
        cuts[1:-1, number] = np.searchsorted(run.mapped_keys(), begins)
    cuts[-1] = sizes
    return cuts


def _merge_range(
    runs: list[_Run], low: npt.NDArray[np.int64], high: npt.NDArray[np.int64], file: Path
) -> int:
    """Writes the sums of one range of keys unless they are there; returns the entries read."""
    total = int((high - low).sum())
    if file.is_file():
        return total
    keys = np.empty(total, dtype=np.uint64)
    counts = np.empty(total, dtype=runs[0].dtype)
    filled = 0
    for run, start, stop in zip(runs, low.tolist(), high.tolist(), strict=True):
        keys[filled : filled + stop - start] = run.keys(start, stop)
        counts[filled : filled + stop - start] = run.counts(start, stop)
        filled += stop - start
    order = np.argsort(keys, kind="stable")  # finds the runs, and merges them
    keys, counts = keys[order], counts[order]
    del order
    _write_run(file, keys, counts, runs[0].dtype)
    return total


def _write_run(
    file: Path, keys: Keys, counts: Counts | None, dtype: np.dtype[np.unsignedinteger[Any]]
) -> None:
    """Writes sorted keys once each, with the sum of their counts, or how often they came."""
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    distinct = keys[starts]
    if counts is None:
        sums = np.diff(starts, append=len(keys)).astype(dtype)
    else:
        sums = np.add.reduceat(counts, starts, dtype=dtype)

    def write(stream: Any) -> None:
        distinct.tofile(stream)
        sums.tofile(stream)

    write_whole(file, write)


def _find(table: Keys, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The place of each key in a sorted table, and whether it is there at all."""
    if not len(table):
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
    # Looked up in their order, neighbours meet in the processor's cache: several times faster.
    order = np.argsort(keys)
    wanted = keys[order]
    sorted_places = np.searchsorted(table, wanted)
    np.minimum(sorted_places, len(table) - 1, out=sorted_places)
    places = np.empty(len(keys), dtype=np.int64)
    places[order] = sorted_places
    found = np.empty(len(keys), dtype=np.bool_)
    found[order] = table[sorted_places] == wanted
    return places, found


def _table(folder: Path, kind: str, order: int) -> Path:
    return folder / f"{kind}-{order}.npy"


def _holds(file: Path, value: object) -> bool:
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")) == value)
    except (OSError, ValueError):
        return False
