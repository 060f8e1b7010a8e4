"""The same numbers as trec_eval (by pytrec_eval) and scipy, on random and real judgements."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from ir_measures import parse_measure
from scipy import stats

from isthmus.evaluation import compare, paired_t_test, per_query, randomisation_tests
from isthmus.evaluation.measures import value
from isthmus.records import Ranking, Run

NAMES = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG": "ndcg",
    "AP": "map",
    "RR": "recip_rank",
    "R@5": "recall_5",
    "R@100": "recall_100",
    "Success@5": "success_5",
    "P@10": "P_10",
}
Scores = dict[str, dict[str, float]]
Judged = dict[str, dict[str, int]]


def random_collection(seed: int, levels: int | None) -> tuple[Scores, Judged]:
    """Scores from `levels` values, hence with ties, or from a continuum."""
    generator = random.Random(seed)
    documents = [f"{number:03}" for number in range(200)]
    judged = {
        f"q{number}": {
            document: generator.choice([-1, 0, 1, 2, 3])
            for document in generator.sample(documents, 20)
        }
        for number in range(25)
    }
    scores = {
        query: {
            document: float(generator.randrange(levels)) if levels else generator.random()
            for document in generator.sample(documents, generator.randint(1, 150))
        }
        for query in judged
    }
    return scores, judged


def run_of(scores: Scores) -> Run:
    return Run("run", {query: Ranking.sorted(query, of) for query, of in scores.items()})


def assert_equal_to_trec_eval(
    values: Scores, scores: Scores, judged: Judged, level: int = 1
) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="trec_eval has no wheel for this chip")
    evaluator = pytrec_eval.RelevanceEvaluator(judged, set(NAMES.values()), relevance_level=level)
    reference = evaluator.evaluate(scores)
    suffix = "" if level == 1 else f"(rel={level})"
    for name, trec_name in NAMES.items():
        base, at, cutoff = name.partition("@")
        ours = values[name if base == "nDCG" else f"{base}{suffix}{at}{cutoff}"]
        assert ours.keys() == reference.keys()
        for query in reference:
            assert ours[query] == pytest.approx(reference[query][trec_name], abs=1e-12), (
                name,
                query,
            )


@pytest.mark.parametrize("seed", range(5))
def test_without_ties_all_measures_equal_trec_eval(seed: int) -> None:
    scores, judged = random_collection(seed, levels=None)
    assert_equal_to_trec_eval(per_query(run_of(scores), judged, list(NAMES)), scores, judged)


def test_a_higher_level_of_relevance_equals_trec_eval() -> None:
    scores, judged = random_collection(0, levels=None)
    names = [
        name if name.startswith("nDCG") else f"{base}(rel=2){at}{cutoff}"
        for name in NAMES
        for base, at, cutoff in [name.partition("@")]
    ]
    values = per_query(run_of(scores), judged, names)
    assert_equal_to_trec_eval(values, scores, judged, level=2)


def test_unjudged_documents_left_out_equal_trec_eval() -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="trec_eval has no wheel for this chip")
    scores, judged = random_collection(0, levels=None)
    names = {"P(judged_only=True)@5": "P_5", "nDCG(judged_only=True)@5": "ndcg_cut_5"}
    evaluator = pytrec_eval.RelevanceEvaluator(
        judged, {*names.values()}, judged_docs_only_flag=True
    )
    reference = evaluator.evaluate(scores)
    for name, of in per_query(run_of(scores), judged, list(names)).items():
        for query, found in of.items():
            assert found == pytest.approx(reference[query][names[name]], abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
def test_with_ties_all_measures_equal_trec_eval_on_mirrored_ids(seed: int) -> None:
    # trec_eval puts the highest document id first among equals, we put the lowest: under ids
    # that sort the other way round, it must see exactly our order.
    def mirrored(document: str) -> str:
        return f"{999 - int(document):03}"

    scores, judged = random_collection(seed, levels=5)
    mirror_scores = {q: {mirrored(d): s for d, s in of.items()} for q, of in scores.items()}
    mirror_judged = {q: {mirrored(d): r for d, r in of.items()} for q, of in judged.items()}
    values = per_query(run_of(scores), judged, list(NAMES))
    assert_equal_to_trec_eval(values, mirror_scores, mirror_judged)
    # The mirror matters: without it trec_eval measures another order.
    with pytest.raises(AssertionError):
        assert_equal_to_trec_eval(values, scores, judged)


STORED = json.loads((Path(__file__).parent / "trec_eval.json").read_text(encoding="utf-8"))
"""Means over the queries of random collections, as pytrec_eval-terrier 0.5.11 computed them."""


@pytest.mark.parametrize("case", STORED)
def test_measures_equal_those_that_trec_eval_computed(case: str) -> None:
    seed, levels, level = (int(number) for number in case.split())
    scores, judged = random_collection(seed, levels or None)
    names = {
        "nDCG@10": "ndcg_cut_10",
        "nDCG": "ndcg",
        f"AP(rel={level})": "map",
        f"AP(rel={level})@5": "map_cut_5",
        f"RR(rel={level})": "recip_rank",
        f"R(rel={level})@5": "recall_5",
        f"R(rel={level})@100": "recall_100",
        f"Success(rel={level})@5": "success_5",
        f"P(rel={level})@10": "P_10",
        f"Rprec(rel={level})": "Rprec",
        f"SetP(rel={level})": "set_P",
        f"SetR(rel={level})": "set_recall",
    }
    measures = {parse_measure(name): trec_name for name, trec_name in names.items()}
    # trec_eval puts the later id first among equal scores.
    ranked = {
        query: sorted(of, key=lambda one, of=of: (of[one], one), reverse=True)  # type: ignore[misc]
        for query, of in scores.items()
    }
    found = {
        trec_name: np.mean([value(measure, ranked[query], judged[query]) for query in judged])
        for measure, trec_name in measures.items()
    }
    assert found == pytest.approx(STORED[case], abs=1e-12)


@pytest.mark.parametrize("collection", ["cranfield", "scifact"])
def test_real_judgements_equal_trec_eval(collection: str, shared_data: Path) -> None:
    judged: Judged = {}
    file = shared_data / "collections" / collection / "qrels" / "test.tsv"
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream, delimiter="\t"):
            judged.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    generator = random.Random(0)
    documents = sorted({document for of in judged.values() for document in of})
    scores = {
        query: {
            document: generator.gauss(2.0 * of.get(document, 0), 1.0)
            for document in {*generator.sample(documents, 150), *of}
        }
        for query, of in judged.items()
    }
    values = per_query(run_of(scores), judged, list(NAMES))
    assert_equal_to_trec_eval(values, scores, judged)


@pytest.mark.parametrize("seed", range(5))
def test_the_t_test_equals_scipys_paired_test(seed: int) -> None:
    first, second = np.random.default_rng(seed).random((2, 30))
    expected = stats.ttest_rel(first, second).pvalue
    assert paired_t_test(first - second) == pytest.approx(expected, rel=1e-12)
    scores = {
        name: {f"q{n}": float(value) for n, value in enumerate(values)}
        for name, values in (("first", first), ("second", second))
    }
    assert compare(scores).pairs[0].p_value == pytest.approx(expected, rel=1e-12)


def test_the_randomisation_test_agrees_with_scipys() -> None:
    differences = np.random.default_rng(0).normal(0.25, 1.0, 60)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=20_000, rng=0
    ).pvalue
    ours = randomisation_tests(differences, 20_000, seed=0)[0]
    spread = np.sqrt(2 * expected * (1 - expected) / 20_000)
    assert abs(ours - expected) < 5 * spread
