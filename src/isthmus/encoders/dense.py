"""Dense encoders: one vector per text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
import xxhash
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.nn.backbone import Backbone
from isthmus.nn.precision import native_bf16
from isthmus.records import Document
from isthmus.text.batches import length_sorted_batches
from isthmus.text.tokenizer import Tokenizer

SETTINGS_FILE = "encoder.json"
_BATCH = 64


class DenseSettings(Settings):
    """How a text becomes a vector; travels with the model."""

    pooling: Literal["cls", "mean"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    query_max_length: int = Field(64, ge=4, description="tokens, special ones included")
    document_max_length: int = Field(144, ge=4, description="tokens, special ones included")
    titles: bool = Field(True, description="whether titles are part of a document's text")


def pool(states: Tensor, mask: Tensor, settings: DenseSettings) -> Tensor:
    """Vectors [batch, width] in float32: the first state or the mean, of length 1 for cosine."""
    states = states.float()
    if settings.pooling == "cls":
        vectors = states[:, 0]
    else:
        weights = mask[:, :, None].float()
        vectors = (states * weights).sum(1) / weights.sum(1)
    return functional.normalize(vectors, dim=1) if settings.similarity == "cosine" else vectors


class DenseEncoder:
    """A backbone that turns queries and documents into vectors whose inner product is the score."""

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: DenseSettings, name: str = ""
    ) -> None:
        backbone.check_tokens(len(tokenizer))
        backbone.check_length(settings.query_max_length, "query_max_length")
        backbone.check_length(settings.document_max_length, "document_max_length")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.settings = settings
        self.name = name

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self.backbone.dimension

    @property
    def similarity(self) -> Literal["dot", "cosine"]:
        """What the inner product means; cosine vectors come out normalised."""
        return self.settings.similarity

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever any vector might: weights, tokenizer and settings."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(self.backbone.encoder.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
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

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per query."""
        return self._encode(texts, self.settings.query_max_length)

    def encode_documents(self, documents: Sequence[Document]) -> npt.NDArray[np.float32]:
        """One vector per document, with its title where the encoder was made with titles."""
        texts = [document.contents(self.settings.titles) for document in documents]
        return self._encode(texts, self.settings.document_max_length)

    def _encode(self, texts: Sequence[str], limit: int) -> npt.NDArray[np.float32]:
        rows = self.tokenizer.encode(list(texts), limit)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        device = self.backbone.word_embeddings.device
        was_training = self.backbone.training
        self.backbone.eval()
        with torch.inference_mode():
            for batch in length_sorted_batches([len(row) for row in rows], _BATCH):
                ids, mask = pad([rows[i] for i in batch], self.tokenizer.pad_id)
                ids, mask = ids.to(device), mask.to(device)
                vectors[batch] = pool(self.backbone(ids, mask), mask, self.settings).cpu().numpy()
        self.backbone.train(was_training)
        return vectors

    def save(self, folder: Path) -> None:
        """Writes the encoder for isthmus, AutoModel and sentence-transformers 5 and 6 alike."""
        self.backbone.save(folder)
        self.tokenizer.save(folder)
        self.describe(folder)

    def describe(self, folder: Path) -> None:
        """Writes beside a saved model how it is meant to encode."""
        write_json(folder / SETTINGS_FILE, json.loads(self.settings.model_dump_json()))
        # The class paths of version 5, which version 6 still knows; its own do not load in 5.
        modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
        if self.settings.similarity == "cosine":
            modules.append(("2", "2_Normalize", "Normalize"))
        listed = [
            {"idx": int(n), "name": n, "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, path, kind in modules
        ]
        write_json(folder / "modules.json", listed)
        for _, path, _ in modules[1:]:
            (folder / path).mkdir(exist_ok=True)
        modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
        chosen = {"cls": "cls_token", "mean": "mean_tokens"}[self.settings.pooling]
        write_json(
            folder / "1_Pooling" / "config.json",
            {
                "word_embedding_dimension": self.dimension,
                **{f"pooling_mode_{mode}": mode == chosen for mode in modes},
                "include_prompt": True,
            },
        )
        write_json(
            folder / "sentence_bert_config.json",
            {"max_seq_length": self.settings.document_max_length, "do_lower_case": False},
        )
        write_json(
            folder / "config_sentence_transformers.json",
            {"similarity_fn_name": self.settings.similarity},
        )


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids as one matrix, and the mask of what is not padding."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.as_tensor(row)
        mask[number, : len(row)] = 1
    return ids, mask
