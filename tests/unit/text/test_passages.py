"""Documents cut into passages: nothing is lost, nothing is too long, headings go along."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from isthmus.records import Document, Passage
from isthmus.text.order import CutTexts
from isthmus.text.passages import Cut, Cutter, word_starts

SENTENCES = [f"Sentence number {number} says little." for number in range(12)]


def cut(text: str, title: str = "", length: int = 16, overlap: float = 0.0) -> list[Passage]:
    cutter = Cutter(Cut(length=length, overlap=overlap))
    return list(cutter.passages([Document("d", text, title)]))


def words(text: str) -> int:
    return len(word_starts([text])[0])


def test_a_document_that_fits_is_one_passage() -> None:
    (passage,) = cut("All of it.", "Title")
    assert passage == Passage("d#1", "All of it.", "Title", "", 0, 10)
    assert [one.id for one in cut("", "only a title")] == ["d#1"]


def test_passages_end_with_sentences_and_overlap_by_them() -> None:
    text = " ".join(SENTENCES)
    passages = cut(text, overlap=0.4)
    assert passages[0].text == " ".join(SENTENCES[:3])
    assert passages[1].text == " ".join(SENTENCES[2:5])  # 5 of 16 words, 10 would be too many
    assert passages[-1].text.endswith(SENTENCES[-1])
    assert [one.number for one in passages] == list(range(1, len(passages) + 1))


def test_the_rest_of_a_text_is_filled_up_from_before() -> None:
    passages = cut(" ".join(SENTENCES[:4]))
    assert passages[1].text == " ".join(SENTENCES[1:4])


def test_title_and_headings_take_part_of_the_room() -> None:
    text = "# Part\n\n" + " ".join(SENTENCES)
    passages = cut(text, title="One two three")
    assert {one.heading for one in passages} == {"Part"}
    assert all(words(one.contents()) <= 16 for one in passages)
    assert passages[0].contents() == f"One two three\nPart\n{' '.join(SENTENCES[:2])}"
    assert passages[0].contents(titles=False).startswith("Part\nSentence")


def test_a_passage_begins_at_a_heading_when_it_is_half_full_and_has_the_path_of_headings() -> None:
    text = (
        f"## Above\n\n### First\n\n{' '.join(SENTENCES[:2])}\n\n### Second\n\n{SENTENCES[2]}\n\n"
        f"```\n# no heading\n```\n{' '.join(SENTENCES[3:6])}"
    )
    passages = cut(text, length=20, overlap=0.5)
    assert passages[0].heading == "Above › First"
    assert passages[0].text == " ".join(SENTENCES[:2])
    assert passages[1].heading == "Above › Second"
    assert passages[1].text.startswith(SENTENCES[2])
    assert not any(one.heading == "no heading" for one in passages)


def test_headings_of_a_part_of_a_passage_stay_in_its_text() -> None:
    (passage,) = cut("## A\n\nOne here.\n\n## B\n\nTwo here.", length=30)
    assert passage.heading == ""
    assert passage.text == "## A\n\nOne here.\n\n## B\n\nTwo here."
    (passage,) = cut("## A ##\r\n\r\nOne here.")
    assert passage.heading == "A"
    (passage,) = cut("## A\n\n### B\n\nOne here.\n\n### C\n\nTwo here.", length=30)
    assert passage.heading == "A"
    assert passage.text.startswith("### B")


def test_what_has_no_sentences_is_cut_at_lines_then_words() -> None:
    code = "\n".join(f"call {number} now" for number in range(20))
    assert all(one.text.startswith("call") for one in cut(code))
    run = cut("word " * 100)
    assert all(words(one.text) <= 16 for one in run)
    assert run[-1].end == len("word " * 100) - 1
    assert all(one.end + 1 >= after.start for one, after in pairwise(run))
    assert words("雪国の長いトンネル") == 9  # without spaces, characters count


@settings(max_examples=60, deadline=None)
@given(
    some.text(alphabet="ab .!\n#`雪 ", max_size=300),
    some.text(alphabet="ab ", max_size=20),
    some.sampled_from([0.0, 0.2, 0.5]),
)
def test_nothing_is_lost_and_nothing_is_too_long(text: str, title: str, overlap: float) -> None:
    passages = cut(text, title, overlap=overlap)
    seen = set()
    for one in passages:
        assert text[one.start : one.end] == one.text
        assert words(one.text) <= 16
        seen |= set(range(one.start, one.end))
    headings = "\n".join(one.heading for one in passages)
    place = 0
    for line in text.splitlines(keepends=True):
        missing = [
            place + at for at, c in enumerate(line) if c.isalnum() and place + at not in seen
        ]
        assert not missing or line.strip(" #`\t\n") in headings
        place += len(line)


@pytest.mark.parametrize(
    ("lengths", "summary"),
    [
        ([5, 10], "the encoder reads all 2 texts whole (it reads up to 10 tokens)"),
        ([5, 20], "1 of 2 texts are longer than the 10 tokens that the encoder reads: 40 % of the "
         "text is not seen"),
        ([10000, 11], "2 of 2 texts are longer than the 10 tokens that the encoder reads: 100 % of "
         "the text is not seen"),
        ([10] * 1000 + [11], "1 of 1,001 texts are longer than the 10 tokens that the encoder "
         "reads: 0.01 % of the text is not seen"),
    ],
)  # fmt: skip
def test_what_an_encoder_does_not_see_is_counted(lengths: list[int], summary: str) -> None:
    texts = CutTexts(10)
    texts.count(lengths)
    assert texts.summary() == summary
