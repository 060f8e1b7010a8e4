"""Pointwise mutual information of the n-grams of a corpus, one row per token, beside the corpus."""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.progress import Bar
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.ngrams import NgramCounts
from isthmus.text.parallel import in_parallel, let_go, places
from isthmus.text.spills import write_array, write_whole
from isthmus.text.tokenizer import Tokenizer
from isthmus.text.windows import ORDERS, Piece, cut, read, regular_tokens, windows_of

PIECE_TOKENS = 1 << 18  # some tens of megabytes in each process
_COLUMNS = len(ORDERS) - 1
Values = npt.NDArray[np.float32]


class PmiColumn:
    """PMI of the 2-, 3- and 4-gram that starts at each token of each document, memory-mapped."""

    def __init__(self, values: Values, lengths: npt.NDArray[np.integer[Any]]) -> None:
        self.values = values
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Values:
        """[tokens of the document, 3]; 0 where unseen or rare, NaN where there is no n-gram."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self._starts[row] : self._starts[row + 1]]


def pmi_column(
    corpus: TokenisedCorpus, counts: NgramCounts, tokenizer: Tokenizer, minimum_count: int
) -> PmiColumn:
    """The PMI of every n-gram of a corpus, computed on all cores unless it is there already.

    PMI(w1..wn) = log p(w1..wn) - sum of log p(wk), each p relative to all n-grams of its order
    in `counts`, which may be those of another corpus; 0 for an n-gram that is not there or counted
    less than `minimum_count` times. An n-gram that would cross the end of its document or contain
    a special token does not exist.
    """
    assert counts.tokenizer == tokenizer.fingerprint, "n-grams are of its ids"
    file = corpus.folder / f"pmi-{counts.corpus}-{minimum_count}.npy"
    building = corpus.folder / f".{file.name}.building"
    shape = (int(corpus.lengths.sum(dtype=np.int64)), _COLUMNS)
    if not file.is_file() or building.exists():
        with writing(file), FileLock(corpus.folder / ".pmi.lock"):
            if not file.is_file():
                building.mkdir(exist_ok=True)
                parts = _compute(corpus, counts, regular_tokens(tokenizer), minimum_count, building)
                arrays = (np.fromfile(part, "<f4") for part in parts)
                write_array(building / "values.npy", arrays, np.dtype("<f4"), shape)
                (building / "values.npy").rename(file)
            shutil.rmtree(building, ignore_errors=True)
    return PmiColumn(_load(file, shape), corpus.lengths)


def _load(file: Path, shape: tuple[int, ...]) -> Values:
    try:
        values: Values = np.load(file, mmap_mode="r")
        if values.shape != shape:
            raise ValueError(f"their shape is {values.shape}, not {shape}")
    except (ValueError, EOFError) as error:
        raise InputError(
            f"{str(file)!r} is damaged: {error}",
            "remove the file: it is computed again",
        ) from None
    return values


def _compute(
    corpus: TokenisedCorpus,
    counts: NgramCounts,
    regular: npt.NDArray[np.bool_],
    minimum_count: int,
    building: Path,
) -> list[Path]:
    pieces = list(cut(corpus, PIECE_TOKENS))
    parts = [building / f"part-{PIECE_TOKENS}-{number:06d}" for number in range(len(pieces))]
    jobs = 1 if len(pieces) < 2 else places()
    tasks = (
        (_write_part, (part, piece, counts.folder.absolute(), regular, minimum_count))
        for part, piece in zip(parts, pieces, strict=True)
    )
    tokens = int(corpus.lengths.sum(dtype=np.int64))
    with Bar("weigh n-grams", tokens, unit="tokens") as bar:
        for done in in_parallel(tasks, jobs, building):
            bar.advance(done)
    let_go(jobs)
    return parts


def _write_part(
    part: Path,
    piece: Piece,
    statistics: Path,
    regular: npt.NDArray[np.bool_],
    minimum_count: int,
) -> int:
    if not part.is_file():  # an earlier, interrupted call came this far
        write_whole(part, _pmi(piece, _counts(statistics), regular, minimum_count).tofile)
    return sum(stop - start for _, start, stop in piece)


def _pmi(
    piece: Piece, counts: NgramCounts, regular: npt.NDArray[np.bool_], minimum_count: int
) -> Values:
    tokens, reach = read(piece, regular)
    values = np.full((len(reach), _COLUMNS), np.nan, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 of what is unseen, replaced by 0
        single = np.log(counts.count(1, tokens[:, None])) - np.log(counts.totals[1])
        for order in ORDERS[1:]:
            exists = reach >= order
            counted = counts.count(order, windows_of(tokens, order)[exists])
            information = np.log(counted) - np.log(counts.totals[order])
            for place in range(order):
                information -= single[place : place + len(reach)][exists]
            enough = counted >= max(1, minimum_count)
            values[exists, order - 2] = np.where(enough, information, 0)
    return values


@lru_cache(maxsize=1)
def _counts(folder: Path) -> NgramCounts:
    return NgramCounts.load(folder)
