"""Cross-encoders: query and document read together, one score out. Re-rankers and teachers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from isthmus.encoders.encoder import EncoderSettings, TextModel, batch_tokens
from isthmus.encoders.pair_input import Pairing, Tokens
from isthmus.encoders.transfers import send, taken
from isthmus.errors import SettingsError
from isthmus.nn.classifier import Classifier
from isthmus.nn.packing import token_places
from isthmus.records import Document
from isthmus.text.batches import length_sorted_batches
from isthmus.text.tokenizer import Tokenizer


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

    def score(self, pairs: Sequence[tuple[str, Document]]) -> npt.NDArray[np.float32]:
        """The score of each pair; a document counts with its title where made with titles."""
        titles = self.settings.titles
        queries = self.tokens([query for query, _ in pairs])
        documents = self.tokens([document.contents(titles) for _, document in pairs])
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
