"""Any fast tokenizer; what is none is refused with a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import pre_tokenizers
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from isthmus.errors import InputError
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TEXTS = ["the quick brown fox [unused1] jumps", "over the lazy dog"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_tokenizer(TEXTS, 80).save(tmp_path)
    return tmp_path


def test_the_same_texts_give_the_same_tokenizer() -> None:
    # Few words, so that most pairs of letters are equally frequent: ties are what decides.
    texts = [
        "Bänke wandern – über 40° oder 中文 nachts",
        "zwölf Boxkämpfer jagen Viktor quer",
        *TEXTS,
    ]
    tokenizers = [new_tokenizer(texts, 150) for _ in range(3)]
    assert len({tokenizer.serialised for tokenizer in tokenizers}) == 1
    vocabulary = tokenizers[0].backend.get_vocab()
    assert {"##a", "##°"} <= vocabulary.keys()
    assert not {"##–", "##.", "##文"} & vocabulary.keys(), "never inside of a word"
    assert tokenizers[0].special_ids.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(AssertionError, match="once only"):
        new_tokenizer(iter(texts), 150)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        Tokenizer.load(str(tmp_path))
    assert f"the model folder {str(tmp_path)!r} has no tokenizer" in caught.value.what
    assert "tokenizer.json" in caught.value.what
    assert "save_pretrained" in caught.value.fix


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(InputError, match="cannot be loaded") as caught:
        Tokenizer.load(str(tmp_path))
    assert str(tmp_path) in caught.value.what


def test_truncation_and_padding_baked_into_the_file_are_switched_off(folder: Path) -> None:
    tokenizer = Tokenizer.load(str(folder))
    tokenizer.backend.enable_truncation(4)
    tokenizer.backend.enable_padding(length=50)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    again = Tokenizer.load(str(folder))
    assert len(again.encode(["the quick brown fox"] * 2, 100)[0]) > 5
    assert again.encode(["fox", "the lazy dog"], 100)[0][-1] == again.suffix[-1]


def test_unused_tokens_are_special(folder: Path) -> None:
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary = values["model"]["vocab"]
    vocabulary["[unused0]"], vocabulary["[unused17]"] = len(vocabulary), len(vocabulary) + 1
    vocabulary["[unusedx]"] = len(vocabulary)
    file.write_text(json.dumps(values))
    tokenizer = Tokenizer.load(str(folder))
    special = {*range(5), vocabulary["[unused0]"], vocabulary["[unused17]"]}
    assert set(tokenizer.special_ids.tolist()) == special
    assert not special & set(tokenizer.regular_ids.tolist())
    assert len(tokenizer.regular_ids) + len(special) == len(tokenizer)


def test_a_tokenizer_without_mask(folder: Path) -> None:
    tokenizer = Tokenizer.load(str(folder))
    tokenizer.pretrained.mask_token = None
    with pytest.raises(InputError, match="no mask token"):
        _ = tokenizer.mask_id


def test_texts_are_cut_to_the_limit_frame_included(folder: Path) -> None:
    tokenizer = Tokenizer.load(str(folder))
    (ids,) = tokenizer.encode(["the quick brown fox jumps over"], 5)
    assert len(ids) == 5
    assert ids[0] == tokenizer.pretrained.cls_token_id
    assert ids[-1] == tokenizer.pretrained.sep_token_id


def test_a_learnt_tokenizer_is_as_large_as_asked_and_lower_cases() -> None:
    tokenizer = new_tokenizer(["Café au lait; déjà vu"] * 3, 40)
    assert 30 < len(tokenizer) <= 40
    assert tokenizer.encode(["CAFÉ"], 20) == tokenizer.encode(["cafe"], 20)
    assert tokenizer.encode(["Ж"], 20)[0][1] == tokenizer.pretrained.unk_token_id


def test_tokens_of_bytes_are_named_by_their_letters() -> None:
    backend = FastTokenizer(BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the \u00fcber fox"] * 5, trainer)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    (encoding,) = tokenizer.split(["the \u00fcber fox"])
    assert tokenizer.names(encoding.ids) == ["\u2581the", "\u2581\u00fcber", "\u2581fox"]
    (half,) = tokenizer.split(["\u00e9"])
    assert tokenizer.names([half.ids[1]]) == ["\u00c3"], "a part of a letter, as the file has it"
    assert tokenizer.names([999]) == ["[999]"]
