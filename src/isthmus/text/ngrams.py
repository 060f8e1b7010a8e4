"""Exact counts of all n-grams of one to four tokens of a tokenised corpus, in bounded memory.

Pieces of the corpus are counted by themselves, their keys sorted and spilled to disk as spills; the
spills are merged range of keys by range of keys. Each file is written beside its name and renamed,
so a count that was interrupted goes on from the files in `.ngrams.building/`.
The folder `ngrams/` appears whole, by one rename.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from isthmus.config.output import write_json, writing
from isthmus.errors import InputError, SettingsError
from isthmus.progress import Bar
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.parallel import in_parallel, let_go, machines, places
from isthmus.text.spills import (
    CountType,
    Keys,
    Spill,
    cuts_of,
    merge_range,
    write_array,
    write_spill,
)
from isthmus.text.tokenizer import Tokenizer
from isthmus.text.windows import (
    LONGEST,
    ORDERS,
    Piece,
    Tokens,
    cut,
    read,
    regular_tokens,
    windows_of,
)

_FORMAT = 1
_MANIFEST = "manifest.json"
# What a token of a piece, or an entry of a range, costs at most while it is worked on, measured:
# keys, their sorted distinct copy, places and counts at once, and the allocator's slack.
ENTRY_BYTES = 64
OWN_BYTES = 8 << 20  # the vocabulary, the pool of processes
# Starting processes costs more than counting so few tokens.
WORTH_PROCESSES = 1 << 20


class NgramCounts:
    """How often each n-gram of a corpus occurs; the tables stay on disk, memory-mapped."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.tokenizer: str = manifest["tokenizer"]
        self.corpus: str = manifest["corpus"]
        self.vocabulary: int = manifest["vocabulary"]
        self.totals: dict[int, int] = dict(zip(ORDERS, manifest["totals"], strict=True))
        self._keys: dict[int, Keys] = {}
        self._counts: dict[int, npt.NDArray[np.unsignedinteger[Any]]] = {}
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
                f"{str(folder)!r} does not hold complete n-gram statistics: {reason}",
                "check the path; to count again, remove the folder",
            ) from None

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
    where: str = "memory",
) -> NgramCounts:
    """The counts of all 1..4-grams of a corpus, counted on all cores unless they are there already.

    N-grams never cross documents and never contain a special token.

    Args:
        corpus: What to count; the result is stored beside it.
        tokenizer: The one that made the corpus.
        memory: The most bytes that all processes of a machine together allocate for it.
        workers: Processes; None means one per core, of all machines where a cluster is in use.
            Fewer are taken where memory is short.
        where: The setting, in GiB, that the memory comes from; named where it is too little.

    """
    folder = corpus.folder / "ngrams"
    building = corpus.folder / ".ngrams.building"
    if not folder.exists() or building.exists():
        with writing(folder), FileLock(corpus.folder / ".ngrams.lock"):
            if not folder.exists():
                tokens = int(corpus.lengths.sum(dtype=np.int64))
                share = _share(tokens, memory, workers or places(), where)
                tables = _Counting(corpus, tokenizer, share, building).run()
                tables.rename(folder)
            shutil.rmtree(building, ignore_errors=True)
    counts = NgramCounts.load(folder)
    assert counts.tokenizer == tokenizer.fingerprint, "the corpus was made by it"
    return counts


class _Counting:
    """One count, or what is left of it: spills, merged parts and finished tables in a folder."""

    def __init__(
        self,
        corpus: TokenisedCorpus,
        tokenizer: Tokenizer,
        share: tuple[int, int],
        building: Path,
    ) -> None:
        self.corpus, self.tokenizer, self.building = corpus, tokenizer, building
        self.tables = building / "tables"
        self.tokens = int(corpus.lengths.sum(dtype=np.int64))
        self.jobs, self.entries = share
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
                self._count(pending)
                self._merge(pending)
        let_go(self.jobs)
        for torn in self.tables.glob(".*.partial"):
            torn.unlink()
        self._describe()
        return self.tables

    def _finished(self, order: int) -> bool:
        return all(_table(self.tables, kind, order).is_file() for kind in ("keys", "counts"))

    def _spill(self, order: int, number: int) -> Path:
        return self.building / f"spill-{order}-{number:06d}"

    def _count(self, orders: list[int]) -> None:
        """Counts every piece by itself."""
        tasks = (
            (_count_piece, (
                piece, {order: self._spill(order, number) for order in orders},
                self.regular, self.tables, self.dtype,
            ))
            for number, piece in enumerate(self.pieces)
        )  # fmt: skip
        with Bar("count n-grams", self.tokens, unit="tokens") as bar:
            for done in in_parallel(tasks, self.jobs, self.building):
                bar.advance(done)

    def _merge(self, orders: list[int]) -> None:
        """Adds up the spills of each order; they are removed when its tables are whole."""
        numbers = range(len(self.pieces))
        spills = {o: [Spill.open(self._spill(o, n), self.dtype) for n in numbers] for o in orders}
        total = sum(spill.size for found in spills.values() for spill in found)
        with Bar("merge n-grams", total, unit="n-grams") as bar:
            for order, found in spills.items():
                cuts = cuts_of(found, self.entries, self.jobs)
                parts = [self.building / f"part-{order}-{n:06d}" for n in range(len(cuts) - 1)]
                tasks = (
                    (merge_range, (found, cuts[number], cuts[number + 1], part))
                    for number, part in enumerate(parts)
                )
                for done in in_parallel(tasks, self.jobs, self.building):
                    bar.advance(done)
                merged = [Spill.open(part, self.dtype) for part in parts]
                self._write_tables(order, merged)
                for spill in (*found, *merged):
                    spill.file.unlink()

    def _write_tables(self, order: int, merged: list[Spill]) -> None:
        shape = (sum(part.size for part in merged),)
        keys = (part.keys(0, part.size) for part in merged)
        write_array(_table(self.tables, "keys", order), keys, np.dtype("<u8"), shape)
        counts = (part.counts(0, part.size) for part in merged)
        write_array(_table(self.tables, "counts", order), counts, self.dtype, shape)

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


def _share(tokens: int, memory: int, workers: int, where: str) -> tuple[int, int]:
    """How many processes work, and how many tokens or entries each may hold at a time.

    `memory` is that of one machine; `where` says whose setting it is.

    To merge r spills, keys are sampled in proportion to r * r, so a process that holds n entries
    can merge the square root of n spills. Where memory is short, fewer processes share it.
    """
    jobs = workers if tokens > WORTH_PROCESSES else 1
    for processes in range(jobs, 0, -1):
        entries = max(0, memory * machines() - OWN_BYTES) // (processes * ENTRY_BYTES)
        if entries and entries**3 >= tokens**2:
            return processes, entries
    least = -(-(OWN_BYTES + ENTRY_BYTES * (int(tokens ** (2 / 3)) + 2)) // machines())
    enough = math.ceil(least * 1e4 / 2**30) / 1e4
    raise SettingsError(
        f"{where}: {memory / 2**30:.3g} GiB of memory ({memory:,} bytes) are too few to count the "
        f"n-grams of {tokens:,} tokens",
        f"set {where} to {enough:g} GiB ({least:,} bytes) or more; 1 GiB counts billions of tokens",
    )


def _count_piece(
    piece: Piece,
    spills: dict[int, Path],
    regular: npt.NDArray[np.bool_],
    tables: Path,
    dtype: CountType,
) -> int:
    """Writes the spills of one piece that are not there yet; returns its tokens."""
    missing = {order: file for order, file in spills.items() if not file.is_file()}
    if missing:
        bigrams = _table(tables, "keys", 2)
        numbered = np.load(bigrams, mmap_mode="r") if bigrams.is_file() else None
        coding = _Coding(len(regular), numbered)
        tokens, reach = read(piece, regular)
        for order, file in missing.items():
            keys = coding.encode(windows_of(tokens, order))[0][reach >= order]
            keys.sort()
            write_spill(file, keys, None, dtype)
    return sum(stop - start for _, start, stop in piece)


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
