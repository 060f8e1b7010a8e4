"""Cross-encoders: query and document read together, one score out. Re-rankers and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from isthmus.encoders.encoder import EncoderSettings, TextModel, batch_tokens, pad
from isthmus.encoders.transfers import send, taken
from isthmus.errors import SettingsError
from isthmus.nn.classifier import Classifier
from isthmus.nn.packing import token_places
from isthmus.records import Document
from isthmus.text.order import length_sorted_batches
from isthmus.text.tokenizer import Tokenizer

Tokens = Sequence[int] | npt.NDArray[np.integer]


class Pairing:
    """Pairs of at most query_max_length + document_max_length tokens, special ones included.

    Only a pair that does not fit is cut. Its query then keeps at least query_max_length, and its
    document gets what the query leaves: with halves, sentence-transformers' `longest_first`.
    """

    def __init__(self, tokenizer: Tokenizer, settings: EncoderSettings) -> None:
        self.max_length = settings.query_max_length + settings.document_max_length
        self.pad_id = tokenizer.pad_id
        # A pair is taken as the example for all: whatever stands around its texts is the frame.
        example = tokenizer.backend.encode("a", "b", add_special_tokens=True)
        ids = np.array(example.ids, dtype=np.int64)
        # A tokenizer that hands no segments out (ModernBERT's) numbers them all the same.
        used = "token_type_ids" in tokenizer.pretrained.model_input_names
        segments = np.array(example.type_ids, dtype=np.int64) * used
        owners = np.array([-1 if owner is None else owner for owner in example.sequence_ids])
        query, document = np.flatnonzero(owners == 0), np.flatnonzero(owners == 1)
        assert min(len(query), len(document)), "the tokenizer leaves nothing of a letter"
        assert query[-1] < document[0], "the tokenizer puts the second text first"
        gaps = np.split(
            np.arange(len(ids)), [query[0], query[-1] + 1, document[0], document[-1] + 1]
        )
        self._frame = [ids[gap] for gap in (gaps[0], gaps[2], gaps[4])]
        # Of the frame, and of each text once, at places that are known.
        kept = np.concatenate([gaps[0], query[:1], gaps[2], document[:1], gaps[4]])
        self._segments = segments[kept]
        self._texts = np.searchsorted(kept, [query[0], document[0]])
        self.room = self.max_length - sum(len(part) for part in self._frame)
        self._query_room = settings.query_max_length - len(tokenizer.prefix + tokenizer.suffix)

    def pad(
        self, queries: Sequence[Tokens], documents: Sequence[Tokens]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and segment numbers of some pairs, filled up to the longest."""
        pairs = [self.cut(*texts) for texts in zip(queries, documents, strict=True)]
        before, between, after = self._frame
        parts = [(before, query, between, text, after) for query, text in pairs]
        rows = [np.concatenate(row, dtype=np.int64, casting="unsafe") for row in parts]  # [] floats
        ids, mask = pad(rows, self.pad_id)
        # How many tokens have each segment number of the example: one, but for the texts.
        counts = np.ones((len(pairs), len(self._segments)), dtype=np.int64)
        counts[:, self._texts] = [(len(query), len(text)) for query, text in pairs]
        numbers = np.repeat(np.tile(self._segments, len(pairs)), counts.ravel())
        segments = torch.zeros_like(ids)
        segments[mask.bool()] = torch.from_numpy(numbers)
        return ids, mask, segments

    def cut(self, query: Tokens, document: Tokens) -> tuple[Tokens, Tokens]:
        """What is read of both texts of a pair."""
        if len(query) + len(document) > self.room:
            query = query[: max(self._query_room, self.room - len(document))]
            document = document[: self.room - len(query)]
        return query, document


class CrossSettings(EncoderSettings):
    """How much of a pair is read: one text of at most both lengths together."""


class CrossEncoder(TextModel):
    """A sequence classifier with one label, whose logit is the score of a pair."""

    kind = "cross"
    backbone: Classifier
    settings: CrossSettings

    def __init__(
        self, backbone: Classifier, tokenizer: Tokenizer, settings: CrossSettings, name: str = ""
    ) -> None:
        super().__init__(backbone, tokenizer, settings, name)
        self.pairing = Pairing(tokenizer, settings)
        if self.pairing.max_length > backbone.positions:
            fitting = backbone.positions - settings.query_max_length
            lower = f"--set document_max_length={fitting}" if fitting > 3 else "lower both lengths"
            raise SettingsError(
                f"query_max_length + document_max_length = {self.pairing.max_length}, but the "
                f"cross-encoder reads both as one text of at most {backbone.positions} tokens",
                lower,
            )

    @property
    def model(self) -> nn.Module:
        """The classifier, as transformers made it."""
        model: nn.Module = self.backbone.model
        return model

    @property
    def _state(self) -> Mapping[str, Tensor]:
        return self.backbone.state_dict()

    def represent(
        self, ids: Tensor, mask: Tensor, segments: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The float32 scores of padded pairs, with gradients; `tokens` as the backbone's."""
        return self.backbone.score(ids, mask, segments, tokens)

    def score(self, pairs: Sequence[tuple[str, str | Document]]) -> npt.NDArray[np.float32]:
        """The score of each pair of a query and a text or document.

        Args:
            pairs: Queries with texts, or with documents, whose titles count if the model was
                trained with titles.

        """
        titles = self.settings.titles
        queries = self.tokens([query for query, _ in pairs])
        documents = self.tokens(
            [one if isinstance(one, str) else one.contents(titles) for _, one in pairs]
        )
        return self.score_tokens(queries, documents)

    def score_tokens(
        self, queries: Sequence[Tokens], documents: Sequence[Tokens]
    ) -> npt.NDArray[np.float32]:
        """The score of each pair queries[n], documents[n], from token ids without special ones."""
        both = zip(queries, documents, strict=True)
        lengths = np.array([len(query) + len(text) for query, text in both], dtype=np.int64)
        scores = np.empty(len(lengths), dtype=np.float32)
        device = self.backbone.word_embeddings.device
        lengths = np.minimum(lengths, self.pairing.room)
        batches = length_sorted_batches(lengths, batch_tokens(device))

        def results() -> Iterator[Tensor]:
            for batch in batches:
                rows = self.pairing.pad([queries[i] for i in batch], [documents[i] for i in batch])
                tokens = token_places(rows[1])
                yield self.represent(*(send(part, device) for part in (*rows, tokens)))

        with self._inference():
            parts = taken(results(), lambda part: part.cpu().numpy())
            for batch, part in zip(batches, parts, strict=True):
                scores[batch] = part
        return scores

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without special ones; a repeated text is tokenised once."""
        distinct = list(dict.fromkeys(texts))
        encodings = self.tokenizer.split(distinct)
        known = {text: encoding.ids for text, encoding in zip(distinct, encodings, strict=True)}
        return [known[text] for text in texts]

    def save(self, folder: Path) -> None:
        """Writes the model for isthmus, transformers and sentence-transformers 5 and 6 alike."""
        # sentence-transformers would put a sigmoid on top, and read as much as there are positions.
        identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
        self.backbone.config.sentence_transformers = identity
        self.tokenizer.pretrained.model_max_length = self.pairing.max_length
        super().save(folder)

    def _describe_elsewhere(self, folder: Path) -> None:
        """Nothing: sentence-transformers reads config.json and the tokenizer's."""


Reranker = CrossEncoder
"""What scores pairs of a query and a text, by its public name."""
