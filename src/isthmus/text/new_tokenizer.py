"""A WordPiece tokenizer learnt from the corpus, for encoders that start from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from string import punctuation
from unicodedata import category

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from isthmus.text.tokenizer import Tokenizer

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
