"""Dense encoders: one vector per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.config.encoding import Pooling, Similarity
from isthmus.encoders.encoder import Encoder, Tokens, VectorSettings, pad, write_modules
from isthmus.encoders.projection import Projection
from isthmus.encoders.transfers import send
from isthmus.indexes.ragged import Both, Ragged, TokenVectors, with_different_pieces
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Asking, token_places
from isthmus.records import Document
from isthmus.text.tokenizer import Ids, Tokenizer

POOLING_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Every way of pooling by the key that sentence-transformers 5 has for it, as 6 reads it too."""


class DenseForm(Settings):
    """How states become a vector."""

    pooling: Pooling = Field("cls", description="the first state, or the mean of all, or …")
    similarity: Similarity = Field(
        "dot", description="inner product; cosine: of vectors of length 1"
    )
    include_prompt: bool = Field(True, description="whether prompts are pooled with the text")
    truncate_dim: int | None = Field(
        None, ge=1, description="the first numbers of a vector that are kept; null: all"
    )


# The form comes first, in the file and in the fingerprint that indexes remember their encoder by.
class DenseSettings(VectorSettings, DenseForm):
    """How states become a vector, and how much of a text is read; travels with the model."""


def pool(states: Tensor, mask: Tensor, pooling: Pooling, skipped: int = 0) -> Tensor:
    """Vectors [batch, width] in float32.

    The first `skipped` states of each text are left out; for cls, the next one is the first.
    """
    if pooling == "cls" and not skipped:
        return states[:, 0].float()
    places = torch.arange(mask.shape[1], device=mask.device)
    inside = mask * (places >= skipped)
    if pooling in ("cls", "lasttoken"):
        chosen = (inside if pooling == "cls" else inside * places).argmax(1)
        return states[torch.arange(len(states), device=states.device), chosen].float()
    if pooling == "max":
        return states.float().masked_fill(inside[:, :, None] == 0, -torch.inf).amax(1)
    weights = inside[:, :, None].float()
    if pooling == "weightedmean":  # later tokens count for more
        weights = weights * (places[:, None] + 1)
    total, count = (states.float() * weights).sum(1), weights.sum(1).clamp(min=1)
    return total / (count.sqrt() if pooling == "mean_sqrt_len" else count)


@dataclass(frozen=True)
class Pass:
    """What one pass gives of some texts: their vectors, and those of all places of their tokens.

    `ids` are the tokens; -1 where one has no vector: special ones, prompts and padding.
    """

    vectors: Tensor
    states: Tensor
    ids: Tensor
    queries: bool

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU."""
        return self.states.is_cuda

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.states.device

    def taken(self) -> Both:
        """All of it on the host, without what has no vector."""
        kept = self.ids >= 0
        found, ids = self.states[kept].cpu().numpy(), self.ids[kept].cpu().numpy()
        starts = np.concatenate([[0], kept.sum(1).cpu().numpy().cumsum()]).astype(np.int64)
        tokens = TokenVectors(Ragged(found, starts), Ragged(ids, starts))
        tokens = tokens if self.queries else with_different_pieces(tokens)
        return Both(self.vectors.cpu().numpy(), tokens)


class DenseEncoder(Encoder):
    """An encoder whose vectors are pooled hidden states, or a projection of these.

    From the same pass come the vectors of tokens: their last states, normalised, without special
    tokens and prompts. An encoder `with_tokens` gives both wherever this one gives vectors.
    """

    kind = "dense"
    uses_head = False
    gives_tokens = False
    settings: DenseSettings

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        settings: DenseSettings,
        name: str = "",
        projection: Projection | None = None,
    ) -> None:
        super().__init__(backbone, tokenizer, settings, name)
        self.projection = projection

    @property
    def dimension(self) -> int:
        """The width of the hidden states, or of their projection, as far as it is kept."""
        projected = None if self.projection is None else self.projection.dimension
        whole = projected or self.backbone.dimension
        return min(whole, self.settings.truncate_dim or whole)

    @property
    def trained(self) -> list[nn.Module]:
        """The backbone, and the projection where there is one."""
        return [self.backbone, *([] if self.projection is None else [self.projection])]

    @property
    def similarity(self) -> Similarity:
        """What the inner product means; cosine vectors come out normalised."""
        return self.settings.similarity

    @property
    def _state(self) -> Mapping[str, Tensor]:
        state: Mapping[str, Tensor] = self.backbone.encoder.state_dict()
        return state if self.projection is None else {**state, **self.projection.state()}

    @property
    def reads_apart(self) -> bool:
        """Where prompts are read but not pooled, since the sides have prompts of their own."""
        return max(self._skipped) > 0

    @cached_property
    def _skipped(self) -> tuple[int, int]:
        """How many states of a query, and of a document, are those of its prompt: not pooled."""
        chosen = self.settings
        if chosen.include_prompt:
            return 0, 0
        return (
            self._states_of(chosen.query_prompt, chosen.query_max_length),
            self._states_of(chosen.document_prompt, chosen.document_max_length),
        )

    def _states_of(self, prompt: str, limit: int) -> int:
        """The number of states that a prompt takes at the start of a text, [CLS] included."""
        if not prompt:
            return 0
        (row,) = self.tokenizer.encode([prompt], limit)
        return len(row) - int(row[-1] in self.tokenizer.special_ids)

    def represent_queries(self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The pooled states."""
        return self._represent(ids, mask, tokens, queries=True)

    def represent_documents(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The pooled states; queries and documents share the model."""
        return self._represent(ids, mask, tokens, queries=False)

    def vocabulary_logits(self, rows: Sequence[Tokens], queries: bool = False) -> Tensor:
        """What the masked-LM head predicts from the pooled states of tokenised texts, in float32.

        States are those before they are projected, cut and normed.
        """
        words = self.backbone.word_embeddings
        ids, mask = (part.to(words.device) for part in pad(rows, self.tokenizer.pad_id))
        with self._inference():
            states = self._pooled(ids, mask, None, queries)
            return self.backbone.head(states.to(words.dtype)).float()

    def with_tokens(self) -> Self:
        """A copy of this encoder that gives the vectors of tokens too."""
        both = copy(self)
        both.gives_tokens = True
        return both

    def _pooled(self, ids: Tensor, mask: Tensor, tokens: Tensor | None, queries: bool) -> Tensor:
        skipped = self._skipped[0 if queries else 1]
        first = self.settings.pooling == "cls" and not skipped and self.backbone.asks_for_some
        asking = Asking.first(ids) if first else None
        states = self.backbone(ids, mask, tokens, asking)
        return pool(states, mask, self.settings.pooling, skipped)

    def _represent(self, ids: Tensor, mask: Tensor, tokens: Tensor | None, queries: bool) -> Tensor:
        return self._finished(self._pooled(ids, mask, tokens, queries))

    def _finished(self, vectors: Tensor) -> Tensor:
        """The vectors of texts from their pooled states."""
        settings = self.settings
        if self.projection is not None:
            vectors = self.projection(vectors)
        vectors = vectors[:, : settings.truncate_dim]
        return functional.normalize(vectors, dim=1) if settings.similarity == "cosine" else vectors

    def represent_both(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None, queries: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The float32 vectors of padded texts, and the last states of all their places."""
        states = self.backbone(ids, mask, tokens)
        skipped = self._skipped[0 if queries else 1]
        return self._finished(pool(states, mask, self.settings.pooling, skipped)), states

    def _compute(self, rows: Sequence[Tokens], queries: bool) -> Tensor | Pass:
        if not self.gives_tokens:
            found: Tensor = super()._compute(rows, queries)
            return found
        device = self.backbone.word_embeddings.device
        if not rows:
            nothing = torch.empty(0, 1, self.backbone.dimension)
            ids = torch.empty(0, 1, dtype=torch.int64)
            return Pass(torch.empty(0, self.dimension), nothing, ids, queries)
        ids, mask = pad(rows, self.tokenizer.pad_id)
        if self.int8 is not None and not (queries and self.reads_apart):
            vectors, states = self.int8.represent_both(rows)
        else:
            ids, mask, places = (send(part, device) for part in (ids, mask, token_places(mask)))
            vectors, states = self.represent_both(ids, mask, places, queries)
        states = functional.normalize(states.float(), dim=2)
        # What is stored of documents is far coarser than half precision.
        return Pass(
            vectors, states if queries else states.half(), self._read(ids, mask, queries), queries
        )

    def _read(self, ids: Tensor, mask: Tensor, queries: bool) -> Tensor:
        """The tokens of texts that have a vector, -1 for the others."""
        special = torch.from_numpy(self.tokenizer.special_ids).to(ids.device)
        places = torch.arange(ids.shape[1], device=ids.device)
        kept = mask.bool() & (places >= self._first_read(queries)) & ~torch.isin(ids, special)
        return ids.masked_fill(~kept, -1)

    def _first_read(self, queries: bool) -> int:
        """The first place after the prompt."""
        settings = self.settings
        prompt, limit = settings.document_prompt, settings.document_max_length
        if queries:
            prompt, limit = settings.query_prompt, settings.query_max_length
        return self._states_of(prompt, limit)

    def _has_vector(self, ids: Ids, queries: bool) -> npt.NDArray[np.bool_]:
        kept = ~np.isin(ids, self.tokenizer.special_ids)
        kept[: self._first_read(queries)] = False
        return kept

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """One vector per query; `with_tokens`, Both."""
        return self._vectors(self.tokenise_queries(texts), queries=True)

    def encode_documents(self, documents: Sequence[Document]) -> Any:
        """One vector per document, with its title where the encoder was made with titles."""
        return self._vectors(self.tokenise(documents))

    def _take(self, vectors: Tensor | Pass) -> npt.NDArray[np.float32] | Both:
        return vectors.taken() if isinstance(vectors, Pass) else vectors.cpu().numpy()

    def _join(
        self, parts: Sequence[npt.NDArray[np.float32]] | Sequence[Both]
    ) -> npt.NDArray[np.float32] | Both:
        both = [part for part in parts if isinstance(part, Both)]
        if not both:
            return np.concatenate([part for part in parts if not isinstance(part, Both)])
        return Both.joined(both)

    def _describe_elsewhere(self, folder: Path) -> None:
        pooling = {
            "word_embedding_dimension": self.backbone.dimension,
            **{key: mode == self.settings.pooling for key, mode in POOLING_MODES.items()},
            "include_prompt": self.settings.include_prompt,
        }
        modules: list[tuple[str, Mapping[str, Any] | None]] = [
            ("models.Transformer", None),
            ("models.Pooling", pooling),
        ]
        if self.projection is not None:
            modules += [(f"models.{kind}", about) for kind, about in self.projection.described()]
        if self.settings.similarity == "cosine":
            modules.append(("models.Normalize", None))
        stated = {
            **self._prompts(),
            "similarity_fn_name": self.settings.similarity,
            **self.settings.model_dump(include={"truncate_dim"}),
        }
        write_modules(folder, modules, self.settings.document_max_length, stated)

    def save(self, folder: Path) -> None:
        """Writes the encoder for isthmus, transformers and sentence-transformers 5 and 6 alike."""
        super().save(folder)
        if self.projection is not None:
            self.projection.save(folder, self._projection_paths(self.projection))

    def restore(self, folder: Path) -> None:
        """Loads the weights that `save` wrote into this very encoder."""
        super().restore(folder)
        if self.projection is not None:
            self.projection.restore(folder, self._projection_paths(self.projection))

    @staticmethod
    def _projection_paths(projection: Projection) -> list[str]:
        kinds = [kind for kind, _ in projection.described()]
        return [f"{number}_{kind}" for number, kind in enumerate(kinds, start=2)]
