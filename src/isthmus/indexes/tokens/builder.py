"""Building a field of token vectors, block by block, and its rows read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from isthmus.errors import InputError
from isthmus.indexes.arrays import ResumedArray, mapped, write_array
from isthmus.indexes.manifest import FieldCounts, TokensField
from isthmus.indexes.ragged import Ragged, TokenVectors
from isthmus.indexes.tokens.codes import StoredTokens, code_bytes, compressed
from isthmus.indexes.tokens.field import (
    CODES,
    HOLDING,
    PIECE_STARTS,
    PIECES,
    SCALES,
    STARTS,
)
from isthmus.indexes.vectors import Rows
from isthmus.records import Document


class TokensBuilder:
    """Takes the token vectors of rows, block by block; resumes from what earlier work recorded."""

    def __init__(self, folder: Path, about: TokensField, recorded: Mapping[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._about = about
        counts = {name: recorded.get(name, 0) for name in ("rows", "vectors", "pieces")}
        self.rows = counts["rows"]
        self._files = {
            name: ResumedArray(folder / name, dtype, counts[of], *width)
            for name, (dtype, of, width) in _arrays(about).items()
        }

    def checked(
        self, documents: Sequence[Document], vectors: TokenVectors | StoredTokens
    ) -> StoredTokens:
        """One block as it is stored; the documents or passages are for messages."""
        if isinstance(vectors, StoredTokens):
            return vectors
        assert len(vectors) == len(documents)
        given = vectors.vectors
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.flatnonzero(~np.isfinite(given.values.sum(axis=1, dtype=np.float32)))
        if len(wrong):
            row = int(np.searchsorted(given.starts, wrong[0], side="right")) - 1
            raise InputError(
                f"the token vectors of document {documents[row].id!r} (number "
                f"{self.rows + row + 1:,} of the corpus) are not finite",
                "check the encoder: its training may have diverged",
            )
        if not self._about.settings.stored:
            nothing = np.empty((0, given.values.shape[1]), dtype=np.float32)
            given = Ragged(nothing, np.zeros_like(given.starts))
        return compressed(self._about, TokenVectors(given, vectors.pieces))

    def append(self, block: StoredTokens) -> None:
        """Appends one block."""
        files = self._files
        files[PIECE_STARTS].append(block.pieces.starts[:-1] + files[PIECES].rows)
        files[PIECES].append(block.pieces.values.astype(np.uint32))
        files[STARTS].append(block.starts[:-1] + files[CODES].rows)
        files[CODES].append(block.codes)
        files[SCALES].append(block.scales)
        self.rows += len(block.pieces)

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        for file in self._files.values():
            file.flush()
        return {
            "rows": self.rows,
            "vectors": self._files[CODES].rows,
            "pieces": self._files[PIECES].rows,
        }

    def finish(self) -> FieldCounts:
        """Completes the files of the field; what is known of its rows."""
        vectors = self._files[CODES].rows
        for name, last in ((PIECE_STARTS, self._files[PIECES].rows), (STARTS, vectors)):
            self._files[name].append(np.array([last], dtype=np.int64))
        for file in self._files.values():
            file.close()
        pieces = mapped(self._folder / PIECES, self._folder)
        write_array(self._folder / HOLDING, np.bincount(pieces).astype(np.int64))
        return FieldCounts(vectors=vectors)

    def close(self) -> None:
        """Closes its files."""
        for file in self._files.values():
            file.give_up()

    @staticmethod
    def is_whole(folder: Path, about: TokensField, recorded: Mapping[str, int]) -> bool:
        """Whether the files of earlier work hold all that was recorded."""
        if recorded.keys() != {"rows", "vectors", "pieces"}:
            return False
        return all(
            ResumedArray.holds(folder / name, dtype, recorded[of], *width)
            for name, (dtype, of, width) in _arrays(about).items()
        )


class TokenRows:
    """The token vectors of a segment once more, as they are stored."""

    def __init__(self, folder: Path) -> None:
        codes, scales, starts, pieces, piece_starts = (
            mapped(folder / name, folder) for name in (CODES, SCALES, STARTS, PIECES, PIECE_STARTS)
        )
        self._codes, self._scales = Ragged(codes, starts), scales
        self._pieces = Ragged(pieces, piece_starts)

    def take(self, rows: Rows) -> StoredTokens:
        """The vectors and pieces of these rows."""
        places, starts = self._codes.places(rows)
        codes = self._codes.values[places]
        return StoredTokens(codes, self._scales[places], starts, self._pieces[rows])


def _arrays(about: TokensField) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """The type of each array that grows, what its rows are counted with, and their width."""
    width = code_bytes(about.dimension, about.bits)
    return {
        CODES: ("u1", "vectors", (width,)),
        SCALES: ("<f2", "vectors", ()),
        STARTS: ("<i8", "rows", ()),
        PIECES: ("<u4", "pieces", ()),
        PIECE_STARTS: ("<i8", "rows", ()),
    }
