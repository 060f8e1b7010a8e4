"""The three families of tokenizers: ids as transformers gives them, words and sentences as read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TEXT = "Unbelievable happenings, again. The naïve cats reappeared! Was it so? Yes, happily."
CORPUS = [TEXT, "cats appear again and again", "believe the happy cat", "it was naïve"] * 2
MARKS = str.maketrans("", "", "#Ġ▁")  # what shows a word's beginning or continuation
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece() -> Tokenizer:
    return new_tokenizer(CORPUS, 80)


def byte_level(trim_offsets: bool = True) -> Tokenizer:
    backend = FastTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim_offsets
    )
    return wrapped(backend)


def untrimmed_byte_level() -> Tokenizer:
    return byte_level(trim_offsets=False)


def unigram() -> Tokenizer:
    backend = FastTokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=70, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return wrapped(backend)


def wrapped(backend: FastTokenizer) -> Tokenizer:
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token="<s>",
            eos_token="</s>",
            cls_token="<s>",
            sep_token="</s>",
            pad_token="<pad>",
            unk_token="<unk>",
            mask_token="<mask>",
        )
    )


FAMILIES = [word_piece, byte_level, untrimmed_byte_level, unigram]
family = pytest.mark.parametrize("make", FAMILIES)


@family
def test_ids_are_those_of_transformers(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    texts = [TEXT, "", "cats", " again  and again ", "日本 🙂", "<mask> [MASK] x"]
    expected = tokenizer.pretrained(texts, padding=False, truncation=False)["input_ids"]
    assert tokenizer.encode(texts, 10_000) == expected
    cut = tokenizer.pretrained(texts, padding=False, truncation=True, max_length=9)["input_ids"]
    # The tokenizer keeps the truncation it was asked for once; ours has none of its own.
    tokenizer.backend.no_truncation()
    assert tokenizer.encode(texts, 9) == cut


@family
def test_words_are_found_whatever_marks_them(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    corpus = tokenise([Document("1", TEXT)], "s", tokenizer.serialised, cache=tmp_path)
    document = corpus[0]
    groups: dict[int, list[int]] = {}
    for token, word in zip(document.tokens.tolist(), document.words.tolist(), strict=True):
        groups.setdefault(word, []).append(token)
    assert max(len(tokens) for tokens in groups.values()) > 1, "some words have several pieces"
    encoding = tokenizer.backend.encode(TEXT, add_special_tokens=False)
    spans: dict[int | None, str] = {}
    for (begin, end), word in zip(encoding.offsets, encoding.word_ids, strict=True):
        spans[word] = spans.get(word, "") + TEXT[begin:end]
    found = [spans[word].strip() for word in groups]
    attached = make is unigram  # its words are cut at spaces alone
    apart = TEXT.split() if attached else None
    for word in ("again", "cats", "happily"):
        expected = next(w for w in apart if w.startswith(word)) if apart else word
        assert expected in found


@family
def test_sentences_begin_at_their_first_word(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    corpus = tokenise([Document("1", TEXT)], "s", tokenizer.serialised, cache=tmp_path)
    document = corpus[0]
    bounds = [*document.sentences.tolist(), len(document.tokens)]
    sentences = []
    for begin, end in itertools.pairwise(bounds):
        pieces = tokenizer.pretrained.convert_ids_to_tokens(document.tokens[begin:end].tolist())
        sentences.append("".join(pieces).translate(MARKS).lower())
    assert [len(sentences), *(s[:3] for s in sentences)] == [4, "unb", "the", "was", "yes"]


@family
def test_special_and_regular_ids(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    assert tokenizer.special_ids.tolist() == [0, 1, 2, 3, 4]
    assert tokenizer.regular_ids.tolist() == list(range(5, len(tokenizer)))
    framed = tokenizer.pretrained("cats")["input_ids"]
    assert framed == tokenizer.prefix + framed[1:-1] + tokenizer.suffix
    assert (tokenizer.prefix, tokenizer.suffix) == ([framed[0]], [framed[-1]])
    assert tokenizer.mask_id == tokenizer.pretrained.mask_token_id
    assert tokenizer.pad_id == tokenizer.pretrained.pad_token_id


@family
def test_saving_and_loading_is_the_identity(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    tokenizer.save(tmp_path)
    again = Tokenizer.load(str(tmp_path))
    assert again.encode(CORPUS, 50) == tokenizer.encode(CORPUS, 50)
    assert again.special_ids.tolist() == tokenizer.special_ids.tolist()
    again.save(tmp_path / "twice")
    assert Tokenizer.load(str(tmp_path / "twice")).fingerprint == again.fingerprint


def test_fingerprints_tell_tokenizers_apart() -> None:
    assert len({make().fingerprint for make in FAMILIES}) == len(FAMILIES)
