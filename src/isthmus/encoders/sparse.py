"""Sparse encoders: a weight for every term of the vocabulary, most of them zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from scipy.sparse import csr_matrix, vstack
from torch import Tensor, nn

from isthmus.config.encoding import SparseForm
from isthmus.encoders.encoder import Encoder, Tokens, VectorSettings, write_modules
from isthmus.encoders.query_terms import QueryTerms
from isthmus.encoders.router import write_router
from isthmus.errors import InputError
from isthmus.nn.architectures import MASKED_LM
from isthmus.nn.backbone import Backbone
from isthmus.progress import notice
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer


class SparseSettings(VectorSettings, SparseForm):
    """How a text becomes weighted terms, and how much of it is read; travels with the model."""


class SparseEncoder(Encoder):
    """An encoder whose vectors are the masked-LM head's view of a text, one entry per term.

    w = max over positions of log1p(relu(head(H))), the SPLADE-max of arXiv 2109.10086, or their
    sum, as in the first SPLADE (arXiv 2107.05720); LexMAE (ICLR 2023) takes the maximum without
    special positions. Training sees all terms; only encoding keeps the heaviest.
    """

    kind = "sparse"
    uses_head = True
    settings: SparseSettings

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: SparseSettings, name: str = ""
    ) -> None:
        if not backbone.has_head:
            raise InputError(
                f"the model {name!r} has no masked-LM head, which gives every term its weight",
                (
                    "choose a masked language model, pre-train this one first (isthmus "
                    "pretrain trains a head), or make it dense"
                )
                if backbone.config.model_type in MASKED_LM
                else "choose a masked language model, or make it dense",
            )
        super().__init__(backbone, tokenizer, settings, name)
        self.query_terms = QueryTerms(self.dimension) if settings.query == "terms" else None
        self._special = torch.zeros(self.dimension, dtype=torch.bool)
        self._special[torch.from_numpy(tokenizer.special_ids)] = True
        self._noticed = False

    @property
    def dimension(self) -> int:
        """The vocabulary's size, rows that only pad the model's matrix included."""
        return len(self.backbone.word_embeddings)

    @property
    def trained(self) -> list[nn.Module]:
        """The backbone with its head, and the query terms' weights where there are any."""
        return [self.backbone, *([] if self.query_terms is None else [self.query_terms])]

    @property
    def _state(self) -> Mapping[str, Tensor]:
        return {
            f"{number}.{name}": tensor
            for number, module in enumerate(self.trained)
            for name, tensor in module.state_dict().items()
        }

    @property
    def alike(self) -> bool:
        """Unless queries have weights of their own, term by term."""
        return self.query_terms is None

    def represent_queries(self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The weights [rows, vocabulary]: those of the query's terms, or those of the encoder."""
        if self.query_terms is not None:
            weights: Tensor = self.query_terms(ids, self._regular(ids, mask))
            return weights
        return self.represent_documents(ids, mask, tokens)

    def represent_documents(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The weights [rows, vocabulary]."""
        inside = self._regular(ids, mask) if self.settings.form == "lexmae" else mask.bool()
        return term_weights(self.backbone, self.backbone(ids, mask, tokens), inside, self.settings)

    def lower_bias(self, rows: Sequence[Tokens], terms: int) -> tuple[float, float]:
        """The terms that texts have on average, and what is taken off the head's bias for fewer.

        Masked LM learns differences of logits; how many are above 0, and so terms, is left to
        chance. A head of which nearly all are scores in the thousands, and a regularizer that is
        strong enough to mend that takes the useful terms along. The same number off every logit
        changes no probability. Nothing is taken off where there are no more than `terms`, nor of a
        head without a bias.
        """
        bias = self.backbone.vocabulary_bias
        # However positions are pooled, a text has the terms whose largest logit is above 0.
        largest = {"pooling_strategy": "max", "query": "encoder"}
        counting = SparseEncoder(
            self.backbone, self.tokenizer, self.settings.model_copy(update=largest)
        )
        with self._inference():
            weights = counting.represent(rows).flatten()
            before = float((weights > 0).sum()) / len(rows)
            if bias is None or before <= terms:
                return before, 0.0
            # Halfway between the last term kept and the first left out, so that rounding, which
            # differs from chip to chip, decides neither.
            outside = len(weights) - terms * len(rows)
            nearest = [weights.kthvalue(place).values.expm1() for place in (outside, outside + 1)]
            if self.settings.activation == "log1p_relu":
                nearest = [value.expm1() for value in nearest]
            lowered = sum(nearest) / 2
            bias -= lowered
        return before, float(lowered)

    def encode_queries(self, texts: Sequence[str]) -> csr_matrix:
        """One row of weights per query."""
        kept, rows = self.settings.query_terms, self.tokenise_queries(texts)
        if self.query_terms is None:
            return heaviest(self._vectors(rows, queries=True), kept)
        return heaviest(self.query_terms.matrix(rows, self.tokenizer.special_ids), kept)

    def encode_documents(self, documents: Sequence[Document]) -> csr_matrix:
        """One row of weights per document, of its title too where made with titles."""
        return heaviest(self._vectors(self.tokenise(documents)), self.settings.document_terms)

    def encode_blocks(
        self, blocks: Iterable[Sequence[Document]], encoded: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Sequence[Document], Any]]:
        """Each block with what `encode_documents` makes of it, while the next one is tokenised.

        `encoded` is called after every batch with the number of its documents.
        """
        for block, matrix in super().encode_blocks(blocks, encoded):
            yield block, heaviest(matrix, self.settings.document_terms)

    def terms(self, row: csr_matrix) -> list[tuple[str, float]]:
        """The tokens of one vector with their weights, highest first."""
        assert row.shape == (1, self.dimension), f"{row.shape} is not one vector"
        order = np.lexsort((row.indices, -row.data))
        tokens = self.tokenizer.names(row.indices[order].tolist())
        return list(zip(tokens, row.data[order].tolist(), strict=True))

    def save(self, folder: Path) -> None:
        """Writes the encoder for isthmus, transformers and, where it can, sentence-transformers."""
        super().save(folder)
        if self.query_terms is not None:
            side = query_digest(self.query_terms, self.tokenizer, self.settings)
            self.query_terms.save(folder, f"{side} {self._digest()}")

    def restore(self, folder: Path) -> None:
        """Loads the weights that `save` wrote into this very encoder."""
        super().restore(folder)
        if self.query_terms is not None:
            self.query_terms.restore(folder)

    def _regular(self, ids: Tensor, mask: Tensor) -> Tensor:
        """True at the positions of tokens that are neither special nor padding."""
        self._special = self._special.to(ids.device)
        return mask.bool() & ~self._special[ids]

    def _take(self, vectors: Tensor) -> csr_matrix:
        """The vectors as a sparse matrix; the device finds the entries."""
        rows, terms = vectors.nonzero(as_tuple=True)
        number = torch.arange(len(vectors) + 1, device=rows.device)
        found = vectors[rows, terms], terms.int(), torch.searchsorted(rows, number, out_int32=True)
        entries = tuple(part.cpu().numpy() for part in found)
        return csr_matrix(entries, shape=(len(vectors), vectors.shape[1]))

    def _join(self, parts: Sequence[csr_matrix]) -> csr_matrix:
        matrix: csr_matrix = vstack(parts, format="csr")
        return matrix

    def _describe_elsewhere(self, folder: Path) -> None:
        settings = self.settings
        if reason := self._only_here():
            if not self._noticed:
                notice(f"no modules.json for sentence-transformers: there, {reason}")
                self._noticed = True
            return
        pooling = {
            "pooling_strategy": settings.pooling_strategy,
            "activation_function": settings.activation,  # a log1p follows whatever it is
            "word_embedding_dimension": self.dimension,
        }
        modules: list[tuple[str, Mapping[str, Any] | None]] = [
            ("sparse_encoder.models.MLMTransformer", None),
            ("sparse_encoder.models.SpladePooling", pooling),
        ]
        if self.query_terms is not None:
            limit = settings.query_max_length
            write_router(folder, self.query_terms, self.tokenizer, limit, pooling)
            modules = [("models.Router", None)]
        stated = {
            **self._prompts(),
            "model_type": "SparseEncoder",  # without it, a sparse autoencoder is put on top
            "similarity_fn_name": "dot",
            "max_active_dims": settings.document_terms,
        }
        write_modules(folder, modules, settings.document_max_length, stated)

    def _only_here(self) -> str:
        """Why sentence-transformers would give other vectors; "" where it gives the same."""
        settings, tokens = self.settings, len(self.tokenizer.pretrained.get_vocab())
        if settings.form == "lexmae":
            return "special tokens give weight too, which form=lexmae leaves out"
        if settings.query_terms != settings.document_terms:
            return "queries and documents keep equally many terms"
        if settings.query == "terms" and self.dimension != tokens:
            return (
                f"query terms are the tokenizer's {tokens:,} tokens, and the model's vectors have "
                f"{self.dimension:,} entries"
            )
        return ""


def query_digest(terms: QueryTerms, tokenizer: Tokenizer, settings: SparseSettings) -> str:
    """A digest of all that queries depend on where no transformer reads them."""
    digest = xxhash.xxh3_128(terms.theta.detach().cpu().numpy().data)
    digest.update(tokenizer.fingerprint.encode())
    digest.update(settings.model_dump_json().encode())
    return digest.hexdigest()


def term_weights(backbone: Backbone, states: Tensor, inside: Tensor, form: SparseForm) -> Tensor:
    """max_i or Σ_i of log1p(relu(head(H_i))) over positions inside, [rows, vocabulary] in float32.

    With a second log1p where the form says so. None of these ever falls, so a maximum is taken
    first. A row without a position inside has no weights.
    """

    def weigh(logits: Tensor) -> Tensor:
        weights = logits.relu().log1p()
        return weights.log1p() if form.activation == "log1p_relu" else weights

    prediction = backbone.predict(states)
    if form.pooling_strategy == "sum":
        return prediction.summed(inside, weigh)
    return weigh(prediction.largest(inside))


def heaviest(matrix: csr_matrix, count: int | None) -> csr_matrix:
    """The matrix with at most `count` entries a row, the largest; of equals, the first columns."""
    sizes = np.diff(matrix.indptr)
    if count is None or sizes.max(initial=0) <= count:
        return matrix
    rows = np.repeat(np.arange(matrix.shape[0]), sizes)
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    ranks = np.arange(len(rows)) - matrix.indptr[rows]
    kept = np.sort(order[ranks < count])  # entries of a row stay in the order of their columns
    starts = np.concatenate([[0], np.cumsum(np.minimum(sizes, count))]).astype(np.int32)
    return csr_matrix((matrix.data[kept], matrix.indices[kept], starts), shape=matrix.shape)


@dataclass(frozen=True)
class QuerySide:
    """Encodes queries as the encoder that it is a side of, whose fingerprint it has."""

    name: str
    fingerprint: str
    terms: QueryTerms
    tokenizer: Tokenizer
    settings: SparseSettings

    def encode_queries(self, texts: Sequence[str]) -> csr_matrix:
        """One row of weights per query."""
        settings = self.settings
        rows = self.tokenizer.encode(settings.as_queries(texts), settings.query_max_length)
        weights = self.terms.matrix(rows, self.tokenizer.special_ids)
        return heaviest(weights, settings.query_terms)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to weigh."""
        return self.tokenizer.has_tokens(text)
