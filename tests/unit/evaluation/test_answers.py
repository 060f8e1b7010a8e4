"""Answer strings are found as DPR finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections import open_corpus
from isthmus.collections.judged import Judged
from isthmus.errors import MismatchError, SettingsError
from isthmus.evaluation import answer_accuracy, contains_answer
from isthmus.evaluation.answers import answer_texts
from isthmus.records import Ranking, Run


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("He lived in New York City.", "new york", True),
        ("He lived in New-York.", "New York", False),  # the hyphen is a token of its own
        ("He lived in New-York.", "new-york", True),
        ("He lived in New - York.", "New-York", True),  # spaces are not
        ("The catalogue", "cat", False),  # whole tokens only
        ("Born in Zürich", "ZÜRICH", True),
        ("Born in Zu\u0308rich", "Zürich", True),  # composed and decomposed alike
        ("Born in Zurich", "Zürich", False),  # accents count
        ("It cost $4.5 million", "4.5", True),
        ("It cost 4 5", "4.5", False),
        ("snake_case", "snake", True),  # an underscore is no letter
        ("a b a c", "a c", True),  # a false start does not hide the match
        ("anything", "", False),
        ("anything", " \t", False),
        ("", "anything", False),
    ],
)
def test_answer_tokens_stand_side_by_side(text: str, answer: str, found: bool) -> None:
    assert contains_answer(text, [answer]) is found


def test_one_of_several_answers_is_enough() -> None:
    assert contains_answer("the capital is Paris", ["Lutetia", "Paris"])
    assert not contains_answer("the capital is Paris", [])


def test_accuracy_counts_the_first_k_and_all_queries_with_answers() -> None:
    texts = {"1": "nothing here", "2": "the answer: forty-two", "3": "forty-two again"}
    ranking = Ranking.sorted("q", {"1": 3.0, "2": 2.0, "3": 1.0})
    run = Run("r", {"q": ranking, "hopeless": ranking, "not asked": ranking})
    answers = {"q": ["Forty-Two"], "hopeless": ["43"], "no results": ["42"]}
    assert answer_accuracy(run, answers, texts, cutoffs=(1, 2)) == {
        "Answer@1": {"q": 0.0, "hopeless": 0.0, "no results": 0.0},
        "Answer@2": {"q": 1.0, "hopeless": 0.0, "no results": 0.0},
    }


def test_a_document_outside_the_corpus_and_a_cutoff_of_zero_are_refused() -> None:
    run = Run("r", {"q": Ranking("q", ("elsewhere",), (1.0,))})
    with pytest.raises(MismatchError, match="'elsewhere', retrieved for query 'q'"):
        answer_accuracy(run, {"q": ["a"]}, {})
    with pytest.raises(SettingsError, match="cutoffs"):
        answer_accuracy(run, {"q": ["a"]}, {}, cutoffs=(0,))


def test_answers_are_looked_for_in_texts_and_not_in_titles(tmp_path: Path) -> None:
    file = tmp_path / "docs.jsonl"
    file.write_text('{"_id": "1", "title": "Paris", "text": "a city"}\n')
    judged = Judged({}, {"q": ["Paris"]}, open_corpus(str(file)))
    run = Run("r", {"q": Ranking("q", ("1",), (1.0,))})
    assert answer_texts([run], judged, 5) == {"1": "a city"}
