"""Weights of a hybrid: the best of the grid, honestly estimated, kept as something to search."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from isthmus.collections import Problems
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.evaluation import per_query
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.verbs.index import index
from isthmus.retrieval.verbs.search import SearchSettings, search
from isthmus.retrieval.verbs.tune import TuneSettings, tune
from isthmus.retrieval.weights import tune_weights


class Recorded:
    """Answers that are known beforehand."""

    keeps_texts = False

    def __init__(self, answers: dict[str, dict[str, float]]) -> None:
        self.answers = answers
        self.searches = 0

    def has_tokens(self, text: str) -> bool:
        return True

    def search(
        self, queries: list[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[Ranking]:
        self.searches += 1
        return [Ranking.sorted(q.id, self.answers[q.id], depth) for q in queries]


@pytest.fixture
def systems() -> list[Recorded]:
    """The first is right about odd queries, the second about even ones, the third about none."""
    right, wrong = {"good": 3.0, "x": 2.0, "y": 1.0}, {"x": 3.0, "good": 1.5, "y": 1.0}
    hopeless = {"y": 3.0, "x": 2.5}
    names = [f"q{number}" for number in range(12)]
    return [
        Recorded({name: right if number % 2 else wrong for number, name in enumerate(names)}),
        Recorded({name: wrong if number % 3 else right for number, name in enumerate(names)}),
        Recorded(dict.fromkeys(names, hopeless)),
    ]


QUERIES = [Query(f"q{number}", "text") for number in range(12)]
JUDGED = {query.id: {"good": 1} for query in QUERIES}


def value(hybrid: HybridSearcher) -> float:
    run = Run("r", {ranking.query_id: ranking for ranking in hybrid.search(QUERIES, 10)})
    return fmean(per_query(run, JUDGED, ["RR@10"])["RR@10"].values())


@pytest.mark.parametrize("fusion", ["weighted_sum", "reciprocal_rank", "raw_sum"])
@pytest.mark.parametrize("count", [2, 3])
def test_every_point_is_what_a_search_measures(
    systems: list[Recorded], fusion: str, count: int
) -> None:
    tuned = tune_weights(HybridSearcher(systems[:count], fusion), QUERIES, JUDGED, steps=4)
    assert len(tuned.tried) == {2: 5, 3: 15}[count]
    for weights, measured in tuned.tried:
        assert sum(weights) == 1
        assert measured == pytest.approx(value(HybridSearcher(systems[:count], fusion, weights)))
    assert tuned.value == pytest.approx(max(measured for _, measured in tuned.tried))
    assert (tuned.weights, tuned.value) in [(w, pytest.approx(v)) for w, v in tuned.tried]
    assert tuned.alone[0] == value(HybridSearcher(systems[:1]))
    assert tuned.alike == pytest.approx(value(HybridSearcher(systems[:count], fusion)))


def test_without_evidence_all_count_alike(systems: list[Recorded]) -> None:
    same = [systems[0], systems[0], systems[0]]
    assert tune_weights(HybridSearcher(same[:2]), QUERIES, JUDGED).weights == (0.5, 0.5)
    assert tune_weights(HybridSearcher(same), QUERIES, JUDGED, steps=3).weights == (1 / 3,) * 3


def test_the_useless_system_gets_nothing(systems: list[Recorded]) -> None:
    tuned = tune_weights(HybridSearcher([systems[0], systems[2]]), QUERIES, JUDGED)
    assert tuned.value == pytest.approx(max(tuned.alone))
    assert tuned.weights[0] > 0.5


def test_held_out_queries_choose_nothing() -> None:
    """Two queries that contradict each other: what is best for one is worst for the other."""
    one = {"a": {"good": 2.0, "x": 1.0}, "b": {"x": 2.0, "good": 1.0}}
    two = {"a": one["b"], "b": one["a"]}
    hybrid = HybridSearcher([Recorded(one), Recorded(two)])
    queries = [Query("a", "text"), Query("b", "text")]
    judged = {"a": {"good": 1}, "b": {"good": 1}}
    tuned = tune_weights(hybrid, queries, judged, steps=1, folds=5)
    assert tuned.value == pytest.approx(0.75)
    assert tuned.held_out == pytest.approx(0.5)
    only = tune_weights(hybrid, queries[:1], judged)
    assert only.held_out != only.held_out  # no estimate from a single query


def test_what_cannot_be_tuned(systems: list[Recorded]) -> None:
    with pytest.raises(SettingsError, match=r"for 1 system"):
        tune_weights(HybridSearcher(systems[:1]), QUERIES, JUDGED)
    with pytest.raises(InputError, match="none of the queries is judged"):
        tune_weights(HybridSearcher(systems), QUERIES, {"other": {"good": 1}})
    with pytest.raises(SettingsError, match="no measure named"):
        tune_weights(HybridSearcher(systems), QUERIES, JUDGED, "nonsense@10")


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
def both(collection: Path, tmp_path: Path, encoder: object) -> Path:
    return index(str(collection), tmp_path / "both", ["model", "bm25"])


@pytest.mark.parametrize("pipeline", [False, True])
def test_searches_use_the_weights_that_were_found(
    both: Path, collection: Path, pipeline: bool
) -> None:
    how = {"pipeline": pipeline, "candidates": 4}
    before = {text: search(both, text) for text in ("river bank", "interest")}
    tuning = tune(both, str(collection), settings=TuneSettings(**how))
    assert list(tuning.weights) == ["model", "bm25"]
    for text in before:
        settings = SearchSettings(weights=list(tuning.found.weights), **how)
        assert search(both, text) == search(both, text, settings=settings)
    assert "all alike" in tuning.table.markdown()


def test_another_encoder_since_is_refused(both: Path, collection: Path) -> None:
    tune(both, str(collection))
    file = both / "hybrid.json"
    values = json.loads(file.read_text())
    assert values["members"][1]["encoder"] is None
    values["members"][0]["encoder"] = "words-0"
    file.write_text(json.dumps(sealed(values)))
    with pytest.raises(MismatchError, match="filled by another encoder since the weights"):
        search(both, "river")
    file.write_text("{")
    with pytest.raises(InputError, match=r"hybrid\.json. is damaged"):
        search(both, "river")


def test_an_index_of_one_retriever_has_no_weights(collection: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has one retriever"):
        tune(index(str(collection), tmp_path / "bm25"), str(collection))


def test_judgements_of_another_corpus_are_refused_and_missing_documents_told(
    both: Path, collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_judged(collection, {"q1": "x1", "q2": "x2"})
    with pytest.raises(MismatchError, match="not one of the 2 relevant documents") as caught:
        tune(both, str(collection))
    assert "'d0', not 'x1'" in caught.value.what
    write_judged(collection, {"q1": "d1", "q2": "d4", "q3": "x3"})
    tune(both, str(collection), settings=TuneSettings(steps=2))
    assert "1 of 3 relevant documents are not in the index" in capsys.readouterr().err
