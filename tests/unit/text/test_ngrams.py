"""N-gram counts of real text, interruptions, and what is refused."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from isthmus.collections import open_corpus
from isthmus.config.models import MINILM, model_folder
from isthmus.errors import InputError, SettingsError
from isthmus.records import Document
from isthmus.text import ngrams as ngrams_module
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.ngrams import NgramCounts, count_ngrams
from isthmus.text.tokenizer import Tokenizer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "tree",
    "and",
    "then",
    "it",
    "slept",
    "all",
    "day",
]
TOKENIZER = new_tokenizer([" ".join(WORDS)] * 2, 200)


def synthetic(documents: int, cache: Path, tokenizer: Tokenizer = TOKENIZER) -> TokenisedCorpus:
    generator = random.Random(0)
    texts = (
        Document(str(n), " ".join(generator.choices(WORDS, k=generator.randint(0, 30))))
        for n in range(documents)
    )
    return tokenise(texts, f"{documents} made up", tokenizer.serialised, workers=1, cache=cache)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_real_text(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_corpus(str(shared_data / "texts" / "enwiki_sample.jsonl.zst"))
    tokenizer = Tokenizer.load(model_folder(MINILM))
    documents = islice(source.documents(), 150)
    corpus = tokenise(documents, "enwiki", tokenizer.serialised, workers=1, cache=tmp_path)
    monkeypatch.setattr(ngrams_module, "ENTRY_BYTES", 4096)
    counts = count_ngrams(corpus, tokenizer, 64 << 20)
    special = set(tokenizer.special_ids.tolist())
    for order in (1, 2, 3, 4):
        expected: Counter[tuple[int, ...]] = Counter()
        for document in corpus:
            tokens = document.tokens.tolist()
            windows = zip(*(tokens[place:] for place in range(order)), strict=False)
            expected.update(window for window in windows if special.isdisjoint(window))
        assert counts.totals[order] == expected.total()
        assert len(np.load(counts.folder / f"counts-{order}.npy")) == len(expected)
        found = counts.count(order, np.array(list(expected)))
        assert found.tolist() == list(expected.values())
    the = tokenizer.backend.token_to_id("the")
    assert counts.count(1, np.array([[the]])) / counts.totals[1] == pytest.approx(0.05, rel=0.4)


@pytest.mark.nightly
def test_two_processes_write_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams_module, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(ngrams_module, "ENTRY_BYTES", 1 << 14)
    one = count_ngrams(synthetic(600, tmp_path / "one"), TOKENIZER, 32 << 20, workers=1)
    two = count_ngrams(synthetic(600, tmp_path / "two"), TOKENIZER, 32 << 20, workers=2)
    assert contents(one.folder) == contents(two.folder)


def test_an_interrupted_count_keeps_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams_module, "ENTRY_BYTES", 1 << 15)
    whole = count_ngrams(synthetic(300, tmp_path / "whole"), TOKENIZER, 40 << 20, workers=1)
    corpus = synthetic(300, tmp_path)
    steps = {"read": 0, "merge": 0}
    read, merge = ngrams_module.read, ngrams_module.cuts_of

    def reading(*arguments: object) -> object:
        steps["read"] += 1
        if steps["read"] == 4:
            raise KeyboardInterrupt
        return read(*arguments)  # type: ignore[arg-type]

    def merging(*arguments: object) -> object:
        steps["merge"] += 1
        if steps["merge"] == 3:
            raise KeyboardInterrupt
        return merge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ngrams_module, "read", reading)
    monkeypatch.setattr(ngrams_module, "cuts_of", merging)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            count_ngrams(corpus, TOKENIZER, 40 << 20, workers=1)
        assert not (corpus.folder / "ngrams").exists()
    (corpus.folder / ".ngrams.building" / "tables" / ".keys-1.npy.7.partial").touch()
    pieces = len(list(corpus.folder.glob(".ngrams.building/spill-4-*")))
    assert pieces > 4
    counts = count_ngrams(corpus, TOKENIZER, 40 << 20, workers=1)
    assert steps == {"read": pieces + 1, "merge": 5}, "each piece is read once, orders merged once"
    assert contents(counts.folder) == contents(whole.folder)


def test_a_corpus_without_ngrams(tmp_path: Path) -> None:
    documents = [Document("1", ""), Document("2", "§"), Document("3", "")]
    corpus = tokenise(documents, "s", TOKENIZER.serialised, cache=tmp_path)
    counts = count_ngrams(corpus, TOKENIZER)
    assert counts.totals == {1: 0, 2: 0, 3: 0, 4: 0}
    assert counts.count(2, np.array([[7, 8]])).tolist() == [0]


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    corpus = synthetic(50, tmp_path)
    with pytest.raises(SettingsError, match="are too few to count") as caught:
        count_ngrams(corpus, TOKENIZER, 1 << 20)
    assert "0.000977 GiB of memory (1,048,576 bytes)" in caught.value.what
    found = re.search(r"([\d.]+) GiB \(([\d,]+) bytes\) or more", caught.value.fix)
    assert found is not None
    gibibytes, least = found.groups()
    for enough in (int(least.replace(",", "")), int(float(gibibytes) * 2**30)):
        counts = count_ngrams(corpus, TOKENIZER, enough)
        assert counts.totals[1] == corpus.lengths.sum()
        shutil.rmtree(counts.folder)


def damage_manifest(folder: Path, **values: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_folders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    folder = count_ngrams(synthetic(20, tmp_path), TOKENIZER).folder
    manifest = (folder / "manifest.json").read_bytes()
    keys = (folder / "keys-3.npy").read_bytes()
    for damage, file in (
        (lambda: damage_manifest(folder, kind="index"), "manifest.json"),
        (lambda: damage_manifest(folder, format=99), "manifest.json"),
        (lambda: damage_manifest(folder, distinct=[1, 2, 3, 4]), "manifest.json"),
        (lambda: (folder / "manifest.json").write_text("[]"), "manifest.json"),
        (lambda: (folder / "manifest.json").write_text("{}"), "manifest.json"),
        (lambda: (folder / "manifest.json").unlink(), "manifest.json"),
        (lambda: (folder / "keys-3.npy").write_bytes(keys[:-8]), "keys-3.npy"),
        (lambda: (folder / "keys-3.npy").write_bytes(b""), "keys-3.npy"),
        (lambda: (folder / "keys-3.npy").unlink(), "keys-3.npy"),
    ):
        damage()
        with pytest.raises(InputError, match="does not hold complete n-gram statistics") as caught:
            NgramCounts.load(folder)
        assert str(folder) in caught.value.what
        (folder / file).write_bytes(manifest if file == "manifest.json" else keys)
    assert NgramCounts.load(folder).totals[1]
    with pytest.raises(InputError):
        NgramCounts.load(tmp_path / "nowhere")
