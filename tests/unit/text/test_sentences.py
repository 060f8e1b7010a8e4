"""Where sentences begin, by example."""

from __future__ import annotations

import itertools

import pytest

from isthmus.text.sentences import sentence_starts, word_count


def split(text: str) -> list[str]:
    starts = sentence_starts(text)
    return [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One. ", "Two! ", "Three? ", "Four."],
        ["Dr. Smith met Mr. J. R. Jones, e.g. in No. 5. ", "They spoke."],
        ["It cost 3.14 dollars. ", "Cheap."],
        ["See fig. 3 and al. for more. ", "End."],
        ["He left (at last.) ", '"Why?" ', "she asked."],
        ["A heading\n\n", "A paragraph that goes on\nover two lines. ", "Then another."],
        ["the value of x. is not a sentence end when what follows is small"],
        ["Really?! ", "Yes... ", "Well."],
        ["Ende. ", "Über alles. ", "Ça va."],
        ["No full stop at the end of it"],
        ["People who don't. ", "They ought to, by the 1950's. ", "Still."],
        ["It is bought by the govt.\n\n", "He paid 5 dollars etc.\n\n", "and so on."],
    ],
)
def test_examples(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["cover it in case. ", "it can happen to drivers. ", "so they don't. ", "ask us."],
        ["the flow is laminar . ", "for a plate (see above). ", "the rest was 11%. ", "so be it ."],
        ["We sell cover. ", "it is cheap. ", "You may ask."],
        ["a case e.g. of dr. smith, fig. 2 vs. fig. 3, etc. and j. r. jones"],
        ["in the U.S. it opens at 8 a.m. on workdays, in the u.k. at nine"],
        ["in a 5 in. tunnel, 3 ft. long, for 8 hr. after it"],
        ["choose 1. a car, or 2. a boat, by page 150. a year"],
        ["Warner Bros. and Minn. voters, or H. pylori and Bacillus spp. too"],
        ["this is . . . well, not an end... as you see, nor [...] here"],
        ['she said "it is late." and left (at last.) for good'],
        ["we did it. ", "so can you. ", "ask me, or do it by 5 p.m. on your own."],
    ],
)
def test_sentences_without_capitals(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "系统会询问您。",
            "您将使用该帐户进行日常登录操作。",
            "“切记！”",
            "平时不要使用 root 帐户。",
        ],
        ["通常この質問は避けます。", "「本当に？」", "Debian 12.4 では、尋ねません。\n", "終わり"],
        ["사용자 계정을 만들 것인지를 물어봅니다. ", "이 계정은 개인 로그인 계정입니다."],
        ["क्या आप ठीक हैं? ", "मैं ठीक हूँ। ", "धन्यवाद।"],
        [
            "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
            "ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
        ],
    ],
)
def test_scripts_with_stops_of_their_own_or_without_any(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


def test_words_are_counted_where_no_spaces_are() -> None:
    assert word_count("three short words") == 3
    assert word_count("系统会询问您") == 3
    assert word_count("使用 root 帐户") == 3


def test_long_texts_take_linear_time() -> None:
    # Quadratic time would not come to an end here.
    assert len(sentence_starts("One two. " * 100_000)) == 100_000
    assert sentence_starts("." * 100_000 + "\n" * 100_000 + ".") == [0, 200_000]
