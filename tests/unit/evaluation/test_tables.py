"""Tables say what they must, in every form, whatever the systems are called."""

from __future__ import annotations

import io

from rich.console import Console

from isthmus.evaluation import (
    Cell,
    EvaluationSettings,
    Report,
    RunCounts,
    Table,
    summarise,
)


def report_of(means: dict[str, float], test: str = "t_test") -> Report:
    """Systems whose scores differ steadily, so that each beats all those below it."""
    wobble = [0.01 * (number % 7) for number in range(50)]
    scores = {
        system: {
            "nDCG@10": {
                f"q{number}": mean + wobble[(number * (place + 1)) % 50] for number in range(50)
            }
        }
        for place, (system, mean) in enumerate(means.items())
    }
    settings = EvaluationSettings.parse(
        {"test": test, "bootstrap_samples": 200, "randomisation_samples": 500}, where="test"
    )
    return summarise(scores, settings)


def terminal(table: Table, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table.terminal())
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_means_letters_intervals_and_the_method_stand_in_the_table() -> None:
    report = report_of({"bm25": 0.1, "dense": 0.5})
    mean = f"{report.means['nDCG@10']['dense']:.3f}"
    low, high = report.intervals["nDCG@10"]["dense"]
    markdown = report.table().markdown()
    assert f"| b | dense | **{mean}**<sup>a</sup> ({low:.3f}–{high:.3f}) |" in markdown
    for text in (markdown, report.table().latex()):
        assert "50 judged queries" in text
        assert "paired two-sided t-test, Bonferroni over 1 pair per measure, level 0.05" in text
    assert "95% bootstrap interval of the mean (200 samples, seed 0)" in markdown
    assert "bootstrap" not in report.table().latex()
    assert rf"b & dense & \textbf{{{mean}}}$^{{a}}$ \\" in report.table().latex()
    shown = terminal(report.table())
    assert f"{mean}^a" in shown
    assert f"{low:.3f}–{high:.3f}" in shown


def test_a_report_shows_itself_as_its_table() -> None:
    report = report_of({"bm25": 0.1, "dense": 0.5})
    mean = f"{report.means['nDCG@10']['dense']:.3f}"
    low, high = report.intervals["nDCG@10"]["dense"]
    console = Console(width=200, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(report)
    assert capture.get() == terminal(report.table())
    for text in (repr(report), str(report)):
        assert f"{mean}^a" in text
        assert "50 judged queries" in " ".join(text.split())
        assert "q49" not in text, "scores of single queries would fill screens"
    html = report._repr_html_()
    assert html == report.table()._repr_html_()
    assert f"<b>{mean}</b><sup>a</sup><br><small>{low:.3f}–{high:.3f}</small></td>" in html


def test_names_of_systems_are_neither_markup_nor_obeyed() -> None:
    report = report_of({"<i>\x1b[2J": 0.1, "[bold]\u202e": 0.5})
    blind = {"<i>\x1b[2J": RunCounts(1, 0, 0, 0, 1, 0)}  # which the caption names, too
    report = report.model_copy(update={"counts": blind})
    html = report._repr_html_()
    for text in (repr(report), html):
        assert text.replace("\n", "").isprintable()
        assert r"\x1b[2J retrieved is judged" in " ".join(text.split())
        assert r"[bold]\u202e" in text
    assert "<i>" not in html
    assert r"&lt;i&gt;\x1b[2J" in html


def test_latex_is_balanced_and_escapes_what_latex_reads_as_commands() -> None:
    name = "a_b & 50% {x} #1 $y$ ~^ \\input{secret} <|>"
    latex = Table(("system", "R_cap@10"), ((Cell(name), Cell("0.5")),), "A & B").latex()
    row = next(line for line in latex.splitlines() if "secret" in line)
    assert row == (
        r"a\_b \& 50\% \{x\} \#1 \$y\$ \textasciitilde{}\textasciicircum{} "
        r"\textbackslash{}input\{secret\} \textless{}\textbar{}\textgreater{} & 0.5 \\"
    )
    assert r"system & R\_cap@10 \\" in latex
    assert r"\caption{A \& B}" in latex
    assert r"\begin{tabular}{lr}" in latex
    for name in ("table", "tabular"):
        assert latex.count(rf"\begin{{{name}}}") == latex.count(rf"\end{{{name}}}") == 1
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert latex.count(rule) == 1


def test_markdown_cells_cannot_break_the_table() -> None:
    table = Table(("system", "R_cap@10"), ((Cell("a|b *c* _d_ <e> snake_case\nf"), Cell("1")),), "")
    header, rule, row = table.markdown().splitlines()[:3]
    assert header == "| system | R_cap@10 |"
    assert rule == "| --- | ---: |"
    assert row == r"| a\|b \*c\* \_d\_ \<e> snake_case f | 1 |"


def test_control_characters_are_visible_in_every_format() -> None:
    table = Table(("system",), ((Cell("a\x1b[2J\x00\u202e\r\nb"),),), "c\x1b")
    for text in (table.markdown(), table.latex()):
        assert text.replace("\n", "").isprintable()
    assert r"a\\x1b\[2J\\x00\\u202e\\x0d b" in table.markdown()
    assert r"a\textbackslash{}x1b[2J\textbackslash{}x00" in table.latex()
