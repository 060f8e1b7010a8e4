"""From runs to a report, and what is refused or noticed on the way."""

from __future__ import annotations

import sys

import pytest

from isthmus.errors import InputError, MismatchError, MissingPackageError, SettingsError
from isthmus.evaluation import EvaluationSettings, Report, compare_runs, summarise
from isthmus.evaluation.examples import examples
from isthmus.records import Ranking, Run

JUDGEMENTS = {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}
FAST = EvaluationSettings(measures=("RR@10", "R@5"), bootstrap_samples=100)


def run_of(name: str, found: dict[str, list[str]]) -> Run:
    return Run(
        name,
        {
            query: Ranking(query, tuple(ids), tuple(float(-n) for n in range(len(ids))))
            for query, ids in found.items()
        },
    )


def test_the_report_averages_over_all_judged_queries_and_counts_the_rest() -> None:
    run = run_of("system", {"q1": ["d1"], "q2": ["d9", "d2"], "elsewhere": ["d1"]})
    report = compare_runs([run], JUDGEMENTS, FAST)
    assert report.systems == ("system",)
    assert report.queries == 3
    assert report.means["RR@10"]["system"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert report.per_query["RR@10"]["system"] == {"q1": 1.0, "q2": 0.5, "q3": 0.0}
    low, high = report.intervals["RR@10"]["system"]
    assert 0 <= low < 0.5 < high <= 1
    counts = report.counts["system"]
    assert (counts.answered, counts.missing, counts.unjudged) == (2, 1, 1)
    assert (counts.judged_documents, counts.depth, counts.dropped_self) == (2, 2, 0)


def test_the_query_itself_is_dropped_only_when_asked_and_recorded() -> None:
    run = run_of("system", {"q1": ["q1", "d1"], "q2": ["d2"], "q3": ["q3"]})
    kept = compare_runs([run], JUDGEMENTS, FAST)
    assert kept.per_query["RR@10"]["system"]["q1"] == 0.5
    dropped = compare_runs([run], JUDGEMENTS, FAST.model_copy(update={"drop_self": True}))
    assert dropped.per_query["RR@10"]["system"]["q1"] == 1.0
    assert dropped.counts["system"].dropped_self == 2
    assert dropped.counts["system"].missing == 1
    assert dropped.settings.drop_self


def test_a_report_survives_json_to_the_last_digit() -> None:
    thirds = run_of("ünï", {"q1": ["x", "y", "d1"], "q2": ["d2"]})
    report = compare_runs([thirds, run_of("other", {"q1": ["d1"]})], JUDGEMENTS, FAST)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"systems": 3}'])
def test_a_file_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a report") as refusal:
        Report.from_json(text, where="old/report.json")
    assert "old/report.json" in refusal.value.what


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(MismatchError, match=r"none of the 3 judged queries.*'other'") as refusal:
        compare_runs([run_of("lost", {"other": ["d1"]})], JUDGEMENTS, FAST)
    assert "'q1'" in refusal.value.what
    with pytest.raises(MismatchError, match="it is empty"):
        compare_runs([Run("empty")], JUDGEMENTS, FAST)
    one = run_of("same", {"q1": ["d1"]})
    with pytest.raises(InputError, match="two runs are named 'same'"):
        compare_runs([one, one], JUDGEMENTS, FAST)
    with pytest.raises(InputError, match="no run"):
        compare_runs([], JUDGEMENTS, FAST)
    with pytest.raises(InputError, match="no query is judged"):
        compare_runs([one], {"q1": {}}, FAST)


def test_suspicious_runs_are_noticed_but_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[str] = []
    monkeypatch.setitem(compare_runs.__globals__, "notice", noticed.append)
    report = compare_runs([run_of("strange", {"q1": ["x"], "q2": ["y"]})], JUDGEMENTS, FAST)
    assert report.means["RR@10"]["strange"] == 0
    assert [line.partition(": ")[2] for line in noticed] == [
        "1 judged query has no results and scores 0: q3",
        "RR@10, R@5 have cutoffs deeper than the run's 1 results per query",
        "NOT ONE retrieved document (ids such as 'x') is judged (ids such as 'd1'): "
        "is it a run over another corpus?",
    ]
    strange = "Not one document that strange retrieved is judged."
    assert strange in report.table().caption
    fair = compare_runs([run_of("fair", {"q1": ["d1"]})], JUDGEMENTS, FAST)
    assert "Not one" not in fair.table().caption
    noticed.clear()
    compare_runs([run_of("whole", {"q1": ["d1"]})], JUDGEMENTS, FAST, searched=["whole"])
    assert not [line for line in noticed if "deeper" in line], "there is nothing below its results"
    noticed.clear()
    compare_runs([Run("silent", {"q1": Ranking("q1")})], JUDGEMENTS, FAST)
    assert "silent: NOT ONE retrieved document is judged (ids such as 'd1')" in "".join(noticed)


def test_settings_read_yaml_lists_and_print_names_in_one_spelling() -> None:
    settings = EvaluationSettings.parse({"measures": ["MRR@10", "RR@10", "AP"]}, where="recipe")
    assert settings.measures == ("RR@10", "AP")
    refused: list[dict[str, object]] = [
        {"measures": []}, {"measures": "AP"}, {"alpha": 1.0}, {"test": "z"}, {"seeds": 1},
    ]  # fmt: skip
    for wrong in refused:
        with pytest.raises(SettingsError):
            EvaluationSettings.parse(wrong, where="recipe")
    with pytest.raises(SettingsError, match="nDCG@10"):
        EvaluationSettings.parse({"measures": ["ndcg@10"]}, where="recipe")


def test_the_randomisation_test_has_samples_of_its_own() -> None:
    scores = {
        system: {"RR@10": {f"q{number}": score for number in range(20)}}
        for system, score in (("worse", 0.0), ("better", 1.0))
    }
    settings = {"test": "randomisation", "randomisation_samples": 9, "bootstrap_samples": 100}
    report = summarise(scores, settings)
    assert report.tests["RR@10"].pairs[0].p_value == 1 / 10, "no toss is as extreme"
    assert "with 9 samples" in report.table().caption


def test_only_the_pairs_of_the_question_are_tested_and_corrected() -> None:
    scores = {
        system: {"RR@10": {f"q{n}": level + n % 3 / 10 for n in range(9)}}
        for system, level in (("one", 0.0), ("two", 0.1), ("three", 0.5))
    }
    fast = {"bootstrap_samples": 10}
    every, asked = summarise(scores, fast), summarise(scores, fast, pairs=[("three", "one")])
    (pair,) = asked.tests["RR@10"].pairs
    assert (pair.first, pair.second, pair.corrected_p_value) == ("three", "one", pair.p_value)
    assert asked.tests["RR@10"].beats == {"one": "", "two": "", "three": "a"}
    assert len(every.tests["RR@10"].pairs) == 3
    assert "over 1 pair per measure" in asked.table().caption


def several() -> Report:
    """One report of three collections."""

    def report(name: str, **scores: list[float]) -> Report:
        by_query = {
            system: {"RR@10": {f"q{n}": value for n, value in enumerate(values)}}
            for system, values in scores.items()
        }
        found = summarise(by_query, {"bootstrap_samples": 10, "measures": ("RR@10",)})
        return found.model_copy(update={"name": name})

    first, *others = (
        report("large", one=[0.5] * 8, two=[0.25] * 8, three=[0.5] * 8),
        report("small", one=[0.2, 0.0], two=[1.0, 0.0], three=[0.1, 0.1]),
        report("other", one=[0.0, 0.4], two=[0.1, 0.1], three=[0.2, 0.1]),
    )
    return first.model_copy(update={"also": {one.name: one for one in others}})


def test_several_collections_are_one_report_with_averages_and_counts() -> None:
    found = several()
    assert found.means["RR@10"]["one"] == 0.5, "of the first collection"
    assert found.averages("RR@10") == pytest.approx(
        {
            "one": (0.5 + 0.1 + 0.2) / 3,
            "two": (0.25 + 0.5 + 0.1) / 3,
            "three": (0.5 + 0.1 + 0.15) / 3,
        }
    )
    assert found.best_on("RR@10") == {"one": 2, "two": 1, "three": 1}, "a shared one is each's"
    table = found.table("RR@10")
    assert table.columns == ("#", "system", "large", "small", "other", "average", "best on")
    rows = {row[1].text: row for row in table.rows}
    assert [cell.text for cell in rows["one"][2:]] == ["0.500", "0.100", "0.200", "0.267", "2 of 3"]
    assert [cell.text for row in table.rows for cell in row if cell.best] == [
        "0.500", "0.200", "2 of 3", "0.500", "0.283", "0.500",
    ]  # fmt: skip
    assert rows["one"][2].letters == "b", "on this collection alone"
    assert rows["one"][3].letters == ""
    assert "Judged queries: large 8, small 2, other 2." in table.caption
    assert "On each collection, letters: significantly better" in table.caption
    assert Report.from_json(found.to_json()) == found
    lines = found.per_query_tsv().splitlines()
    assert lines[0] == "collection\tmeasure\tquery\tone\ttwo\tthree"
    assert lines[9] == "small\tRR@10\tq0\t0.2\t1.0\t0.1"


def test_a_report_is_a_data_frame() -> None:
    pytest.importorskip("pandas")
    found = several()
    frame = found.model_copy(update={"also": {}}).to_dataframe()
    assert frame.loc["two", "RR@10"] == 0.25
    assert found.to_dataframe().loc[("small", "two"), "RR@10"] == 0.5


def test_without_pandas_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pandas"):
        several().to_dataframe()


def test_first_hits_that_differ() -> None:
    def run(name: str, **firsts: str) -> Run:
        rankings = {q: Ranking(q, (d, "z"), (2.0, 1.0)) for q, d in firsts.items()}
        return Run(name, rankings)

    runs = [run("one", q1="a", q2="b", q3="c", q4="q4"), run("two", q1="a", q2="x", q3="y")]
    scores = {
        "one": {"q1": 1.0, "q2": 0.5, "q3": 1.0, "q4": 0.5},
        "two": {"q1": 0.1, "q2": 0.4, "q3": 0.0, "q4": 0.0},
    }
    judged = {"q1": {"a": 1}, "q2": {"b": 0, "x": 2}, "q3": {}, "q4": {"z": 1}}
    found = examples(runs, judged, scores, "RR@10", 9, drop_self=True)
    # The same first document of q1 is no example, whatever comes after it.
    assert [one.query for one in found] == ["q3", "q4", "q2"]
    hits = {one.query: one.hits for one in found}
    assert hits["q4"]["one"].document == "z", "not the query itself"
    assert hits["q4"]["two"] is None
    shown = [cell.text for row in found[2].table().rows for cell in row[2:4]]
    assert shown == ["not relevant (0)", "b", "relevant (2)", "x"]
    assert found[0].table().rows[0][2].text == "not judged"
