"""A starting point from nothing: a tokenizer learnt from the corpus and random weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from isthmus.config.output import whole_folder
from isthmus.nn.sizes import check_size, new_backbone
from isthmus.progress import track
from isthmus.text.new_tokenizer import new_tokenizer


def start_from_nothing(
    texts: Iterable[str], size: str, vocabulary: int, folder: Path, seed: int
) -> Path:
    """The folder of an untrained model, made once.

    Learning the tokenizer again could break ties another way, and everything that was tokenised or
    trained with the first one would be lost. So it is kept from the moment it exists.
    """
    check_size(size)
    if not folder.is_dir():
        tokenizer = new_tokenizer(track(texts, "learn tokenizer", unit="documents"), vocabulary)
        backbone = new_backbone(size, len(tokenizer), tokenizer.pad_id, seed=seed)
        tokenizer.pretrained.model_max_length = backbone.positions
        with whole_folder(folder) as partial:
            tokenizer.save(partial)
            backbone.save(partial)
    return folder
