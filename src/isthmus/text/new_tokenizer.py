"""A WordPiece tokenizer learnt from the corpus, for encoders that start from nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from isthmus.text.tokenizer import Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_tokenizer(texts: Iterable[str], vocabulary: int = 16_000) -> Tokenizer:
    """A lower-casing WordPiece tokenizer of at most `vocabulary` tokens, as BERT's."""
    backend = _backend(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return _framed(backend)


def numbered_tokenizer(vocabulary: int) -> Tokenizer:
    """One of exactly `vocabulary` tokens that stand for nothing, where no text is read."""
    tokens = [*_SPECIAL, *(f"token{number}" for number in range(vocabulary - len(_SPECIAL)))]
    ids = {token: number for number, token in enumerate(tokens)}
    return _framed(_backend(models.WordPiece(ids, unk_token="[UNK]")))


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
