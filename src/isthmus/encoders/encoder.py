"""What every encoder shares: texts go through a backbone in batches of like length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.encoders.transfers import send, taken
from isthmus.errors import InputError, shown
from isthmus.nn.backbone import Backbone
from isthmus.nn.numerics import check_as_stored, native_bf16
from isthmus.nn.packing import token_places
from isthmus.records import Document
from isthmus.text.order import CutTexts, length_sorted_batches
from isthmus.text.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

SETTINGS_FILE = "encoder.json"
# Tokens in one batch, padding included. On a CPU, buffers of many megabytes leave the caches, and
# are allocated anew for every layer: on two busy cores, MiniLM took 46 to 59 µs a token
# in batches of 2,048, 72 to 81 in batches of 16,384. A GPU is kept waiting by so few.
ON_CPU, ON_GPU = 1 << 11, 1 << 16
_NUMBERS = 1 << 28  # in the vectors of one batch: 1 GB, many short texts have large sparse ones
Tokens = list[int]
Batch = npt.NDArray[np.int64]  # the places of its texts
Block = TypeVar("Block")


class EncoderSettings(Settings):
    """How much of a text an encoder reads; travels with the model."""

    query_max_length: int = Field(64, ge=4, description="tokens, special ones included")
    document_max_length: int = Field(144, ge=4, description="tokens, special ones included")
    titles: bool = Field(True, description="whether titles are part of a document's text")

    def prompts(self) -> tuple[str, str]:
        """What is put before every query, and before every document."""
        return "", ""

    def room(self, tokenizer: Tokenizer) -> int:
        """The tokens that are left to a document beside its prompt and special ones."""
        taken = len(tokenizer.prefix) + self.prompt_tokens(tokenizer) + len(tokenizer.suffix)
        return max(1, self.document_max_length - taken)

    def prompt_tokens(self, tokenizer: Tokenizer) -> int:
        """The tokens of what is put before every document."""
        (prompt,) = tokenizer.split([self.prompts()[1]])
        return len(prompt)

    def as_queries(self, texts: Iterable[str]) -> list[str]:
        """The texts as the model reads them where they are queries."""
        return [self.prompts()[0] + text for text in texts]


class VectorSettings(EncoderSettings):
    """How much of a text an encoder of vectors reads, and after which prompt."""

    query_prompt: str = Field("", description="put before every query")
    document_prompt: str = Field("", description="put before every document")

    def prompts(self) -> tuple[str, str]:
        """What is put before every query, and before every document."""
        return self.query_prompt, self.document_prompt


class TextModel(ABC):
    """A backbone, its tokenizer and its settings: what is trained, saved and fingerprinted."""

    kind: ClassVar[str]
    rounded = False  # whether weights are in bf16, near those that are stored

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: EncoderSettings, name: str = ""
    ) -> None:
        backbone.check_tokens(tokenizer.rows)
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
        return self._digest()

    def _digest(self) -> str:
        """The fingerprint of the weights as they are now."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(self._state.items()):
            digest.update(name.encode())
            # In the precision they are loaded in, whatever they are stored in.
            exact = tensor.detach().float() if tensor.is_floating_point() else tensor
            digest.update(exact.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        digest.update(self.tokenizer.fingerprint.encode())
        digest.update(self.settings.model_dump_json().encode())
        return digest.hexdigest()

    def use_fast_inference(self, exact: bool = False) -> None:
        """Puts the model on the best device in the precision that is fastest there, or float32."""
        _ = self.fingerprint  # of the weights as they are stored, before they are rounded
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for module in self.trained:
            module.eval().to(device)
        self.rounded = native_bf16() and not exact
        if self.rounded:
            self.backbone.to(torch.bfloat16)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text reaches the model."""
        return self.tokenizer.has_tokens(text)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Switches dropout and gradients off inside."""
        was_training = self.backbone.training
        self.backbone.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.backbone.train(was_training)

    def save(self, folder: Path) -> None:
        """Writes the model for isthmus, transformers and sentence-transformers 5 and 6 alike."""
        check_as_stored(self.name, self.rounded)
        self.backbone.save(folder)
        self.tokenizer.save(folder)
        self.describe(folder)

    def restore(self, folder: Path) -> None:
        """Loads the weights that `save` wrote into this very model."""
        self.backbone.restore(folder)

    def describe(self, folder: Path) -> None:
        """Writes beside a saved model how it is meant to be used."""
        write_json(folder / SETTINGS_FILE, self.described())
        self._describe_elsewhere(folder)

    def described(self) -> dict[str, Any]:
        """The kind of encoder and its settings, as files hold them."""
        return {"kind": self.kind, **self.settings.model_dump()}

    @abstractmethod
    def _describe_elsewhere(self, folder: Path) -> None:
        """Writes the description that sentence-transformers reads."""


class Int8(Protocol):
    """Computes an encoder's vectors in place of its backbone, in 8-bit integers."""

    batches: int  # a batch of the backbone's, so many times, is one of its

    def represent(self, rows: Sequence[Tokens]) -> Tensor:
        """The float32 vectors of some texts."""

    def represent_both(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """The float32 vectors of some texts, and their last states at every place, padded."""

    def difference(self, rows: Sequence[Tokens]) -> str:
        """What the integers change for some documents, as a sentence with numbers."""


class Encoder(TextModel):
    """A backbone that turns queries and documents into vectors whose inner product is the score."""

    uses_head: ClassVar[bool]
    settings: VectorSettings
    assumed: str = ""  # of how it encodes, what nothing beside the model says
    int8: Int8 | None = None  # computes the vectors in place of the backbone

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The length of a vector."""

    @property
    def alike(self) -> bool:
        """Whether queries are represented as documents are."""
        return not self.reads_apart

    @property
    def reads_apart(self) -> bool:
        """Whether the backbone reads queries as documents, but not all that it reads counts."""
        return False

    @abstractmethod
    def represent_queries(self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The float32 vectors of padded queries, with gradients; `tokens` as the backbone's."""

    @abstractmethod
    def represent_documents(
        self, ids: Tensor, mask: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """The float32 vectors of padded documents, with gradients."""

    @abstractmethod
    def encode_documents(self, documents: Sequence[Document]) -> Any:
        """The vectors of documents, a row for each: an array, or a sparse matrix."""

    def encode(self, texts: Sequence[str | Document]) -> Any:
        """The vectors of texts as documents, a row for each: an array, or a sparse matrix.

        Args:
            texts: Texts or documents; queries are for `encode_queries`.

        """
        if isinstance(texts, str) or not all(isinstance(one, str | Document) for one in texts):
            raise InputError(
                f"{shown(texts)} cannot be encoded", "give a list of texts, or of Document"
            )
        documents = (one if isinstance(one, Document) else Document("", one) for one in texts)
        return self.encode_documents(list(documents))

    def represent(
        self, rows: Sequence[Tokens] | Sequence[npt.NDArray[np.integer]], queries: bool = False
    ) -> Tensor:
        """The vectors of documents that `tokenise` gave, on the device, not synchronised.

        With `queries`, those of queries, which the backbone reads too.
        """
        device = self.backbone.word_embeddings.device
        ids, mask = pad(rows, self.tokenizer.pad_id)
        represent = self.represent_queries if queries else self.represent_documents
        return represent(*(send(part, device) for part in (ids, mask, token_places(mask))))

    def difference_of_int8(self, documents: Sequence[Document]) -> str:
        """What the integers change for these documents, as a sentence with numbers."""
        assert self.int8 is not None, "computes in floating point"
        # Not `tokenise`: they are counted where they are encoded.
        limit = self.settings.document_max_length
        return self.int8.difference(self.tokenizer.encode(self._texts(documents), limit))

    def encode_blocks(
        self, blocks: Iterable[Sequence[Document]], encoded: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Sequence[Document], Any]]:
        """Each block with what `encode_documents` makes of it, while the next one is tokenised.

        `encoded` is called after every batch with the number of its documents.
        """
        source = iter(blocks)

        def read() -> tuple[Sequence[Document], list[Encoding]] | None:
            block = next(source, None)
            return None if block is None else (block, self.tokenizer.split(self._texts(block)))

        def tokenised() -> Iterator[tuple[Sequence[Document], list[Tokens]]]:
            with ThreadPoolExecutor(1, "tokenising") as reader:
                ahead = reader.submit(read)
                while (found := ahead.result()) is not None:
                    ahead = reader.submit(read)
                    block, encodings = found
                    # Here: there, Python's lock would keep the tokenizer's threads waiting.
                    yield block, self._framed(encodings)

        yield from self._encode(tokenised(), encoded)

    def tokenise(self, documents: Sequence[Document]) -> list[Tokens]:
        """What the model reads of each document: token ids, special ones included."""
        return self._framed(self.tokenizer.split(self._texts(documents)))

    @cached_property
    def cut_texts(self) -> CutTexts:
        """How many of the documents tokenised so far were too long, and what was lost of them."""
        settings, tokenizer = self.settings, self.tokenizer
        return CutTexts(settings.room(tokenizer), settings.prompt_tokens(tokenizer))

    def _framed(self, encodings: list[Encoding]) -> list[Tokens]:
        self.cut_texts.count(len(encoding) for encoding in encodings)
        return self.tokenizer.framed(encodings, self.settings.document_max_length)

    def tokenise_queries(self, texts: Sequence[str]) -> list[Tokens]:
        """What is read of each query: token ids, those of the prompt and special ones included."""
        if isinstance(texts, str):
            raise InputError(f"{shown(texts)} cannot be encoded", "give a list of queries")
        limit = self.settings.query_max_length
        return self.tokenizer.encode(self.settings.as_queries(texts), limit)

    def token_places(self, texts: Sequence[str], queries: bool = False) -> list[tuple[Ids, Ids]]:
        """The tokens of each text that have vectors, and of which characters each is.

        A text is that of a query, or what `Document.contents` gives. Tokens that are of none of its
        characters (special ones, those of a prompt) are at -1, -1.
        """
        settings = self.settings
        prompt, limit = settings.document_prompt, settings.document_max_length
        if queries:
            prompt, limit = settings.query_prompt, settings.query_max_length
        found = []
        for ids, spans in self.tokenizer.placed([prompt + text for text in texts], limit):
            ids, spans = self._filled_up(ids, spans) if queries else (ids, spans)
            spans[spans[:, 0] < len(prompt)] = len(prompt) - 1
            kept = self._has_vector(ids, queries)
            found.append((ids[kept], spans[kept] - len(prompt)))
        return found

    def _has_vector(self, ids: Ids, queries: bool) -> npt.NDArray[np.bool_]:
        """Which tokens of a text have a vector of their own."""
        raise NotImplementedError

    def _filled_up(self, ids: Ids, spans: Ids) -> tuple[Ids, Ids]:
        """The tokens of a query, and their places, with those that it is filled up with."""
        return ids, spans

    def _prompts(self) -> dict[str, Any]:
        """The prompts as sentence-transformers reads them; nothing where there are none."""
        both = dict(zip(("query", "document"), self.settings.prompts(), strict=True))
        return {"prompts": both} if any(both.values()) else {}

    def _texts(self, documents: Sequence[Document]) -> list[str]:
        prompt, titles = self.settings.document_prompt, self.settings.titles
        return [prompt + document.contents(titles) for document in documents]

    def _vectors(self, rows: Sequence[Tokens], queries: bool = False) -> Any:
        """The vectors of tokenised texts."""
        [(_, vectors)] = self._encode([(None, rows)], queries=queries)
        return vectors

    def _encode(
        self,
        blocks: Iterable[tuple[Block, Sequence[Tokens]]],
        encoded: Callable[[int], None] | None = None,
        queries: bool = False,
    ) -> Iterator[tuple[Block, Any]]:
        """The vectors of each block; meanwhile, a GPU computes batches of the next."""
        begun: deque[tuple[Block, list[Batch]]] = deque()

        def results() -> Iterator[Any]:
            for block, rows in blocks:
                batches = self._batches(rows)
                begun.append((block, batches))
                for batch in batches:
                    with self._inference():
                        result = self._compute([rows[i] for i in batch], queries)
                    yield result

        parts: list[Any] = []
        for part in taken(results(), self._take):
            parts.append(part)
            block, batches = begun[0]
            if encoded is not None:
                encoded(len(batches[len(parts) - 1]))
            if len(parts) == len(batches):
                begun.popleft()
                yield block, self._join(parts)[np.argsort(np.concatenate(batches))]
                parts = []

    def _batches(self, rows: Sequence[Tokens]) -> list[Batch]:
        """At least one, so that a block without texts has vectors: none."""
        tokens = batch_tokens(self.backbone.word_embeddings.device)
        if self.int8 is not None:
            tokens *= self.int8.batches
        most = max(1, _NUMBERS // self.dimension)
        batches = length_sorted_batches([len(row) for row in rows], tokens, most)
        return batches or [np.empty(0, dtype=np.int64)]

    def _compute(self, rows: Sequence[Tokens], queries: bool) -> Any:
        if not rows:
            return torch.empty(0, self.dimension)
        apart = queries and self.reads_apart
        if self.int8 is not None and not apart:  # the integers are those of documents
            return self.int8.represent(rows)
        return self.represent(rows, apart)

    @abstractmethod
    def _take(self, vectors: Any) -> Any:
        """What is kept of the vectors of a batch, on the host."""

    @abstractmethod
    def _join(self, parts: Sequence[Any]) -> Any:
        """What is kept of several batches as one, to be indexed by rows."""


def batch_tokens(device: torch.device) -> int:
    """How many tokens, padding included, are encoded at once on a device."""
    return ON_CPU if device.type == "cpu" else ON_GPU


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
