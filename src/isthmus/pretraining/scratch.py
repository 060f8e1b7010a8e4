"""A starting point from nothing: a tokenizer learnt from the corpus and random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.config.output import whole_folder
from isthmus.nn.sizes import new_backbone, shape_of
from isthmus.progress import track
from isthmus.text.new_tokenizer import new_tokenizer


@dataclass(frozen=True)
class _Texts:
    """Texts that can be iterated several times; each pass reads them anew."""

    read: Callable[[], Iterable[str]]

    def __iter__(self) -> Iterator[str]:
        return track(self.read(), "learn tokenizer", unit="documents")


def start_from_nothing(
    read: Callable[[], Iterable[str]], size: str, vocabulary: int, folder: Path, seed: int
) -> Path:
    """The folder of an untrained model, made once, from the texts that `read` gives each time."""
    shape_of(size)
    if not folder.is_dir():
        tokenizer = new_tokenizer(_Texts(read), vocabulary)
        backbone = new_backbone(size, len(tokenizer), tokenizer.pad_id, seed=seed)
        tokenizer.pretrained.model_max_length = backbone.positions
        with whole_folder(folder) as partial:
            tokenizer.save(partial)
            backbone.save(partial)
    return folder
