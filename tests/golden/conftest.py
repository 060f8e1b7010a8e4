"""A BERT small enough to recompute with plain numbers."""

from __future__ import annotations

from string import ascii_lowercase

import pytest
import torch
from tests.factories import WITHOUT_DROPOUT, bert
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.step import Vocabulary
from isthmus.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A few words, letters and their continuations, written down: a learnt one breaks ties anew."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["cat", "sat", "on", "mat", "dog", "ran", "to", "the", "end"]
    pieces = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    ids = {token: number for number, token in enumerate([*special, *words, *pieces])}
    backend = FastTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )
    )


@pytest.fixture
def backbone(tokenizer: Tokenizer) -> Backbone:
    """A random BERT in float64; its matrix has three rows more than the tokenizer has tokens."""
    torch.manual_seed(3)
    config = bert(
        len(tokenizer) + 3,
        hidden_size=8,
        intermediate_size=16,
        max_position_embeddings=144,
        initializer_range=0.4,
        **WITHOUT_DROPOUT,
    )
    backbone = Backbone(BertForMaskedLM(config)).double()
    for parameter in backbone.parameters():  # biases and LayerNorms that matter
        parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


@pytest.fixture
def vocabulary(tokenizer: Tokenizer, backbone: Backbone) -> Vocabulary:
    return Vocabulary(tokenizer, size=len(backbone.word_embeddings))
