"""The tokenised corpus on disk: Arrow blocks, memory-mapped, made once and reused.

The folder is named after a fingerprint of everything that determines its content, so a folder
that is complete is always right, and one that is not can be finished by any later run: a
block is written beside its name and renamed, the manifest comes last.
"""

from __future__ import annotations

import json
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from filelock import FileLock
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from tokenizers import Tokenizer as FastTokenizer

from isthmus.cluster import Result, Task, current
from isthmus.config.cache import cache_folder
from isthmus.config.output import write_json, writing
from isthmus.progress import Bar
from isthmus.records import Document
from isthmus.text.sentences import sentence_starts

_FORMAT = 2
_MANIFEST = "manifest.json"
BLOCK_DOCUMENTS = 4096
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenisedDocument:
    """One document's tokens without special ones, the word of each, and where sentences begin."""

    id: str
    tokens: Ints
    words: Ints
    sentences: Ints


class _Lists:
    """A column of lists as two arrays; reading one list at a time from Arrow takes far longer."""

    def __init__(self, column: pa.ListArray) -> None:
        self.values: Ints = column.values.to_numpy()
        self.offsets: Ints = column.offsets.to_numpy()

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


class _Block:
    """The columns of one file, memory-mapped: only what is used is read."""

    def __init__(self, file: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        assert reader.num_record_batches == 1, "a block is written as one batch"
        batch = reader.get_batch(0)
        self.ids: pa.StringArray = batch["id"]
        self.tokens, self.words, self.sentences = (
            _Lists(batch[name]) for name in ("tokens", "words", "sentences")
        )


class TokenisedCorpus:
    """Random access to tokenised documents, without loading them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        self.fingerprint: str = manifest["fingerprint"]
        self.files = [folder / name for name in manifest["blocks"]]
        self._blocks = [_Block(file) for file in self.files]
        counts = accumulate((len(block.ids) for block in self._blocks), initial=0)
        self._starts = list(counts)
        self.lengths: Ints = np.concatenate(
            [np.diff(block.tokens.offsets) for block in self._blocks]
        ).astype(np.int32)

    def __reduce__(self) -> tuple[type[TokenisedCorpus], tuple[Path]]:
        """Pickles the folder's name alone: another process opens the files itself."""
        return TokenisedCorpus, (self.folder,)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> TokenisedDocument:
        block, inner = self._place(row)
        return TokenisedDocument(
            id=block.ids[inner].as_py(),
            tokens=block.tokens[inner],
            words=block.words[inner],
            sentences=block.sentences[inner],
        )

    def tokens(self, row: int) -> Ints:
        """The tokens of a document alone, several times faster than all of its columns."""
        block, inner = self._place(row)
        return block.tokens[inner]

    def blocks(self) -> Iterator[tuple[Ints, Ints]]:
        """All tokens of each block, and where each document begins and the last one ends."""
        return ((block.tokens.values, block.tokens.offsets) for block in self._blocks)

    def _place(self, row: int) -> tuple[_Block, int]:
        if not 0 <= row < len(self):
            raise IndexError(row)
        number = bisect_right(self._starts, row) - 1
        return self._blocks[number], row - self._starts[number]

    def __iter__(self) -> Iterator[TokenisedDocument]:
        return (self[row] for row in range(len(self)))

    def remember(self, problems: str) -> str:
        """A summary of what was skipped when the corpus was tokenised, now or by an earlier run.

        A corpus that is there already is not read again, but nothing must be lost in silence.
        """
        file = self.folder / "problems.txt"
        if problems:
            file.write_text(problems, encoding="utf-8")
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """A number per document, equal for documents of equal tokens."""
        digests = (xxhash.xxh3_64_intdigest(document.tokens.tobytes()) for document in self)
        return np.fromiter(digests, dtype=np.uint64, count=len(self)).view(np.int64)

    def row_of_id(self) -> dict[str, int]:
        """The row of every document id."""
        ids = chain.from_iterable(block.ids.to_pylist() for block in self._blocks)
        return {document: row for row, document in enumerate(ids)}


def tokenise(
    documents: Iterable[Document],
    source: str,
    tokenizer: str,
    titles: bool = True,
    prompt: str = "",
    workers: int | None = None,
    cache: Path | None = None,
) -> TokenisedCorpus:
    """The tokenised form of a corpus, built on all cores unless it is there already.

    Where a cluster is in use, on its cores; `cache` must then be a folder that its machines share.

    Args:
        documents: Read only when there is something to build; never held in memory as a whole.
        source: The corpus's own fingerprint.
        tokenizer: A fast tokenizer, serialised.
        titles: Whether titles are part of the text.
        prompt: Put before every text.
        workers: Processes; None means one per core.
        cache: The folder of all tokenised corpora; `cache_folder()` when None.

    """
    identity = [str(_FORMAT), source, tokenizer, str(titles), *filter(None, [prompt])]
    fingerprint = xxhash.xxh3_128_hexdigest("\0".join(identity).encode())
    folder = (cache or cache_folder()).absolute() / "tokenised" / fingerprint
    if not (folder / _MANIFEST).is_file():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Runs that are started together wait for the first of them.
            with FileLock(folder / ".tokens.lock"):
                if not (folder / _MANIFEST).is_file():
                    names = _build(_blocks(documents, titles, prompt), folder, tokenizer, workers)
                    write_json(folder / _MANIFEST, {"fingerprint": fingerprint, "blocks": names})
    return TokenisedCorpus(folder)


def _build(
    blocks: Iterator[tuple[list[str], list[str]]], folder: Path, tokenizer: str, workers: int | None
) -> list[str]:
    first = list(islice(blocks, 2))
    # Starting processes costs more than one block is worth.
    jobs = 1 if len(first) < 2 else workers or places()
    names = []
    tasks = (
        (_write_block, (folder / f"block-{number:06d}.arrow", ids, texts, tokenizer))
        for number, (ids, texts) in enumerate(chain(first, blocks))
    )
    with Bar("tokenise", unit="documents") as bar:
        for name, count in in_parallel(tasks, jobs, folder):
            names.append(name)
            bar.advance(count)
    let_go(jobs)
    for torn in folder.glob(".block-*.partial"):
        torn.unlink(missing_ok=True)
    return names


def _blocks(
    documents: Iterable[Document], titles: bool, prompt: str
) -> Iterator[tuple[list[str], list[str]]]:
    stream = iter(documents)
    while block := list(islice(stream, BLOCK_DOCUMENTS)):
        texts = [prompt + document.contents(titles) for document in block]
        yield [document.id for document in block], texts


def _write_block(file: Path, ids: list[str], texts: list[str], tokenizer: str) -> tuple[str, int]:
    if file.is_file():  # an earlier, interrupted build came this far
        return file.name, len(ids)
    encodings = _backend(tokenizer).encode_batch(texts, add_special_tokens=False)
    tokens, words, sentences = [], [], []
    for text, encoding in zip(texts, encodings, strict=True):
        tokens.append(encoding.ids)
        words.append([-1 if word is None else word for word in encoding.word_ids])
        # By where tokens end: the space before a word is part of its token in some vocabularies.
        ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
        starts = np.searchsorted(ends, sentence_starts(text), side="right")
        sentences.append(np.unique(starts[starts < len(ends)]).astype(np.int32))
    ints = pa.list_(pa.int32())
    table = pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "tokens": pa.array(tokens, ints),
            "words": pa.array(words, ints),
            "sentences": pa.array(sentences, ints),
        }
    ).combine_chunks()
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    partial.replace(file)
    return file.name, len(ids)


@lru_cache(maxsize=1)
def _backend(serialised: str) -> FastTokenizer:
    tokenizer = FastTokenizer.from_str(serialised)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def places() -> int:
    """How many tasks can run at a time."""
    cluster = current()
    return (os.cpu_count() or 1) if cluster is None else cluster.places()


def in_parallel(tasks: Iterable[Task[Result]], jobs: int, folder: Path) -> Iterator[Result]:
    """The results of functions with their arguments, in order, few of them waiting.

    One job is done here, by this process. What tasks write, they write into `folder`.
    """
    cluster = current()
    if cluster is not None and jobs > 1:
        yield from cluster.map(tasks, folder)
        return
    pool = Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="2*n_jobs", batch_size=1)
    results: Any = pool(delayed(function)(*arguments) for function, arguments in tasks)
    yield from results


def let_go(jobs: int) -> None:
    """Ends the processes that `in_parallel` keeps: idle, they would hold memory for minutes."""
    if jobs > 1 and current() is None:
        get_reusable_executor().shutdown()
