"""Building an inverted index: rows are gathered first, then ordered and turned into lists.

Gathering is what takes long (the encoder), so every block of rows is recorded and survives a
crash. The rest reads the gathered rows in place, a block of documents at a time, and is simply
done again when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from isthmus.config.output import writing
from isthmus.indexes.arrays import GrowingArray, flush, give_up, usable_cores
from isthmus.indexes.construction import (
    VectorBuilder,
    complete,
    document_writer,
    read_progress,
    record_progress,
    refuse_empty,
    start_anew,
)
from isthmus.indexes.inverted import kernels
from isthmus.indexes.inverted.document_order import similar_first
from isthmus.indexes.inverted.forward import weighed_rows
from isthmus.indexes.inverted.lists import CELL, Block, Shape
from isthmus.indexes.inverted.quantisation import quantised
from isthmus.indexes.manifest import Description, Layout, workplace
from isthmus.records import Document

BLOCK = 2**13
_LONG = 16  # a list is long when a document in so many is in it: masks take as much as offsets
_BYTE, _MOST_LEVELS = 255, 3
POSTINGS = 2**24  # in memory at a time
_GATHERED = {"lengths": np.dtype("<i4"), "terms": np.dtype("<i4")}


class InvertedBuilder(VectorBuilder):
    """Takes documents with rows of term weights and makes an inverted index of them."""

    def __init__(self, folder: Path, description: Description, block: int = BLOCK) -> None:
        assert description.dimension is not None
        assert description.inverted is not None
        assert block % CELL == 0
        assert block < 2**16, "offsets, lengths and starts have 16 bits"
        self._folder = folder
        self._description = description
        self._settings = description.inverted
        self._vocabulary = description.dimension
        self._block = block
        kind = "<u2" if self._settings.weights == "integer" else "<f4"
        self._kinds = {**_GATHERED, "weights": np.dtype(kind)}
        with writing(folder), ExitStack() as stack:
            self._counts, offset = self._resume()
            self._index = workplace(folder) / "index"
            self._documents = stack.enter_context(document_writer(folder, description, offset))
            self._streams = {name: self._open(name) for name in self._kinds}
            for stream in self._streams.values():
                stack.callback(give_up, stream)
            self._open_files = stack.pop_all()

    @property
    def rows(self) -> int:
        """Documents that are recorded."""
        return self._counts["rows"]

    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Appends one block and records it; once this returns, no crash can undo it.

        `vectors` is any sparse matrix of scipy, a row per document and a column per term.
        """
        assert vectors.shape[0] == len(documents)
        names = [f"document {document.id!r}" for document in documents]
        terms = self._settings.terms
        rows = quantised(vectors, self._settings, self._vocabulary, names, terms)
        parts = {"lengths": np.diff(rows.starts), "terms": rows.terms, "weights": rows.weights}
        with writing(self._folder):
            self._documents.add(documents)
            for name, part in parts.items():
                self._streams[name].write(part.astype(self._kinds[name]).data)
                flush(self._streams[name])
            offset = self._documents.flush()
            whole = rows.weights.astype(np.int64)
            self._counts["rows"] += len(documents)
            self._counts["postings"] += len(rows.terms)
            self._counts["parts"] += int((-(-whole // _BYTE)).sum())
            self._counts["largest"] = max(self._counts["largest"], int(whole.max(initial=0)))
            record_progress(self._folder, self._description, {**self._counts, "offset": offset})

    def stored_vectors(self, folder: Path) -> Iterator[Any]:
        """All rows of a finished segment, read back from its lists."""
        return weighed_rows(folder)

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what was asked for."""
        refuse_empty(self.rows, self._description)
        with writing(self._folder):
            self._documents.finish()
            for stream in self._streams.values():
                stream.close()
            layout = self._invert()
            return complete(self._folder, self._description, request, self.rows, layout=layout)

    def _invert(self) -> Layout:
        vocabulary, threads = self._vocabulary, usable_cores()
        terms, weights = self._gathered("terms"), self._gathered("weights")
        row_starts = np.zeros(self.rows + 1, dtype=np.int64)
        np.cumsum(self._gathered("lengths"), out=row_starts[1:])
        order = similar_first(row_starts, terms, weights, vocabulary, threads)
        np.save(self._index / "rows.npy", order.astype(np.uint32))
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
        place = workplace(self._folder)
        kinds = {"offsets": np.dtype(np.uint16), "weights": stored, "masked_weights": stored}
        rest = []
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(GrowingArray(place / f"{name}.npy", kind))
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
            np.save(self._index / f"{name}.npy", array[by_term])
        for name, counts in starts.items():
            per_term = np.bincount(terms, weights=counts, minlength=self._vocabulary)
            begins = np.concatenate([[0], np.cumsum(per_term, dtype=np.int64)])
            np.save(self._index / f"term_{name}.npy", begins)
        for name in ("cell_bounds", "cell_masks", "cell_starts"):
            parts = np.concatenate([getattr(block, name) for block in blocks])
            np.save(self._index / f"{name}.npy", parts[records])
        self._gather("offsets", short, by_term)
        self._gather("weights", short, by_term)
        self._gather("masked_weights", masked, by_term)

    def _gather(self, name: str, lengths: Any, by_term: Any) -> None:
        """Writes what was spilled, in the order of terms."""
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        ends = np.cumsum(lengths[by_term], dtype=np.int64)
        cuts = np.searchsorted(ends, np.arange(POSTINGS, int(lengths.sum()), POSTINGS))
        # Every block is read from its beginning to its end, so that few pages are in use.
        spilled = np.load(workplace(self._folder) / f"{name}.npy", mmap_mode="r")
        with GrowingArray(self._index / f"{name}.npy", spilled.dtype) as sorted_:
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
        file = workplace(self._folder) / name
        if not file.stat().st_size:
            return np.empty(0, dtype=self._kinds[name])
        return np.asarray(np.memmap(file, dtype=self._kinds[name], mode="r"))

    def _open(self, name: str) -> BinaryIO:
        stream = (workplace(self._folder) / name).open("r+b" if self.rows else "wb")
        stream.truncate(self._size(name, self._counts))
        stream.seek(0, 2)
        return stream

    def _size(self, name: str, counts: Mapping[str, int]) -> int:
        return counts["rows" if name == "lengths" else "postings"] * self._kinds[name].itemsize

    def _resume(self) -> tuple[dict[str, int], int]:
        none = {"rows": 0, "postings": 0, "parts": 0, "largest": 0}
        progress = read_progress(self._folder, self._description, none)
        place = workplace(self._folder)
        if progress is not None and all(
            (place / name).is_file() and (place / name).stat().st_size >= self._size(name, progress)
            for name in self._kinds
        ):
            return progress, progress.pop("offset")
        start_anew(self._folder)
        return none, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.close()


def _in_turn(
    pool: ThreadPoolExecutor, function: Any, items: Sequence[int], ahead: int
) -> Iterator[Any]:
    """Results of a function in order, of which at most `ahead` wait in memory."""
    waiting = [pool.submit(function, item) for item in items[:ahead]]
    for item in [*items[ahead:], *[None] * min(ahead, len(items))]:
        yield waiting.pop(0).result()
        if item is not None:
            waiting.append(pool.submit(function, item))
