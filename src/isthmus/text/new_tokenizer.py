"""A WordPiece tokenizer learnt from the corpus, for encoders that start from nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from isthmus.text.tokenizer import Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_tokenizer(texts: Iterable[str], vocabulary: int = 16_000) -> Tokenizer:
    """A lower-casing WordPiece tokenizer of at most `vocabulary` tokens, as BERT's."""
    from transformers import PreTrainedTokenizerFast

    backend = FastTokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()  # or pieces are never put together again
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
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
