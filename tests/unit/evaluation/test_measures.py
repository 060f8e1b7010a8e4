"""Each measure against its definition in plain float64 loops, and the rules about queries."""

from __future__ import annotations

import math
import random

import pytest

from isthmus.errors import InputError, SettingsError
from isthmus.evaluation import parse_measure, per_query
from isthmus.records import Judgements, Ranking, Run


def random_run(seed: int, ties: bool) -> tuple[Run, dict[str, dict[str, int]]]:
    generator = random.Random(seed)
    documents = [f"d{number}" for number in range(30)]
    judgements = {
        f"q{number}": {
            document: generator.choice([0, 0, 1, 1, 2, 3])
            for document in generator.sample(documents, generator.randint(1, 12))
        }
        for number in range(20)
    }
    rankings = {}
    for query in judgements:
        found = generator.sample(documents, generator.randint(0, 25))
        draw = (lambda: generator.randint(0, 4)) if ties else generator.random
        rankings[query] = Ranking.sorted(query, {document: float(draw()) for document in found})
    return Run("random", rankings), judgements


def golden(ids: list[str], judged: dict[str, int]) -> dict[str, float]:
    """The definitions, one after the other."""
    relevant = [document for document, relevance in judged.items() if relevance >= 1]
    reciprocal_rank = 0.0
    for rank, document in enumerate(ids[:10], start=1):
        if document in relevant:
            reciprocal_rank = 1.0 / rank
            break
    graded = 0.0
    for rank, document in enumerate(ids, start=1):
        if judged.get(document, 0) >= 2:
            graded = 1.0 / rank
            break
    gain = ideal = 0.0
    for rank, document in enumerate(ids[:10], start=1):
        gain += judged.get(document, 0) / math.log2(rank + 1)
    for rank, relevance in enumerate(sorted(judged.values(), reverse=True)[:10], start=1):
        ideal += relevance / math.log2(rank + 1)
    precisions = 0.0
    found = 0
    for rank, document in enumerate(ids, start=1):
        if document in relevant:
            found += 1
            precisions += found / rank
    in_five = sum(document in relevant for document in ids[:5])
    return {
        "RR@10": reciprocal_rank,
        "RR(rel=2)": graded,
        "nDCG@10": gain / ideal if ideal else 0.0,
        "AP": precisions / len(relevant) if relevant else 0.0,
        "R@5": in_five / len(relevant) if relevant else 0.0,
        "R_cap@5": in_five / min(5, len(relevant)) if relevant else 0.0,
        "Success@5": float(in_five > 0),
        "Judged@10": sum(d in judged for d in ids[:10]) / len(ids[:10]) if ids else 0.0,
    }


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_measures_equal_their_definitions(seed: int, ties: bool) -> None:
    run, judgements = random_run(seed, ties)
    names = list(golden([], {}))
    values = per_query(run, judgements, names)
    assert list(values) == names
    for query, judged in judgements.items():
        ids = list(run.rankings[query].document_ids)
        for name, expected in golden(ids, judged).items():
            assert values[name][query] == pytest.approx(expected, abs=1e-12), (name, query)


def test_equal_scores_are_ordered_by_document_id_whatever_order_they_came_in() -> None:
    rising = Run("rising", {"q": Ranking("q", ("a", "b", "c"), (1.0, 1.0, 1.0))})
    falling = Run("falling", {"q": Ranking("q", ("c", "b", "a"), (1.0, 1.0, 1.0))})
    for run in (rising, falling):
        assert per_query(run, {"q": {"a": 1}}, ["RR@10", "AP"]) == {
            "RR@10": {"q": 1},
            "AP": {"q": 1},
        }
        assert per_query(run, {"q": {"c": 1}}, ["RR@10"])["RR@10"]["q"] == pytest.approx(1 / 3)


def test_scores_that_differ_only_in_double_precision_are_no_tie() -> None:
    run = Run("fine", {"q": Ranking("q", ("z", "a"), (1.0 + 1e-12, 1.0))})
    assert per_query(run, {"q": {"z": 1}}, ["RR@10", "AP"]) == {"RR@10": {"q": 1}, "AP": {"q": 1}}


def test_every_judged_query_counts_and_no_other() -> None:
    judgements: Judgements = {
        "answered": {"d": 1},
        "without results": {"d": 1},
        "empty ranking": {"d": 1},
        "nothing relevant": {"d": 0},
        "not judged": {},
    }
    hit = Ranking("", ("d",), (1.0,))
    run = Run(
        "r", {"answered": hit, "empty ranking": Ranking(""), "nothing relevant": hit, "x": hit}
    )
    expected = {"answered": 1, "without results": 0, "empty ranking": 0, "nothing relevant": 0}
    for values in per_query(run, judgements, ["RR@10", "nDCG@10", "R@5", "AP", "R_cap@5"]).values():
        assert values == expected
    assert per_query(run, judgements, ["Judged@10"])["Judged@10"]["nothing relevant"] == 1


def test_capped_recall_can_reach_one_where_recall_cannot() -> None:
    judgements = {"q": {"a": 1, "b": 1, "c": 2, "d": 0}}
    run = Run("r", {"q": Ranking("q", ("a", "c", "x"), (3.0, 2.0, 1.0))})
    names = ["R@2", "R_cap@2", "R_cap(rel=2)@1", "R_cap(rel=2)@2"]
    values = {name: of["q"] for name, of in per_query(run, judgements, names).items()}
    assert values == pytest.approx(dict(zip(names, (2 / 3, 1.0, 0.0, 1.0), strict=True)))


@pytest.mark.parametrize(
    ("name", "says", "allows"),
    [
        ("ndcg@10", "no measure named 'ndcg@10'", "nDCG"),
        ("recal@100", "no measure named 'recal@100'", "R, "),
        ("ndcg10", "no measure named 'ndcg10'", "nDCG@10"),
        ("R", "it needs a cutoff", "R(rel=…, judged_only=…)@CUTOFF"),
        ("R@0", "cutoff = 0", "@CUTOFF"),
        ("RR(relevance=2)@10", "no setting 'relevance'", "RR(rel=…"),
        ("nDCG@ten", "not the name of a measure", "RR(rel=2)@10"),
        ("NumRet", "not computed here", "nDCG"),
        ("nDCG(dcg='exp-log2')@10", "dcg is fixed", "nDCG"),
    ],
)
def test_a_wrong_name_is_refused_with_what_is_allowed(name: str, says: str, allows: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        parse_measure(name, where="recipe.yaml: measures")
    assert says in refusal.value.what
    assert allows in f"{refusal.value.expected} {refusal.value.fix}"
    assert "recipe.yaml: measures" in refusal.value.what


def test_a_score_that_is_no_number_and_a_repeated_document_are_refused() -> None:
    broken = Run("broken", {"q": Ranking("q", ("a", "b"), (1.0, math.nan))})
    with pytest.raises(InputError, match="'b' for query 'q' is not a number"):
        per_query(broken, {"q": {"a": 1}}, ["AP"])
    twice = Run("twice", {"q": Ranking("q", ("a", "b", "b"), (3.0, 2.0, 1.0))})
    with pytest.raises(InputError, match="'b' is retrieved twice"):
        per_query(twice, {"q": {"a": 1}}, ["AP"])
