"""From runs to a report and its files, and what is refused or noticed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.evaluation import EvaluationSettings, Report, evaluate, summarise
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
    report = evaluate([run], JUDGEMENTS, settings=FAST)
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
    kept = evaluate([run], JUDGEMENTS, settings=FAST)
    assert kept.per_query["RR@10"]["system"]["q1"] == 0.5
    dropped = evaluate([run], JUDGEMENTS, settings=FAST.model_copy(update={"drop_self": True}))
    assert dropped.per_query["RR@10"]["system"]["q1"] == 1.0
    assert dropped.counts["system"].dropped_self == 2
    assert dropped.counts["system"].missing == 1
    assert dropped.settings.drop_self


def test_a_report_survives_json_to_the_last_digit() -> None:
    thirds = run_of("ünï", {"q1": ["x", "y", "d1"], "q2": ["d2"]})
    report = evaluate([thirds, run_of("other", {"q1": ["d1"]})], JUDGEMENTS, settings=FAST)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"systems": 3}'])
def test_a_file_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a report") as refusal:
        Report.from_json(text, where="old/report.json")
    assert "old/report.json" in refusal.value.what


def test_the_output_folder_holds_tables_scores_and_what_made_them(tmp_path: Path) -> None:
    runs = [run_of("a_1", {"q1": ["d1"]}), run_of("b&2", {"q2": ["d2"], "q1": ["d1"]})]
    folder = tmp_path / "report"
    report = evaluate(runs, JUDGEMENTS, settings=FAST, output=folder)
    assert Report.from_json((folder / "report.json").read_text()) == report
    assert "| b | b&2 |" in (folder / "table.md").read_text()
    assert r"b\&2" in (folder / "table.tex").read_text()
    lines = (folder / "per_query.tsv").read_text().splitlines()
    assert lines[0] == "measure\tquery\ta_1\tb&2"
    assert lines[2] == "RR@10\tq2\t0.0\t1.0"
    assert len(lines) == 1 + 2 * 3
    snapshot = json.loads((folder / "isthmus.json").read_text())
    assert snapshot["complete"]
    assert snapshot["identity"]["settings"]["measures"] == ["RR@10", "R@5"]
    assert snapshot["results"] == report.means

    evaluate(runs, JUDGEMENTS, settings=FAST, output=folder)  # the same job again is welcome
    other = [runs[0], run_of("b&2", {"q2": ["d2"]})]
    with pytest.raises(OutputError, match=r"differs in runs\.b&2\.fingerprint"):
        evaluate(other, JUDGEMENTS, settings=FAST, output=folder)


def test_files_give_the_same_report_as_records(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text(
        "q1 Q0 d1 1 2.0 mine\nq2 Q0 d9 1 2.0 mine\nq2 Q0 d2 2 1.0 mine\n"
    )
    (tmp_path / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\nq3 0 d3 1\n")
    report = evaluate(tmp_path / "run.trec", str(tmp_path / "qrels.txt"), settings=FAST)
    expected = evaluate(
        run_of("mine", {"q1": ["d1"], "q2": ["d9", "d2"]}), JUDGEMENTS, settings=FAST
    )
    assert report == expected


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(MismatchError, match=r"none of the 3 judged queries.*'other'") as refusal:
        evaluate([run_of("lost", {"other": ["d1"]})], JUDGEMENTS, settings=FAST)
    assert "'q1'" in refusal.value.what
    with pytest.raises(MismatchError, match="it is empty"):
        evaluate([Run("empty")], JUDGEMENTS, settings=FAST)
    one = run_of("same", {"q1": ["d1"]})
    with pytest.raises(InputError, match="two runs are named 'same'"):
        evaluate([one, one], JUDGEMENTS, settings=FAST)
    with pytest.raises(InputError, match="no run"):
        evaluate([], JUDGEMENTS, settings=FAST)
    with pytest.raises(InputError, match="no query is judged"):
        evaluate([one], {"q1": {}}, settings=FAST)


def test_suspicious_runs_are_noticed_but_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[str] = []
    monkeypatch.setitem(evaluate.__globals__, "notice", noticed.append)
    report = evaluate([run_of("strange", {"q1": ["x"], "q2": ["y"]})], JUDGEMENTS, settings=FAST)
    assert report.means["RR@10"]["strange"] == 0
    assert [line.partition(": ")[2] for line in noticed] == [
        "1 judged query has no results and scores 0: q3",
        "RR@10, R@5 have cutoffs deeper than the run's 1 results per query",
        "NOT ONE retrieved document (ids such as 'x') is judged (ids such as 'd1'): "
        "is it a run over another corpus?",
    ]
    strange = "Not one document that strange retrieved is judged."
    assert strange in report.table().caption
    fair = evaluate([run_of("fair", {"q1": ["d1"]})], JUDGEMENTS, settings=FAST)
    assert "Not one" not in fair.table().caption
    noticed.clear()
    evaluate([Run("silent", {"q1": Ranking("q1")})], JUDGEMENTS, settings=FAST)
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
    assert report.comparisons["RR@10"].pairs[0].p_value == 1 / 10, "no toss is as extreme"
    assert "with 9 samples" in report.tests()
