"""What the difference between two rankings is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import InputError, SettingsError
from isthmus.records import Ranking
from isthmus.retrieval.engine_parity import Comparison, Parity, compare
from isthmus.retrieval.verbs.export import ExportSettings, export
from isthmus.retrieval.verbs.index import index

OURS = Ranking("q", ("a", "b", "c", "d"), (9.0, 7.0, 7.0, 5.0))


def ranking(*pairs: tuple[str, float]) -> Ranking:
    return Ranking("q", tuple(d for d, _ in pairs), tuple(s for _, s in pairs))


def test_the_same() -> None:
    assert compare(OURS, OURS) == Comparison("q", 1.0, True, True, 0, 0.0)
    assert compare(Ranking("q"), Ranking("q")) == Comparison("q", 1.0, True, True, 0, 0.0)


def test_equal_scores_in_another_order() -> None:
    found = compare(OURS, ranking(("a", 9), ("c", 7), ("b", 7), ("d", 5)))
    assert (found.overlap, found.same_order, found.same_but_for_ties) == (1.0, False, True)
    assert found.rank_difference == 1


def test_another_document_of_the_last_score() -> None:
    found = compare(OURS, ranking(("a", 9), ("b", 7), ("c", 7), ("e", 5)))
    assert (found.overlap, found.same_but_for_ties) == (0.75, True)


def test_rounding_is_no_difference() -> None:
    found = compare(OURS, ranking(("a", 9.00001), ("b", 7), ("c", 7), ("d", 4.99999)))
    assert found.same_but_for_ties
    assert found.score_difference == pytest.approx(1e-5 / 9)


@pytest.mark.parametrize(
    "theirs",
    [
        ranking(("a", 9), ("b", 7), ("c", 7), ("e", 4)),  # a worse one in its place
        ranking(("a", 9), ("b", 7), ("c", 7), ("e", 6)),  # a better one, which we missed
        ranking(("a", 9), ("d", 7), ("b", 7), ("c", 5)),  # scores of others
        ranking(("a", 9), ("b", 7), ("c", 7)),  # one is missing
        ranking(("a", 9.1), ("b", 7), ("c", 7), ("d", 5)),  # another score
        Ranking("q"),
    ],
    ids=str,
)
def test_differences(theirs: Ranking) -> None:
    assert not compare(OURS, theirs).same_but_for_ties
    assert not Parity(4, (compare(OURS, OURS), compare(OURS, theirs))).exact


def test_sizes_of_differences() -> None:
    found = compare(OURS, ranking(("d", 9), ("x", 8), ("a", 8.1), ("b", 7)))
    assert found.overlap == 0.75
    assert found.rank_difference == 3
    assert found.score_difference == pytest.approx(4 / 9)
    assert compare(Ranking("q"), OURS).overlap == 0
    assert compare(OURS, Ranking("q")).overlap == 0


def test_bm25_has_nothing_to_compare(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("q1\triver\n")
    folder = index(corpus, tmp_path / "bm25")
    with pytest.raises(InputError, match="is a bm25 index, which is not exported"):
        export(folder, verify="a.db", queries=tmp_path / "queries.tsv")


def test_no_queries(
    corpus: str, tmp_path: Path, encoder: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queries.tsv").write_text("q1\t…\n")
    monkeypatch.setattr(encoder, "has_tokens", lambda text: False)
    folder = index(corpus, tmp_path / "dense", "model")
    settings = ExportSettings(problems="skip")
    with pytest.raises(InputError, match="has no query to ask"):
        export(folder, verify="a.db", queries=tmp_path / "queries.tsv", settings=settings)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"verify": "a.db"},
        {"verify": "a.db", "queries": "q.tsv", "hybrid": "another"},
        {"output": "out", "queries": "q.tsv"},
        {"output": "out", "depth": 5},
    ],
    ids=str,
)
def test_an_export_writes_or_verifies(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="takes an --output to write") as caught:
        export(tmp_path, **given)
    assert "--verify PLACE --queries FILE" in caught.value.fix
