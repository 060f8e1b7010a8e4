"""Documents kept out of training, on which probes measure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.encoder import pad
from isthmus.nn.randomness import key
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.parts import Vector
from isthmus.pretraining.settings import MeasurementSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_BATCH = 64
FEWEST = 20  # fewer documents measure nothing
# Training counts its epochs from 0, so nothing that it draws is drawn here.
EPOCH = 2**31
Rows = npt.NDArray[np.int64]


class Frame:
    """Special tokens around token ids, and padding to batches."""

    def __init__(self, tokenizer: Tokenizer, room: int) -> None:
        self.tokenizer = tokenizer
        self.room = room
        self.size = len(tokenizer.prefix) + len(tokenizer.suffix)

    def batches(self, rows: Sequence[Sequence[int]]) -> list[Batch]:
        """Batches in the order given; the keys that draw masks follow the place."""
        prefix, suffix = self.tokenizer.prefix, self.tokenizer.suffix
        made = []
        for block in _blocks(len(rows)):
            framed = [[*prefix, *rows[index][: self.room], *suffix] for index in block]
            ids, mask = pad(framed, self.tokenizer.pad_id)
            keys = torch.tensor([key(0, EPOCH, index) for index in block])
            made.append({"input_ids": ids, "attention_mask": mask, "keys": keys})
        return made


@dataclass(frozen=True)
class HeldOut:
    """Documents that training never sees, ready to be measured."""

    vector: Vector  # what stands for a text
    texts: list[Batch]  # each document, cropped, unmasked
    steps: list[Batch]  # what the recipe's own view shows of them
    rows: Rows  # of the corpus, in the order of `texts`
    documents: Iterable[Document]  # the whole corpus, with titles; to be read once
    examples: PretrainExamples  # what training sees
    frame: Frame
    logits: list[Tensor] = field(default_factory=list)  # of `texts`, kept for one evaluation

    def forget(self) -> None:
        """Drops what was computed with weights that have changed since."""
        self.logits.clear()


def split(corpus: TokenisedCorpus, settings: MeasurementSettings, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on and those held out; copies of a held-out document are in neither."""
    everything = np.arange(len(corpus))
    if min(settings.documents, len(corpus) // 20) < FEWEST:
        return everything, everything[:0]
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(corpus.lengths >= 2))
    keys = corpus.keys
    _, first = np.unique(keys[order], return_index=True)
    # Copies count once: where most are copies, a twentieth of the rows may be all there is.
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
    settings: MeasurementSettings,
) -> HeldOut:
    """The held-out documents in batches of similar lengths."""
    corpus, room, tokenizer = examples.corpus, examples.room, task.tokenizer
    held_out = held_out[np.argsort(corpus.lengths[held_out], kind="stable")]
    frame = Frame(tokenizer, room)
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
    return HeldOut(
        vector=task.parts.vector if settings.vector == "auto" else settings.vector,
        texts=frame.batches(texts),
        steps=[
            steps.collate([steps[EPOCH, index] for index in block])
            for block in _blocks(len(held_out))
        ],
        rows=held_out,
        documents=documents,
        examples=examples,
        frame=frame,
    )


def _blocks(count: int) -> list[range]:
    blocks = [range(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:  # alone, a row would be shuffled to itself
        last = blocks.pop()
        blocks[-1] = range(blocks[-1].start, last.stop)
    return blocks
