"""Multi-vector encoders: a vector for each token of a text, as ColBERT has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from isthmus.config.output import write_json
from isthmus.encoders.encoder import Encoder, Tokens, VectorSettings, pad, write_modules
from isthmus.encoders.projection import TOKENS, Projection
from isthmus.encoders.transfers import send
from isthmus.errors import InputError
from isthmus.indexes.ragged import Ragged, TokenVectors, joined, with_different_pieces
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import token_places
from isthmus.records import Document
from isthmus.text.tokenizer import Ids, Tokenizer

LENGTHS = "sentence_bert_config.json"


class MultiVectorSettings(VectorSettings):
    """Which tokens of a text have a vector, and how much of it is read; travels with the model."""

    query_expansion: int | None = Field(
        None,
        ge=1,
        le=1 << 13,
        description="tokens that a shorter query is filled up to; null: it is not",
    )
    attend_to_expansion: bool = Field(
        False, description="whether the other tokens of a query see those that fill it up"
    )
    expansion_token: str | None = Field(
        None, description="what fills queries up; null: the mask token"
    )
    skiplist_words: list[str] = Field([], description="tokens that have no vector")
    skiplist_tasks: list[Literal["query", "document"]] = Field(
        ["document"], description="texts in which they have none"
    )

    @model_validator(mode="after")
    def _room_for_expansion(self) -> MultiVectorSettings:
        if (self.query_expansion or 0) > self.query_max_length:
            raise ValueError(
                f"query_max_length = {self.query_max_length} is less than the "
                f"{self.query_expansion} tokens that queries are filled up to"
            )
        return self


class MultiVectorEncoder(Encoder):
    """An encoder whose vectors are projected hidden states, one for each token (2004.12832).

    Special tokens and those of prompts have vectors like any others. A query is filled up with mask
    tokens, which have vectors too, whether or not its other tokens see them.
    """

    kind = "tokens"
    uses_head = False
    settings: MultiVectorSettings

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        settings: MultiVectorSettings,
        name: str = "",
        projection: Projection | None = None,
    ) -> None:
        super().__init__(backbone, tokenizer, settings, name)
        backbone.check_length(settings.query_expansion or 0, "query_expansion")
        self.projection = Projection() if projection is None else projection
        numbers = map(tokenizer.backend.token_to_id, settings.skiplist_words)
        self._skipped = torch.tensor([one for one in numbers if one is not None], dtype=torch.int64)
        if settings.query_expansion is not None:
            _ = self._expansion_id  # refused here, where there is none

    @property
    def dimension(self) -> int:
        """The length of the vector of a token."""
        return self.projection.dimension or self.backbone.dimension

    @property
    def trained(self) -> list[nn.Module]:
        """The backbone and the projection."""
        return [self.backbone, self.projection]

    def summary(self) -> str:
        """What texts become, in a few words."""
        settings = self.settings
        query, document = (f" after {one!r}" if one else "" for one in settings.prompts())
        least = settings.query_expansion
        filled = "" if least is None else f", filled up to {least}"
        return (
            f"{self.dimension} numbers for each token; of a query {settings.query_max_length} "
            f"tokens{query}{filled}; of a document {settings.document_max_length}{document}"
        )

    @property
    def alike(self) -> bool:
        """Never: queries are filled up, and documents skip tokens."""
        return False

    @property
    def _state(self) -> Mapping[str, Tensor]:
        return {**self.backbone.encoder.state_dict(), **self.projection.state()}

    @cached_property
    def _expansion_id(self) -> int:
        pretrained, token = self.tokenizer.pretrained, self.settings.expansion_token
        if token is not None:
            found = self.tokenizer.backend.token_to_id(token)
        else:
            found = pretrained.mask_token_id
            found = pretrained.eos_token_id if found is None else found
        if found is None:
            lacking = "a mask token" if token is None else f"the token {token!r}"
            raise InputError(
                f"{self.name!r} fills queries up with {lacking}, which its tokenizer does not have",
                "name one of its tokens: --set expansion_token=…",
            )
        return int(found)

    def represent_queries(self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The float32 vectors [queries, tokens, width], filled up; 0 where a token has none."""
        vectors, kept, _ = self._represent(ids, mask, tokens, queries=True)
        return vectors * kept[:, :, None]

    def represent_documents(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The float32 vectors [documents, tokens, width]; 0 where a token has none."""
        vectors, kept, _ = self._represent(ids, mask, tokens, queries=False)
        return vectors * kept[:, :, None]

    def _has_vector(self, ids: Ids, queries: bool) -> npt.NDArray[np.bool_]:
        if ("query" if queries else "document") not in self.settings.skiplist_tasks:
            return np.ones(len(ids), dtype=np.bool_)
        return ~np.isin(ids, self._skipped.numpy())

    def _filled_up(self, ids: Ids, spans: Ids) -> tuple[Ids, Ids]:
        missing = max(0, (self.settings.query_expansion or 0) - len(ids))
        if not missing:
            return ids, spans
        filled = np.pad(ids, (0, missing), constant_values=self._expansion_id)
        return filled, np.pad(spans, ((0, missing), (0, 0)), constant_values=-1)

    def _represent(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None, queries: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A vector for each place, whether it counts, and the token that is there."""
        settings, kept = self.settings, mask.bool()
        if queries and settings.query_expansion is not None:
            ids, kept, states = self._expanded(ids, mask, settings.query_expansion)
        else:
            states = self.backbone(ids, mask, tokens)
        if ("query" if queries else "document") in settings.skiplist_tasks:
            kept = kept & ~torch.isin(ids, self._skipped.to(ids.device))
        vectors = self.projection(states.float().flatten(0, 1))
        return vectors.unflatten(0, ids.shape), kept, ids

    def _expanded(self, ids: Tensor, mask: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries filled up to a length: their tokens, which of these count, and the states."""
        missing = (0, max(0, length - ids.shape[1]))
        ids, mask = nn.functional.pad(ids, missing), nn.functional.pad(mask, missing)
        fillers = (mask == 0) & (torch.arange(ids.shape[1], device=ids.device) < length)
        ids, kept = ids.masked_fill(fillers, self._expansion_id), mask.bool() | fillers
        if self.settings.attend_to_expansion:
            return ids, kept, self.backbone(ids, kept.to(mask.dtype))
        # Nothing sees them, and they see the query: the backbone would leave out what is masked.
        output = self.backbone.encoder(input_ids=ids, attention_mask=mask)
        return ids, kept, output.last_hidden_state

    def encode_queries(self, texts: Sequence[str]) -> TokenVectors:
        """The token vectors of each query, those of the tokens that fill it up included."""
        found: TokenVectors = self._vectors(self.tokenise_queries(texts), queries=True)
        return found

    def encode_documents(self, documents: Sequence[Document]) -> TokenVectors:
        """The token vectors of each document, of its title too where made with titles."""
        return with_different_pieces(self._vectors(self.tokenise(documents)))

    def encode_blocks(
        self, blocks: Iterable[Sequence[Document]], encoded: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Sequence[Document], Any]]:
        """Each block with what `encode_documents` makes of it, while the next one is tokenised.

        `encoded` is called after every batch with the number of its documents.
        """
        for block, vectors in super().encode_blocks(blocks, encoded):
            yield block, with_different_pieces(vectors)

    def _compute(self, rows: Sequence[Tokens], queries: bool) -> Tensor:
        """One tensor: of each place its token, or -1 where that has no vector, then the vector."""
        if not rows:
            return torch.empty(0, 0, 1 + self.dimension)
        device = self.backbone.word_embeddings.device
        ids, mask = pad(rows, self.tokenizer.pad_id)
        ids, mask, places = (send(part, device) for part in (ids, mask, token_places(mask)))
        vectors, kept, ids = self._represent(ids, mask, places, queries)
        # Float32 holds every whole number up to 16 million: no vocabulary is as large.
        return torch.cat([ids.masked_fill(~kept, -1)[:, :, None].float(), vectors], 2)

    def _take(self, vectors: Tensor) -> TokenVectors:
        kept = vectors[:, :, 0] >= 0
        found = vectors[kept].cpu().numpy()
        lengths = kept.sum(1).cpu().numpy()
        starts = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        return TokenVectors(
            Ragged(found[:, 1:], starts), Ragged(found[:, 0].astype(np.int32), starts)
        )

    def _join(self, parts: Sequence[TokenVectors]) -> TokenVectors:
        return joined(parts)

    def save(self, folder: Path) -> None:
        """Writes the encoder for isthmus, transformers and sentence-transformers 6 alike."""
        super().save(folder)
        self.projection.save(folder, self._projection_paths)

    def restore(self, folder: Path) -> None:
        """Loads the weights that `save` wrote into this very encoder."""
        super().restore(folder)
        self.projection.restore(folder, self._projection_paths)

    @property
    def _projection_paths(self) -> list[str]:
        kinds = [kind for kind, _ in self.projection.described()]
        return [f"{number}_{kind}" for number, kind in enumerate(kinds, start=1)]

    def _describe_elsewhere(self, folder: Path) -> None:
        settings = self.settings
        mask = {
            "skiplist_words": settings.skiplist_words,
            "skiplist_tasks": settings.skiplist_tasks,
            "keep_only_token_ids": None,
        }
        names = {"module_input_name": TOKENS, "module_output_name": TOKENS}
        modules: list[tuple[str, Mapping[str, Any] | None]] = [
            ("base.modules.transformer.Transformer", None),
            *(
                (f"base.modules.{kind.lower()}.{kind}", {**about, **names})
                for kind, about in self.projection.described()
            ),
            ("multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", mask),
        ]
        stated = {
            **self._prompts(),
            "model_type": "MultiVectorEncoder",
            "similarity_fn_name": "maxsim",
        }
        write_modules(folder, modules, settings.document_max_length, stated)
        write_json(folder / LENGTHS, self._lengths())

    def _lengths(self) -> dict[str, Any]:
        """How much of a text is read, as sentence-transformers 6 has it."""
        settings, floor = self.settings, self.settings.query_expansion
        lengths: dict[str, Any] = {"document_length": settings.document_max_length}
        if floor != settings.query_max_length:  # there, it is the expansion's where they are equal
            lengths["query_length"] = settings.query_max_length
        if floor is not None:
            lengths["query_expansion"] = {
                "strategy": "fixed" if floor == settings.query_max_length else "min",
                "attend": settings.attend_to_expansion,
                "token": settings.expansion_token,
                "length": floor,
            }
        return lengths
