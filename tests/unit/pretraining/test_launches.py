"""Maskings stay few operations: on a GPU each one launched costs the host some 15 microseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from isthmus.pretraining.corruption._budget import MaskingSettings
from isthmus.pretraining.corruption.importance import Importance, ImportanceSettings
from isthmus.pretraining.corruption.nested import Nested, NestedSettings
from isthmus.pretraining.corruption.uniform import Uniform
from isthmus.pretraining.corruption.whole_word import WholeWord
from isthmus.pretraining.decoders.enhanced import visibility
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.training.task import Batch

VOCABULARY = Vocabulary(new_tokenizer(["the quick brown fox"] * 2, 40), 50).to("meta")
SIZES = 6  # different sizes of words in one text: of English in BERT's vocabulary, 5 to 8
# What is seen of each on the device, and a little room.
MOST: dict[str, tuple[Callable[[Batch], object], int]] = {
    "uniform": (lambda batch: Uniform(MaskingSettings())(batch, VOCABULARY), 45),
    "whole_word": (lambda batch: WholeWord(MaskingSettings())(batch, VOCABULARY), 75),
    "importance": (lambda batch: Importance(ImportanceSettings())(batch, VOCABULARY), 62),
    "nested": (lambda batch: Nested(NestedSettings(), "decoder")(batch, VOCABULARY), 50),
    "visibility": (
        lambda batch: visibility(
            batch["keys"], batch["words"], batch["attention_mask"].bool(), 0.5
        ),
        40,
    ),
}


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that compute: no views, nothing that only takes memory."""

    count = 0

    def __torch_dispatch__(
        self, operation: Any, _: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        takes_memory = operation.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_like)
        self.count += not (operation.is_view or takes_memory)
        return operation(*arguments, **(named or {}))


@pytest.mark.parametrize("name", MOST)
def test_a_masking_launches_few_operations(name: str) -> None:
    """On a device that has no numbers, where nothing is asked: the way of a GPU."""
    ids = torch.zeros(8, 150, dtype=torch.int64, device="meta")
    fields = ("input_ids", "attention_mask", "words", "encoder_ids", "labels")
    batch = dict.fromkeys(fields, ids) | {
        "keys": ids[:, 0],
        "pmi": torch.zeros(8, 150, 3, device="meta"),
        "word_sizes": torch.zeros(SIZES, dtype=torch.int64, device="meta"),
    }
    mask, most = MOST[name]
    with Launches() as launches:  # type: ignore[no-untyped-call]
        mask(batch)
    assert most * 0.8 < launches.count <= most
