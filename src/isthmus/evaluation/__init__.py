"""Measures, paired tests, intervals and tables: how good a run is, and how sure one can be."""

from isthmus.evaluation.answers import answer_accuracy, contains_answer
from isthmus.evaluation.compare import compare_runs
from isthmus.evaluation.measures import parse_measure, per_query
from isthmus.evaluation.report import Report, RunCounts, summarise
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.evaluation.statistics import (
    Comparison,
    Comparisons,
    bonferroni,
    compare,
    holm,
    paired_t_test,
    randomisation_tests,
)
from isthmus.evaluation.tables import Cell, Table

__all__ = [
    "Cell",
    "Comparison",
    "Comparisons",
    "EvaluationSettings",
    "Report",
    "RunCounts",
    "Table",
    "answer_accuracy",
    "bonferroni",
    "compare",
    "compare_runs",
    "contains_answer",
    "holm",
    "paired_t_test",
    "parse_measure",
    "per_query",
    "randomisation_tests",
    "summarise",
]
