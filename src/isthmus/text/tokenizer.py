"""Any fast tokenizer, with what training needs to know about its vocabulary, or one learnt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from pathlib import Path
from string import punctuation
from typing import Any
from unicodedata import category

import numpy as np
import numpy.typing as npt
import xxhash
from tokenizers import Encoding, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel

from isthmus.config.model_files import load_pretrained, loadable, model_file
from isthmus.errors import InputError

_TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model",
    "tokenizer.model",
)  # fmt: skip
_PART = "tokenizer of"  # in messages
_RARE = "a Z 7 \u00df \u5b57 \u0378 \U0001f9ff"  # a text whose characters few vocabularies all have
_UNUSED = re.compile(r"^\[unused\d+\]$")
Ids = npt.NDArray[np.int64]


class Tokenizer:
    """A fast tokenizer of transformers without padding or truncation of its own.

    Special tokens come from the tokenizer itself (`all_special_ids`, and `[unusedN]` where the
    vocabulary has them), never from id ranges.
    """

    def __init__(self, pretrained: Any) -> None:
        self.pretrained = pretrained
        self.backend: FastTokenizer = pretrained.backend_tokenizer
        # all-MiniLM's file has both baked in, which would silently cut every text at 128 tokens.
        self.backend.no_padding()
        self.backend.no_truncation()

    @classmethod
    def load(cls, name: str) -> Tokenizer:
        """The tokenizer of a model folder or hub name; slow tokenizers are refused."""
        from transformers import AutoTokenizer

        folder = Path(name)
        # transformers makes an empty tokenizer for a folder without one; that is never meant.
        if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
            raise InputError(
                f"the model folder {name!r} has no tokenizer ({', '.join(_TOKENIZER_FILES)})",
                "save it there: AutoTokenizer.from_pretrained(…).save_pretrained(folder)",
            )
        pretrained = load_pretrained(AutoTokenizer, name, _PART)
        if not pretrained.is_fast:
            raise InputError(
                f"the tokenizer of {name!r} is not a fast one (tokenizer.json)",
                "convert it with transformers (convert_slow_tokenizer) and save it",
            )
        with loadable(name, _PART):  # some damage shows only when a text is read
            tokenizer = cls(pretrained)
            assert tokenizer.rows > 0
            tokenizer.encode([_RARE], 16)
        return tokenizer

    @classmethod
    def read(cls, name: str) -> Tokenizer | None:
        """The tokenizer of a folder or hub name from tokenizer.json alone, without transformers.

        It reads texts, and is not saved. None where there is no such file. Where the files beside
        it change how texts are read, its fingerprint differs from that of `load`.
        """
        file = model_file(name, "tokenizer.json")
        with loadable(name, _PART):
            return None if file is None else cls(_TokenizerFile(file))

    def save(self, folder: Path) -> None:
        """Writes the tokenizer as transformers reads it."""
        self.pretrained.save_pretrained(str(folder))

    def __len__(self) -> int:
        return len(self.pretrained)

    @cached_property
    def rows(self) -> int:
        """How many embeddings a model needs: one more than the largest id of any token."""
        ids = [*self.backend.get_vocab().values(), *self.prefix, *self.suffix, self.pad_id]
        return int(1 + max(*ids, *self.special_ids.tolist(), len(self) - 1))

    @cached_property
    def serialised(self) -> str:
        """The whole tokenizer as JSON, to hand to another process."""
        return self.backend.to_str()

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever any text might be tokenised differently."""
        return xxhash.xxh3_128_hexdigest(self.serialised.encode())

    @cached_property
    def special_ids(self) -> Ids:
        """Ids that are never masked, never labels and never in a bag."""
        unused = [i for token, i in self.backend.get_vocab().items() if _UNUSED.match(token)]
        return np.unique(np.array([*self.pretrained.all_special_ids, *unused], dtype=np.int64))

    @cached_property
    def regular_ids(self) -> Ids:
        """All other ids."""
        return np.setdiff1d(np.arange(len(self), dtype=np.int64), self.special_ids)

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a single text, found by encoding one."""
        bare = self.backend.encode("a", add_special_tokens=False).ids
        framed = self.backend.encode("a", add_special_tokens=True).ids
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        return framed, []

    @property
    def prefix(self) -> list[int]:
        """What stands before a text: [CLS] for BERT."""
        return self._frame[0]

    @property
    def suffix(self) -> list[int]:
        """What stands after a text: [SEP] for BERT."""
        return self._frame[1]

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        mask = self.pretrained.mask_token_id
        if mask is None:
            raise InputError(
                f"the tokenizer of {str(self.pretrained.name_or_path)!r} has no mask token",
                "choose a masked language model",
            )
        return int(mask)

    @property
    def pad_id(self) -> int:
        """The id that fills rows up; 0 where the tokenizer names none."""
        return int(self.pretrained.pad_token_id or 0)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left."""
        return bool(self.backend.encode(text, add_special_tokens=False).ids)

    def names(self, ids: Iterable[int]) -> list[str]:
        """The tokens of these ids, to be read; `[ID]` for one that only pads a model's matrix.

        Tokens of bytes are shown as their letters, with a word's start as SentencePiece marks it.
        """
        tokens = [self.backend.id_to_token(one) or f"[{one}]" for one in ids]
        if not isinstance(self.backend.decoder, ByteLevel):
            return tokens
        letters = [self.backend.decoder.decode([token]) for token in tokens]
        return [
            token if "\ufffd" in text else text.replace(" ", "\u2581")
            for token, text in zip(tokens, letters, strict=True)
        ]

    def encode(self, texts: list[str], max_length: int) -> list[list[int]]:
        """Token ids with special tokens, cut to `max_length` in all, one list per text."""
        return self.framed(self.split(texts), max_length)

    def split(self, texts: list[str]) -> list[Encoding]:
        """The tokens of each text alone, found by all cores, without Python's lock."""
        return self.backend.encode_batch_fast(texts, add_special_tokens=False)

    def starts(self, texts: list[str]) -> list[Ids]:
        """The character at which each token of each text begins."""
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        return [np.array([start for start, _ in one.offsets], dtype=np.int64) for one in encodings]

    def placed(self, texts: list[str], max_length: int) -> list[tuple[Ids, Ids]]:
        """What `encode` gives of each text, and the characters of each token; -1, -1 of special."""
        room, found = max_length - len(self.prefix) - len(self.suffix), []
        before, after = (np.full((len(part), 2), -1) for part in self._frame)
        for one in self.backend.encode_batch(texts, add_special_tokens=False):
            ids = [*self.prefix, *one.ids[:room], *self.suffix]
            spans = np.fromiter(chain.from_iterable(one.offsets[:room]), np.int64).reshape(-1, 2)
            found.append((np.array(ids, np.int64), np.concatenate([before, spans, after])))
        return found

    def framed(self, encodings: list[Encoding], max_length: int) -> list[list[int]]:
        """The ids of encodings with special tokens, cut to `max_length` in all."""
        room = max_length - len(self.prefix) - len(self.suffix)
        return [[*self.prefix, *encoding.ids[:room], *self.suffix] for encoding in encodings]

    def frame(self, tokens: npt.NDArray[np.integer], max_length: int) -> Ids:
        """The ids of one tokenised text with special tokens, cut to `max_length` in all."""
        room = max_length - len(self.prefix) - len(self.suffix)
        before, after = (np.array(part, dtype=np.int64) for part in self._frame)  # may be empty
        return np.concatenate([before, tokens[:room], after], dtype=np.int64)


class _TokenizerFile:
    """A tokenizer read from tokenizer.json alone, without importing transformers."""

    pad_token_id = 0  # whatever it is: padding is masked

    def __init__(self, file: Path) -> None:
        self.backend_tokenizer = FastTokenizer.from_file(str(file))
        added = self.backend_tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in added.items() if token.special]

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_tokenizer(texts: Iterable[str], vocabulary: int = 16_000) -> Tokenizer:
    """A lower-casing WordPiece tokenizer of at most `vocabulary` tokens, as BERT's.

    The same texts always give the same one. They are read twice.
    """
    assert iter(texts) is not texts, "can be read once only"
    backend = _backend(models.WordPiece(unk_token="[UNK]"))
    # Among equally frequent pairs, the trainer joins the one of smaller numbers first, and it
    # numbers letters inside of words in the order of a hash table, another in every process. What
    # it calls special is numbered first, in the order given.
    letters = [f"##{letter}" for letter in _inner_letters(texts, backend.normalizer)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*_SPECIAL, *letters], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return _framed(_backend(models.WordPiece(backend.get_vocab(), unk_token="[UNK]")))


def _inner_letters(texts: Iterable[str], normalizer: normalizers.Normalizer) -> list[str]:
    """All characters inside of words, sorted; punctuation is a word of its own."""
    found: set[str] = set()
    for text in texts:
        found.update(*(word[1:] for word in normalizer.normalize_str(text).split()))
    return sorted(
        letter for letter in found if letter not in punctuation and category(letter)[0] != "P"
    )


def _backend(model: models.WordPiece) -> FastTokenizer:
    backend = FastTokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()  # or pieces are never put together again
    return backend


def _framed(backend: FastTokenizer) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    ids = {token: number for number, token in enumerate(_SPECIAL)}
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            unk_token="[UNK]",
            pad_token="[PAD]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )
    )
