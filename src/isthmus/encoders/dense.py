"""Dense encoders: one vector per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.encoders.encoder import Encoder, EncoderSettings, write_modules
from isthmus.nn.packing import Asking
from isthmus.records import Document


class DenseForm(Settings):
    """How states become a vector."""

    pooling: Literal["cls", "mean"] = Field(
        "cls", description="the first state, or the mean of all"
    )
    similarity: Literal["dot", "cosine"] = Field(
        "dot", description="inner product; cosine: of vectors of length 1"
    )


# The form comes first, in the file and in the fingerprint that indexes remember their encoder by.
class DenseSettings(EncoderSettings, DenseForm):
    """How states become a vector, and how much of a text is read; travels with the model."""


def pool(states: Tensor, mask: Tensor, settings: DenseSettings) -> Tensor:
    """Vectors [batch, width] in float32: the first state or the mean, of length 1 for cosine."""
    if settings.pooling == "cls":
        vectors = states[:, 0].float()
    else:
        weights = mask[:, :, None].float()
        vectors = (states.float() * weights).sum(1) / weights.sum(1)
    return functional.normalize(vectors, dim=1) if settings.similarity == "cosine" else vectors


class DenseEncoder(Encoder):
    """An encoder whose vectors are pooled hidden states."""

    kind = "dense"
    uses_head = False
    settings: DenseSettings

    @property
    def dimension(self) -> int:
        """The width of the hidden states."""
        return self.backbone.dimension

    @property
    def similarity(self) -> Literal["dot", "cosine"]:
        """What the inner product means; cosine vectors come out normalised."""
        return self.settings.similarity

    @property
    def _state(self) -> Mapping[str, Tensor]:
        state: Mapping[str, Tensor] = self.backbone.encoder.state_dict()
        return state

    def represent_queries(self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The pooled states."""
        first = self.settings.pooling == "cls" and self.backbone.asks_for_some
        asking = Asking.first(ids) if first else None
        return pool(self.backbone(ids, mask, tokens, asking), mask, self.settings)

    def represent_documents(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The pooled states; queries and documents share the model."""
        return self.represent_queries(ids, mask, tokens)

    def encode_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per query."""
        rows = self.tokenizer.encode(list(texts), self.settings.query_max_length)
        vectors: npt.NDArray[np.float32] = self._vectors(rows)
        return vectors

    def encode_documents(self, documents: Sequence[Document]) -> npt.NDArray[np.float32]:
        """One vector per document, with its title where the encoder was made with titles."""
        vectors: npt.NDArray[np.float32] = self._vectors(self.tokenise(documents))
        return vectors

    @staticmethod
    def _take(vectors: Tensor) -> npt.NDArray[np.float32]:
        return vectors.cpu().numpy()

    @staticmethod
    def _join(parts: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        return np.concatenate(parts)

    def _describe_elsewhere(self, folder: Path) -> None:
        modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
        chosen = {"cls": "cls_token", "mean": "mean_tokens"}[self.settings.pooling]
        pooling = {
            "word_embedding_dimension": self.dimension,
            **{f"pooling_mode_{mode}": mode == chosen for mode in modes},
            "include_prompt": True,
        }
        modules: list[tuple[str, Mapping[str, Any] | None]] = [
            ("models.Transformer", None),
            ("models.Pooling", pooling),
        ]
        if self.settings.similarity == "cosine":
            modules.append(("models.Normalize", None))
        similarity = {"similarity_fn_name": self.settings.similarity}
        write_modules(folder, modules, self.settings.document_max_length, similarity)
