"""Building a sparse field: rows are gathered first, then ordered and turned into lists.

Gathering is what takes long (the encoder), so every block of rows is recorded and survives a
crash. The rest reads the gathered rows in place, a block of documents at a time, and is simply
done again when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from isthmus.indexes.arrays import GrowingArray, flush, give_up, usable_cores
from isthmus.indexes.manifest import FieldCounts, Layout, SparseField
from isthmus.indexes.sparse import kernels
from isthmus.indexes.sparse.document_order import similar_first
from isthmus.indexes.sparse.lists import CELL, Block, Shape
from isthmus.indexes.sparse.quantisation import Rows, quantised
from isthmus.records import Document

BLOCK = 2**13
_LONG = 16  # a list is long when a document in so many is in it: masks take as much as offsets
_BYTE, _MOST_LEVELS = 255, 3
POSTINGS = 2**24  # in memory at a time
_GATHERED = {"lengths": np.dtype("<i4"), "terms": np.dtype("<i4")}
_SPILLED = "spilled-"  # what the names of files begin with that are gone in the end
_COUNTS = ("rows", "postings", "parts", "largest")


class SparseBuilder:
    """Takes rows of term weights, block by block; resumes from what earlier work recorded."""

    def __init__(
        self, folder: Path, about: SparseField, recorded: Mapping[str, int], block: int = BLOCK
    ) -> None:
        assert block % CELL == 0
        assert block < 2**16, "offsets, lengths and starts have 16 bits"
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._settings = about.settings
        self._vocabulary = about.dimension
        self._block = block
        self._kinds = _kinds(about)
        self._counts = {name: recorded.get(name, 0) for name in _COUNTS}
        self._streams = {name: self._open(name) for name in self._kinds}

    @property
    def rows(self) -> int:
        """Rows added so far."""
        return self._counts["rows"]

    def checked(self, documents: Sequence[Document], vectors: Any) -> Rows:
        """One block as it is stored; the documents or passages are for messages.

        `vectors` is any sparse matrix of scipy, a row per document and a column per term.
        """
        assert vectors.shape[0] == len(documents)
        names = [f"document {document.id!r}" for document in documents]
        terms = self._settings.terms
        return quantised(vectors, self._settings, self._vocabulary, names, terms)

    def append(self, rows: Rows) -> None:
        """Appends one block."""
        parts = {"lengths": np.diff(rows.starts), "terms": rows.terms, "weights": rows.weights}
        for name, part in parts.items():
            self._streams[name].write(part.astype(self._kinds[name]).data)
        whole = rows.weights.astype(np.int64)
        self._counts["rows"] += len(rows.starts) - 1
        self._counts["postings"] += len(rows.terms)
        self._counts["parts"] += int((-(-whole // _BYTE)).sum())
        self._counts["largest"] = max(self._counts["largest"], int(whole.max(initial=0)))

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        for stream in self._streams.values():
            flush(stream)
        return dict(self._counts)

    def finish(self) -> FieldCounts:
        """Completes the files of the field; what is known of its rows."""
        self.flush()
        self.close()
        return FieldCounts(layout=self._invert())

    def close(self) -> None:
        """Closes its files."""
        for stream in self._streams.values():
            give_up(stream)

    @staticmethod
    def is_whole(folder: Path, about: SparseField, recorded: Mapping[str, int]) -> bool:
        """Whether the files of earlier work hold all that was recorded."""
        kinds = _kinds(about)
        return recorded.keys() == {*_COUNTS} and all(
            (folder / _gathered(name)).is_file()
            and (folder / _gathered(name)).stat().st_size >= _size(name, kinds, recorded)
            for name in kinds
        )

    def _invert(self) -> Layout:
        vocabulary, threads = self._vocabulary, usable_cores()
        terms, weights = self._gathered("terms"), self._gathered("weights")
        row_starts = np.zeros(self.rows + 1, dtype=np.int64)
        np.cumsum(self._gathered("lengths"), out=row_starts[1:])
        order = similar_first(row_starts, terms, weights, vocabulary, threads)
        np.save(self._folder / "rows.npy", order.astype(np.uint32))
        layout = Layout(
            block=self._block, long_from=self._long_from(), postings=self._counts["postings"]
        )
        shape = Shape(self.rows, layout.block, layout.long_from)
        stored = np.empty(0, dtype=self._stored_kind())
        integer = self._settings.weights == "integer"
        largest = weights.dtype.type(np.iinfo(stored.dtype).max if integer else np.inf)
        levels = _MOST_LEVELS if stored.itemsize == 1 else 1

        def invert(first: int) -> Block:
            rows = order[first : first + self._block]
            return kernels.invert(
                rows, row_starts, terms, weights, shape, vocabulary, largest, levels, stored
            )

        with ThreadPoolExecutor(threads) as pool:
            blocks = _in_turn(pool, invert, range(0, self.rows, self._block), 2 * threads)
            self._sort(self._spill(blocks, stored.dtype))
        return layout

    def _spill(self, blocks: Iterator[Block], stored: np.dtype[Any]) -> list[Block]:
        """The blocks without their postings, which are written one block after the other."""
        kinds = {"offsets": np.dtype(np.uint16), "weights": stored, "masked_weights": stored}
        rest = []
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(
                    GrowingArray(self._folder / f"{_SPILLED}{name}.npy", kind)
                )
                for name, kind in kinds.items()
            }
            for block in blocks:
                for name, file in files.items():
                    file.append(getattr(block, name))
                rest.append(block._replace(**{name: f.nothing for name, f in files.items()}))
        return rest

    def _sort(self, blocks: Sequence[Block]) -> None:
        """Writes lists, postings and records in the order of terms, and of blocks within them."""
        assert len(blocks) <= 2**16, "numbers of blocks have 16 bits"
        terms = np.concatenate([block.terms for block in blocks])
        lengths = np.concatenate([block.lengths for block in blocks])
        numbers = np.repeat(np.arange(len(blocks)), [len(block.terms) for block in blocks])
        by_term = np.argsort(terms, kind="stable")
        long = lengths >= self._long_from()
        records = (np.cumsum(long) - 1)[by_term][long[by_term]]
        lists = {"list_blocks": numbers.astype(np.uint16), "list_lengths": lengths}
        lists["list_bounds"] = np.concatenate([block.bounds for block in blocks])
        short, masked = np.where(long, 0, lengths), np.where(long, lengths, 0)
        starts = {"lists": None, "postings": short, "records": long, "masked": masked}
        for name, array in lists.items():
            np.save(self._folder / f"{name}.npy", array[by_term])
        for name, counts in starts.items():
            per_term = np.bincount(terms, weights=counts, minlength=self._vocabulary)
            begins = np.concatenate([[0], np.cumsum(per_term, dtype=np.int64)])
            np.save(self._folder / f"term_{name}.npy", begins)
        for name in ("cell_bounds", "cell_masks", "cell_starts"):
            parts = np.concatenate([getattr(block, name) for block in blocks])
            np.save(self._folder / f"{name}.npy", parts[records])
        self._gather("offsets", short, by_term)
        self._gather("weights", short, by_term)
        self._gather("masked_weights", masked, by_term)

    def _gather(self, name: str, lengths: Any, by_term: Any) -> None:
        """Writes what was spilled, in the order of terms."""
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        ends = np.cumsum(lengths[by_term], dtype=np.int64)
        cuts = np.searchsorted(ends, np.arange(POSTINGS, int(lengths.sum()), POSTINGS))
        # Every block is read from its beginning to its end, so that few pages are in use.
        spilled = np.load(self._folder / f"{_SPILLED}{name}.npy", mmap_mode="r")
        with GrowingArray(self._folder / f"{name}.npy", spilled.dtype) as sorted_:
            for part in np.split(by_term, cuts):
                values = kernels.gather(np.asarray(spilled), starts[part], lengths[part])
                sorted_.append(values)

    def _long_from(self) -> int:
        # Bounds of rounded sums must be added in the order of the sums, so floats go without.
        return self._block // _LONG if self._settings.weights == "integer" else 2**17

    def _stored_kind(self) -> Any:
        """Weights of one byte where that is smaller, although larger ones take several."""
        if self._settings.weights == "float":
            return np.float32
        few_parts = 3 * self._counts["parts"] <= 4 * self._counts["postings"]
        fits = self._counts["largest"] <= _BYTE * _MOST_LEVELS
        return np.uint8 if few_parts and fits else "<u2"

    def _gathered(self, name: str) -> Any:
        # An empty file cannot be mapped.
        file = self._folder / _gathered(name)
        if not file.stat().st_size:
            return np.empty(0, dtype=self._kinds[name])
        return np.asarray(np.memmap(file, dtype=self._kinds[name], mode="r"))

    def _open(self, name: str) -> BinaryIO:
        stream = (self._folder / _gathered(name)).open("r+b" if self.rows else "wb")
        stream.truncate(_size(name, self._kinds, self._counts))
        stream.seek(0, 2)
        return stream


def _kinds(about: SparseField) -> dict[str, np.dtype[Any]]:
    """The types of what is gathered of each row."""
    return {
        **_GATHERED,
        "weights": np.dtype("<u2" if about.settings.weights == "integer" else "<f4"),
    }


def _gathered(name: str) -> str:
    """The file in which something is gathered, which is gone in the end."""
    return f"{name}.gathered"


def _size(name: str, kinds: Mapping[str, np.dtype[Any]], counts: Mapping[str, int]) -> int:
    return counts["rows" if name == "lengths" else "postings"] * kinds[name].itemsize


def _in_turn(
    pool: ThreadPoolExecutor, function: Any, items: Sequence[int], ahead: int
) -> Iterator[Any]:
    """Results of a function in order, of which at most `ahead` wait in memory."""
    waiting = [pool.submit(function, item) for item in items[:ahead]]
    for item in [*items[ahead:], *[None] * min(ahead, len(items))]:
        yield waiting.pop(0).result()
        if item is not None:
            waiting.append(pool.submit(function, item))
