"""BM25 by language, on real texts: a heading finds the section that it was taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.errors import SettingsError
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.stop_words import likely
from isthmus.indexes.languages import LANGUAGES, detected
from isthmus.indexes.manifest import Bm25Settings, read_manifest

TEXTS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "languages.json").read_text()
)["texts"]
SCRIPTS = ("chinese", "japanese", "korean", "thai")


def terms(language: str, text: str, **settings: Any) -> list[str]:
    return Analyzer(Bm25Settings(language=language, **settings)).terms(text)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index of every language; of those whose script tells it, without naming it."""
    scratch, found = tmp_path_factory.mktemp("languages"), {}
    for language, sections in TEXTS.items():
        corpus = scratch / f"{language}.jsonl"
        lines = ({"_id": name, "text": text} for name, (_, text) in sections.items())
        corpus.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        named = None if language in SCRIPTS else language
        found[language] = isthmus.index(str(corpus), scratch / language, language=named).folder
    return found


@pytest.mark.parametrize("language", TEXTS)
def test_headings_find_their_sections(language: str, indexed: dict[str, Path]) -> None:
    found = read_manifest(indexed[language]).fields["bm25"].settings
    assert found == Bm25Settings().resolved(language)
    first = {
        name: [hit.id for hit in isthmus.open_index(indexed[language]).search(heading, k=1)]
        for name, (heading, _) in TEXTS[language].items()
    }
    right = sum(found == [name] for name, found in first.items())
    assert right >= len(first) / 2, first  # some headings share no word with their section


@pytest.mark.parametrize("language", ["chinese", "japanese"])
def test_as_english_words_they_are_not_found(language: str) -> None:
    for heading, text in TEXTS[language].values():
        shared = set(terms("english", heading)) & set(terms("english", text))
        assert not {term for term in shared if not term.isascii()}


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("german", "Häuser", "haus"), ("french", "catégories", "categorie"),
        ("spanish", "instalación", "INSTALACIONES"), ("russian", "ёлками", "елка"),
        ("turkish", "IŞIK", "ışıklar"), ("greek", "Οδός", "οδος"), ("de", "Straße", "strasse"),
        ("chinese", "ｉＰｈｏｎｅ", "iphone"), ("hindi", "किताबें", "किताब"),
        ("japanese", "ｲﾝｽﾄｰﾙ", "インストール"),
    ],
)  # fmt: skip
def test_forms_of_a_word_are_one_term(language: str, one: str, other: str) -> None:
    assert terms(language, one) == terms(language, other) != []


def test_a_character_alone_and_signs_above_letters_are_found() -> None:
    assert set(terms("zh", "书")) <= set(terms("zh", "我喜欢书和手机"))
    assert terms("thai", "ทั้ง") == ["ทั้ง"]
    assert terms("tamil", "தமிழ்") == ["தமிழ்"]
    assert "이다" not in terms("korean", "서울")


def test_english_is_as_it_was() -> None:
    text = "The café's dogs are running to naïve 手机 in U.S."
    expected = ["café", "dog", "run", "naïv", "手机"]
    assert terms("auto", text) == terms("english", text) == expected
    assert "cafe" in terms("english", text, accents="fold")


def test_every_language_has_a_stemmer_or_none() -> None:
    for language in LANGUAGES:
        assert terms(language, "Debian 12") == terms(language, "DEBIAN 12") != []


def test_languages_are_told_by_script_or_likely_by_stop_words() -> None:
    for language, sections in TEXTS.items():
        texts = [text for _, text in sections.values()]
        assert detected(texts) == (language if language in SCRIPTS else "english")
        if language not in (*SCRIPTS, "greek"):
            assert likely(texts) == language
    assert likely(["The cell divides, and each of the parts is a new cell."]) == "english"
    assert (detected([]), likely([])) == ("english", None)
    assert likely(["Komórka dzieli się na dwie części i każda z nich jest nową"]) == "polish"


def test_a_script_without_spaces_is_found_among_english_texts(tmp_path: Path) -> None:
    (section, text), *_ = TEXTS["chinese"].values()
    lines = [{"_id": "zh", "text": text}, {"_id": "en", "text": "Printers are set up here. " * 400}]
    corpus = tmp_path / "mixed.jsonl"
    corpus.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    folder = isthmus.index(str(corpus), tmp_path / "index").folder
    assert [hit.id for hit in isthmus.open_index(folder).search(section)] == ["zh"]
    assert [hit.id for hit in isthmus.open_index(folder).search("a printer")] == ["en"]


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(SettingsError, match="german") as caught:
        Bm25Settings.parse({"language": "germann"}, where="recipe")
    assert "language" in caught.value.what
