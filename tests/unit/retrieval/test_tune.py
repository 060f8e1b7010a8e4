"""Weights of fields: the best of the grid, honestly estimated, kept as something to search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.evaluation import per_query
from isthmus.indexes.manifest import Fusion, read_manifest
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.index import index
from isthmus.retrieval.search import SearchSettings, search
from isthmus.retrieval.tune import TuneSettings, tune
from isthmus.retrieval.weights import tune_weights


class Recorded:
    """A searcher of fields whose answers are known beforehand."""

    def __init__(
        self, answers: Sequence[dict[str, dict[str, float]]], fusion: str = "weighted_sum"
    ):
        self.answers = answers
        self.fusion = Fusion(fusion=fusion)
        self.fields = tuple(str(number) for number in range(len(answers)))

    def components(self, queries: list[Query], depth: int) -> dict[str, list[Ranking]]:
        return {
            name: [Ranking.sorted(query.id, answers[query.id], depth) for query in queries]
            for name, answers in zip(self.fields, self.answers, strict=True)
        }


@pytest.fixture
def systems() -> list[Answers]:
    """The first is right about odd queries, the second about even ones, the third about none."""
    right, wrong = {"good": 3.0, "x": 2.0, "y": 1.0}, {"x": 3.0, "good": 1.5, "y": 1.0}
    hopeless = {"y": 3.0, "x": 2.5}
    names = [f"q{number}" for number in range(12)]
    return [
        {name: right if number % 2 else wrong for number, name in enumerate(names)},
        {name: wrong if number % 3 else right for number, name in enumerate(names)},
        dict.fromkeys(names, hopeless),
    ]


Answers = dict[str, dict[str, float]]
QUERIES = [Query(f"q{number}", "text") for number in range(12)]
JUDGED = {query.id: {"good": 1} for query in QUERIES}


def value(answers: list[Answers], fusion: str = "weighted_sum", weights: Any = None) -> float:
    found = Recorded(answers, fusion).components(QUERIES, 10).values()
    chosen = weights or [1.0] * len(answers)
    fused = [fuse(one, chosen, fusions.load(fusion), 10) for one in zip(*found, strict=True)]
    run = Run("r", {ranking.query_id: ranking for ranking in fused})
    return fmean(per_query(run, JUDGED, ["RR@10"])["RR@10"].values())


@pytest.mark.parametrize("fusion", ["weighted_sum", "reciprocal_rank", "raw_sum"])
@pytest.mark.parametrize("count", [2, 3])
def test_every_point_is_what_a_search_measures(
    systems: list[Answers], fusion: str, count: int
) -> None:
    tuned = tune_weights(Recorded(systems[:count], fusion), QUERIES, JUDGED, steps=4)
    assert len(tuned.tried) == {2: 5, 3: 15}[count]
    for weights, measured in tuned.tried:
        assert sum(weights) == 1
        assert measured == pytest.approx(value(systems[:count], fusion, weights))
    assert tuned.value == pytest.approx(max(measured for _, measured in tuned.tried))
    assert (tuned.weights, tuned.value) in [(w, pytest.approx(v)) for w, v in tuned.tried]
    assert tuned.alone[0] == value(systems[:1])
    assert tuned.alike == pytest.approx(value(systems[:count], fusion))


def test_without_evidence_all_count_alike(systems: list[Answers]) -> None:
    same = [systems[0], systems[0], systems[0]]
    assert tune_weights(Recorded(same[:2]), QUERIES, JUDGED).weights == (0.5, 0.5)
    assert tune_weights(Recorded(same), QUERIES, JUDGED, steps=3).weights == (1 / 3,) * 3


def test_the_useless_system_gets_nothing(systems: list[Answers]) -> None:
    tuned = tune_weights(Recorded([systems[0], systems[2]]), QUERIES, JUDGED)
    assert tuned.value == pytest.approx(max(tuned.alone))
    assert tuned.weights[0] > 0.5


def test_held_out_queries_choose_nothing() -> None:
    """Two queries that contradict each other: what is best for one is worst for the other."""
    one = {"a": {"good": 2.0, "x": 1.0}, "b": {"x": 2.0, "good": 1.0}}
    two = {"a": one["b"], "b": one["a"]}
    searcher = Recorded([one, two])
    queries = [Query("a", "text"), Query("b", "text")]
    judged = {"a": {"good": 1}, "b": {"good": 1}}
    tuned = tune_weights(searcher, queries, judged, steps=1, folds=5)
    assert tuned.value == pytest.approx(0.75)
    assert tuned.held_out == pytest.approx(0.5)
    only = tune_weights(searcher, queries[:1], judged)
    assert only.held_out != only.held_out  # no estimate from a single query


def test_what_cannot_be_tuned(systems: list[Answers]) -> None:
    with pytest.raises(SettingsError, match=r"for 1 system"):
        tune_weights(Recorded(systems[:1]), QUERIES, JUDGED)
    with pytest.raises(InputError, match="none of the queries is judged"):
        tune_weights(Recorded(systems), QUERIES, {"other": {"good": 1}})
    with pytest.raises(SettingsError, match="no measure named"):
        tune_weights(Recorded(systems), QUERIES, JUDGED, "nonsense@10")


@pytest.fixture
def collection(corpus: str, tmp_path: Path) -> Path:
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(Path(corpus).read_text())
    asked = {"q1": "river bank", "q2": "snow", "q3": "boat", "unjudged": "river"}
    lines = (json.dumps({"_id": name, "text": text}) for name, text in asked.items())
    (folder / "queries.jsonl").write_text("\n".join(lines))
    write_judged(folder, {"q1": "d1", "q2": "d4", "q3": "d2"})
    return folder


def write_judged(folder: Path, judged: dict[str, str]) -> None:
    lines = [f"{query}\t{document}\t1" for query, document in judged.items()]
    head = "query-id\tcorpus-id\tscore"
    (folder / "qrels" / "dev.tsv").write_text("\n".join([head, *lines]))


@pytest.fixture
def indexed(collection: Path, tmp_path: Path, encoder: object) -> Path:
    return index(str(collection), tmp_path / "both", "model", settings={"tokens": False})


def test_searches_use_the_weights_that_were_found(indexed: Path, collection: Path) -> None:
    before = read_manifest(indexed)
    tuning = tune(indexed, str(collection), settings=TuneSettings(candidates=4, fusion="raw_sum"))
    assert list(tuning.weights) == ["bm25", "dense"]
    manifest = read_manifest(indexed)
    how = {"fusion": "raw_sum", "candidates": 4, "weights": tuning.weights}
    assert manifest.fusion == Fusion(**how)
    assert manifest.model_copy(update={"fusion": before.fusion}) == before
    for text in ("river bank", "interest"):
        assert search(indexed, text) == search(indexed, text, settings=SearchSettings(**how))
    assert "all alike" in tuning.table.markdown()
    again = tune(indexed, str(collection), settings=TuneSettings(candidates=4, fusion="raw_sum"))
    assert again.weights == tuning.weights, "fields without a weight are tried again"


def test_a_field_of_another_size_is_not_tuned(
    collection: Path, tmp_path: Path, sparse_encoder: object
) -> None:
    sizes = {"sparse_sizes": [1]}
    folder = index(str(collection), tmp_path / "index", "model", settings=sizes)
    assert list(tune(folder, str(collection)).weights) == ["bm25", "sparse"]
    assert read_manifest(folder).fusion.weights["sparse-1"] == 0


def test_an_index_of_one_field_has_no_weights(collection: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has one field"):
        tune(index(str(collection), tmp_path / "bm25"), str(collection))


def test_judgements_of_another_corpus_are_refused_and_missing_documents_told(
    indexed: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_judged(collection, {"q1": "x1", "q2": "x2"})
    with pytest.raises(MismatchError, match="not one of the 2 relevant documents") as caught:
        tune(indexed, str(collection))
    assert "'d0', not 'x1'" in caught.value.what
    write_judged(collection, {"q1": "d1", "q2": "d4", "q3": "x3"})
    tune(indexed, str(collection), settings=TuneSettings(steps=2))
    assert "1 of 3 relevant documents are not in the index" in capsys.readouterr().err
