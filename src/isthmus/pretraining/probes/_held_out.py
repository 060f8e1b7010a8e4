"""Documents kept out of training, and what probes need of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.encoder import pad
from isthmus.errors import InputError
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.probes._base import HeldOut, trained_vector
from isthmus.pretraining.probes.coverage import frequent_tokens
from isthmus.pretraining.probes.retrieval import RetrievalSettings
from isthmus.pretraining.randomness import key
from isthmus.pretraining.settings import ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_BATCH = 64
FEWEST = 20  # fewer documents measure nothing
_FREQUENCY_DOCUMENTS = 20_000
_SHORTEST_QUERY = 4
# Training counts its epochs from 0, so nothing that it draws is drawn here.
_EPOCH = 2**31
Rows = npt.NDArray[np.int64]


def split(corpus: TokenisedCorpus, settings: ProbeSettings, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on and those held out; copies of a held-out document are in neither."""
    everything = np.arange(len(corpus))
    if min(settings.documents, len(corpus) // 20) < FEWEST:
        return everything, everything[:0]
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(corpus.lengths >= 2))
    keys = corpus.keys
    _, first = np.unique(keys[order], return_index=True)
    # Of different documents: where most are copies, a twentieth of the rows may be all there is.
    count = min(settings.documents, len(first) // 20)
    if count < FEWEST:
        return everything, everything[:0]
    held_out = np.sort(order[np.sort(first)[:count]])
    return everything[~np.isin(keys, keys[held_out])], held_out


def prepare_held_out(
    examples: PretrainExamples,
    held_out: Rows,
    documents: Iterable[Document],
    task: PretrainTask,
    settings: ProbeSettings,
) -> HeldOut:
    """Batches of the held-out documents, of like lengths, and queries made from them."""
    corpus, room, tokenizer = examples.corpus, examples.room, task.tokenizer
    held_out = held_out[np.argsort(corpus.lengths[held_out], kind="stable")]
    frame = _Frame(tokenizer, room)
    texts = [corpus[row].tokens.tolist() for row in held_out]
    steps = PretrainExamples(
        corpus,
        examples.view,
        tokenizer,
        room + frame.size,
        examples.seed,
        examples.columns,
        held_out,
    )
    queries, passages, groups = _queries(
        corpus, held_out, documents, frame, settings, examples.seed
    )
    return HeldOut(
        vector=trained_vector(task.parts) if settings.vector == "auto" else settings.vector,
        texts=frame.batches(texts),
        steps=[
            steps.collate([steps[_EPOCH, index] for index in block])
            for block in _blocks(len(held_out))
        ],
        queries=frame.batches(queries),
        passages=frame.batches(passages),
        group_of_query=groups,
        group_of_passage=groups,
        frequent=_frequent(corpus, examples.rows, task.vocabulary),
    )


class _Frame:
    """Special tokens around token ids, and padding to batches."""

    def __init__(self, tokenizer: Tokenizer, room: int) -> None:
        self.tokenizer = tokenizer
        self.room = room
        self.size = len(tokenizer.prefix) + len(tokenizer.suffix)

    def batches(self, rows: Sequence[Sequence[int]]) -> list[Batch]:
        """In the order given; the keys that draw masks follow the place."""
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        made = []
        for block in _blocks(len(rows)):
            framed = [[*prefix, *rows[index][: self.room], *suffix] for index in block]
            ids, mask = pad(framed, self.tokenizer.pad_id)
            keys = torch.tensor([key(0, _EPOCH, index) for index in block])
            made.append({"input_ids": ids, "attention_mask": mask, "keys": keys})
        return made


def _blocks(count: int) -> list[range]:
    blocks = [range(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:  # alone, a row would be shuffled to itself
        last = blocks.pop()
        blocks[-1] = range(blocks[-1].start, last.stop)
    return blocks


def _queries(
    corpus: TokenisedCorpus,
    held_out: Rows,
    documents: Iterable[Document],
    frame: _Frame,
    settings: ProbeSettings,
    seed: int,
) -> tuple[list[list[int]], list[list[int]], Tensor]:
    """Queries, passages, and the group of each pair: equal titles are one group."""
    wanted = RetrievalSettings.parse(settings.measure.get("retrieval", {}), "probes.measure")
    if wanted.query != "sentence":
        titled = _titled({corpus[row].id for row in held_out}, documents)
        if wanted.query == "title" or 2 * len(titled) >= len(held_out):
            backend = frame.tokenizer.backend
            titles = [title for title, _ in titled]
            if not titles:
                raise _no_query("no titles", "probes.measure.retrieval.query")
            encoded = [
                [row.ids for row in backend.encode_batch_fast(side, add_special_tokens=False)]
                for side in (titles, [text for _, text in titled])
            ]
            number = {title: group for group, title in enumerate(dict.fromkeys(titles))}
            return encoded[0], encoded[1], torch.tensor([number[title] for title in titles])
    queries, passages = [], []
    for row in held_out:
        document = corpus[row]
        tokens = document.tokens[: frame.room].tolist()
        edges = [0, *(s for s in document.sentences.tolist() if 0 < s < len(tokens)), len(tokens)]
        spans = [
            (start, end)
            for start, end in pairwise(edges)
            if end - start >= _SHORTEST_QUERY and len(tokens) - (end - start) >= _SHORTEST_QUERY
        ]
        if spans:
            start, end = spans[key(seed, _EPOCH, int(row)) % len(spans)]
            queries.append(tokens[start:end])
            passages.append(tokens[:start] + tokens[end:])
    if not queries and settings.best_by == "retrieval":
        raise _no_query("neither titles nor passages of two sentences", "probes.best_by")
    return queries, passages, torch.arange(len(queries))


def _no_query(missing: str, where: str) -> InputError:
    return InputError(
        f"nothing can play the query of the retrieval probe: the held-out documents have {missing}",
        where=where,
        allowed="documents with titles, or of at least two sentences of a few words each",
        remedy="--set probes.best_by=masked_lm, or leave the retrieval probe out of probes.measure",
    )


def _titled(ids: set[str], documents: Iterable[Document]) -> list[tuple[str, str]]:
    found = []
    left = set(ids)
    for document in documents:
        if document.id in left:
            left.discard(document.id)
            if document.title.strip() and document.text.strip():
                found.append((document.title, document.text))
        if not left:
            break
    return found


def _frequent(corpus: TokenisedCorpus, rows: Rows, vocabulary: Vocabulary) -> Tensor:
    sample = rows[:: max(1, len(rows) // _FREQUENCY_DOCUMENTS)]
    sets = [np.unique(corpus[row].tokens) for row in sample]
    ids = torch.from_numpy(np.concatenate(sets).astype(np.int64))
    return frequent_tokens(ids, vocabulary.special.cpu())
