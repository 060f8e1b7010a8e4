"""What every encoder shares: texts go through a backbone in batches of like length."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.nn.backbone import Backbone
from isthmus.nn.precision import native_bf16
from isthmus.text.batches import length_sorted_batches
from isthmus.text.tokenizer import Tokenizer

SETTINGS_FILE = "encoder.json"
BATCH = 64
Represent = Callable[[Tensor, Tensor], Tensor]
Vectors = TypeVar("Vectors")


class EncoderSettings(Settings):
    """How much of a text an encoder reads; travels with the model."""

    query_max_length: int = Field(64, ge=4, description="tokens, special ones included")
    document_max_length: int = Field(144, ge=4, description="tokens, special ones included")
    titles: bool = Field(True, description="whether titles are part of a document's text")


class TextModel(ABC):
    """A backbone, its tokenizer and its settings: what is trained, saved and told apart."""

    kind: ClassVar[str]

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: EncoderSettings, name: str = ""
    ) -> None:
        backbone.check_tokens(len(tokenizer))
        backbone.check_length(settings.query_max_length, "query_max_length")
        backbone.check_length(settings.document_max_length, "document_max_length")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.settings = settings
        self.name = name

    @property
    def trained(self) -> list[nn.Module]:
        """Everything whose parameters training changes."""
        return [self.backbone]

    @property
    @abstractmethod
    def _state(self) -> Mapping[str, Tensor]:
        """Every weight that a result depends on."""

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever any result might: weights, tokenizer and settings."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(self._state.items()):
            digest.update(name.encode())
            digest.update(
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            )
        digest.update(self.tokenizer.fingerprint.encode())
        digest.update(self.settings.model_dump_json().encode())
        return digest.hexdigest()

    def use_fast_inference(self) -> None:
        """Puts the model on the best device in the precision that is fastest there."""
        _ = self.fingerprint  # of the weights as they are stored, before they are rounded
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.backbone.eval().to(device)
        if native_bf16():
            self.backbone.to(torch.bfloat16)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text reaches the model."""
        return bool(self.tokenizer.backend.encode(text, add_special_tokens=False).ids)

    @contextmanager
    def _inference(self) -> Iterator[torch.device]:
        """Without dropout and gradients, on the device that it gives."""
        was_training = self.backbone.training
        self.backbone.eval()
        try:
            with torch.inference_mode():
                yield self.backbone.word_embeddings.device
        finally:
            self.backbone.train(was_training)

    def save(self, folder: Path) -> None:
        """Writes the model for isthmus, transformers and sentence-transformers 5 and 6 alike."""
        self.backbone.save(folder)
        self.tokenizer.save(folder)
        self.describe(folder)

    def restore(self, folder: Path) -> None:
        """Loads the weights that `save` wrote into this very model."""
        self.backbone.restore(folder)

    def describe(self, folder: Path) -> None:
        """Writes beside a saved model how it is meant to be used."""
        settings = json.loads(self.settings.model_dump_json())
        write_json(folder / SETTINGS_FILE, {"kind": self.kind, **settings})
        self._describe_elsewhere(folder)

    @abstractmethod
    def _describe_elsewhere(self, folder: Path) -> None:
        """Writes the same as sentence-transformers reads it."""


class Encoder(TextModel):
    """A backbone that turns queries and documents into vectors whose inner product is the score."""

    uses_head: ClassVar[bool]

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The length of a vector."""

    @abstractmethod
    def represent_queries(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The float32 vectors of padded queries, with gradients."""

    @abstractmethod
    def represent_documents(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The float32 vectors of padded documents, with gradients."""

    def _encode(
        self,
        texts: Sequence[str],
        limit: int,
        represent: Represent,
        keep: Callable[[Tensor], Vectors],
    ) -> list[tuple[npt.NDArray[np.int64], Vectors]]:
        """What is kept of the vectors of each batch, with the places of its texts."""
        rows = self.tokenizer.encode(list(texts), limit)
        kept = []
        with self._inference() as device:
            for batch in length_sorted_batches([len(row) for row in rows], BATCH):
                ids, mask = pad([rows[i] for i in batch], self.tokenizer.pad_id)
                kept.append((batch, keep(represent(ids.to(device), mask.to(device)))))
        return kept


def write_modules(
    folder: Path,
    modules: Sequence[tuple[str, Mapping[str, Any] | None]],
    max_length: int,
    stated: Mapping[str, Any],
) -> None:
    """Lists modules (class path, configuration) as sentence-transformers 5 and 6 load them.

    `stated` is what holds for the whole model, the similarity for example.
    The class paths are those of version 5, which version 6 still knows; its own do not load in 5.
    """
    listed = []
    for number, (path, config) in enumerate(modules):
        # The first module is the model itself, in the folder; the others have one of their own.
        inside = f"{number}_{path.rpartition('.')[2]}" if number else ""
        kind = f"sentence_transformers.{path}"
        listed.append({"idx": number, "name": str(number), "path": inside, "type": kind})
        (folder / inside).mkdir(exist_ok=True)
        if config is not None:
            write_json(folder / inside / "config.json", config)
    write_json(folder / "modules.json", listed)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}
    )
    write_json(folder / "config_sentence_transformers.json", stated)


def pad(
    rows: Sequence[Sequence[int] | npt.NDArray[np.integer]], pad_id: int
) -> tuple[Tensor, Tensor]:
    """Token ids as one matrix, and the mask of what is not padding."""
    lengths = np.array([len(row) for row in rows])
    inside = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(inside.shape, pad_id, dtype=np.int64)
    ids[inside] = np.concatenate(rows, dtype=np.int64, casting="unsafe")  # an empty list is float
    return torch.from_numpy(ids), torch.from_numpy(inside.astype(np.int64))
