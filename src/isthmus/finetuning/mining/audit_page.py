"""An audit of negatives as a terminal table and as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from isthmus.config.output import whole_file, writing
from isthmus.evaluation.pages import page as framed
from isthmus.finetuning.mining.audit import EDGES, NEAR, Audit, Drawn, Negative, worst
from isthmus.records import Document

_CUT = 600  # characters of a text that are shown


def audit_table(audit: Audit) -> Group:
    """The counts, the ranks and the worst cases, for a terminal."""
    counts = Table("negatives", "found", title=f"negatives of {audit.collection}")
    for what, found in _counts(audit):
        counts.add_row(what, found)
    ranks = Table("rank", *(f"{one.source}: {kind}" for one in audit.drawn for kind in _KINDS))
    for line in _rank_lines(audit.drawn):
        ranks.add_row(*line)
    table = Table("above", "query", "its positive", "its negative", title="read these first")
    for one in worst(audit.suspects)[:5]:
        positive = audit.documents[audit.labelled.positives[one.number][0]]
        texts = (audit.labelled.queries[one.number].text, positive.contents())
        shown = (_short(text, 120) for text in (*texts, audit.documents[one.row].contents()))
        table.add_row(f"{one.above:+.3g}", *map(Text, shown))
    said = [Text(audit.verdict)] if audit.advice else []
    return Group(counts, *said, ranks, *([table] if audit.suspects else []))


def write_page(audit: Audit, file: Path) -> None:
    """Writes the audit as one HTML file, which appears whole."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as stream:
        stream.write(page(audit))


def page(audit: Audit) -> str:
    """The audit as HTML, without scripts and external files."""
    title = f"Negatives of {audit.collection}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _html_table(_counts(audit)),
        f"<p><b>{escape(audit.verdict)}</b></p>" if audit.advice else "",
        _section(
            "Suspected false negatives",
            f"They score no less than the query's lowest scored relevant document, by the "
            f"{audit.judge}. A good re-ranker is a better judge than the source they come from. "
            "Margins keep them out: <code>absolute_margin</code>, <code>relative_margin</code>, "
            "<code>margin_by</code>.",
            (_article(audit, one) for one in worst(audit.suspects)),
        ),
        "<h2>Ranks</h2>",
        *(_bars(one) for one in audit.drawn),
        _section(
            "Leaks",
            "The same words, whatever their case and punctuation.",
            (
                f"<article><p>{leak.count:,} × {escape(leak.what)}</p>"
                f"<p class=quiet>{escape(' · '.join(leak.examples))}</p></article>"
                for leak in audit.leaks
            ),
        ),
        _section(
            "Near-duplicates of a relevant document",
            f"At least {NEAR:.0%} of the distinct tokens of both are shared.",
            (_article(audit, one) for one in worst(audit.near_duplicates)),
        ),
        _section("Samples to read", "Drawn at random.", (_sample(audit, n) for n in audit.samples)),
    ]
    return framed(title, parts)


_KINDS = ("negatives", "relevant")


def _counts(audit: Audit) -> list[tuple[str, str]]:
    total = len(audit.negatives)
    random = sum(one.random for one in audit.drawn)
    drawn = random + sum(sum(one.ranks) for one in audit.drawn)
    suspects, near = len(audit.suspects), len(audit.near_duplicates)
    lines = [
        ("training queries", f"{len(audit.labelled.queries):,}"),
        ("sampled", f"{audit.sampled:,} queries, {total:,} negatives of the first epoch"),
        (
            f"score no less than the positive, by the {audit.judge}",
            f"{suspects:,} of {audit.compared:,} ({_share(suspects, audit.compared)})",
        ),
        ("nearly the words of a positive", f"{near:,} ({_share(near, total)})"),
        ("the very text of a positive", f"none: {audit.removed_copies:,} candidates were left out"),
        ("documents with another's text", f"{audit.copied_documents:,} of the corpus"),
        ("random, for want of candidates", f"{random:,} of {drawn:,} ({_share(random, drawn)})"),
    ]
    return [*lines, *((leak.what, f"{leak.count:,}") for leak in audit.leaks)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none to compare"


def _ranges() -> list[str]:
    return [*(f"{first}–{after - 1}" for first, after in pairwise(EDGES)), f"{EDGES[-1]} and on"]


def _rank_lines(drawn: Sequence[Drawn]) -> list[list[str]]:
    columns = [counts for one in drawn for counts in (one.ranks, one.positive_ranks)]
    lines = [
        [name, *(f"{counts[place]:,}" for counts in columns)]
        for place, name in enumerate(_ranges())
        if any(counts[place] for counts in columns)
    ]
    others = [f"{count:,}" for one in drawn for count in (one.random, one.positives_not_ranked)]
    return [*lines, ["random, not ranked", *others]]


def _bars(drawn: Drawn) -> str:
    lines = []
    for name, count, positives in zip(
        (*_ranges(), "random; not ranked"),
        (*drawn.ranks, drawn.random),
        (*drawn.positive_ranks, drawn.positives_not_ranked),
        strict=True,
    ):
        shares = (
            count / max(sum(drawn.ranks) + drawn.random, 1),
            positives / max(sum(drawn.positive_ranks) + drawn.positives_not_ranked, 1),
        )
        cells = "".join(
            f'<td class=number>{number:,}<td class=bar><div style="--share:{share:.3f}"></div>'
            for number, share in zip((count, positives), shares, strict=True)
        )
        lines.append(f"<tr><td>{name}{cells}")
    head = f"<tr><th>rank by {escape(drawn.source)}<th colspan=2>negatives<th colspan=2>relevant"
    return f"<table>{head}{''.join(lines)}</table>"


def _html_table(lines: Iterable[tuple[str, str]]) -> str:
    rows = (f"<tr><td>{escape(what)}<td>{escape(found)}" for what, found in lines)
    return f"<table>{''.join(rows)}</table>"


def _section(title: str, about: str, entries: Iterable[str]) -> str:
    return f"<h2>{title}</h2><p>{about}</p>" + ("".join(entries) or "<p>None found.</p>")


def _article(audit: Audit, negative: Negative) -> str:
    relevant = "".join(_positives(audit, negative.number))
    query = escape(audit.labelled.queries[negative.number].text)
    return f"<article><p><b>{query}</b>{relevant}{_negative(audit, negative)}</article>"


def _sample(audit: Audit, number: int) -> str:
    query = escape(audit.labelled.queries[number].text)
    own = (one for one in audit.negatives if one.number == number)
    passages = "".join([*_positives(audit, number), *(_negative(audit, one) for one in own)])
    return f"<details class=example><summary><b>{query}</b></summary>{passages}</details>"


def _positives(audit: Audit, number: int) -> Iterable[str]:
    rows = audit.labelled.positives[number]
    return (_passage("positive", "relevant", audit.documents[row]) for row in rows)


def _negative(audit: Audit, one: Negative) -> str:
    facts = [one.source, "random" if one.rank is None else f"rank {one.rank}"]
    numbers = {"score": one.score, "teacher": one.teacher, "above the positive": one.above}
    facts += [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
    facts.append(f"likeness {one.likeness:.2f}")
    return _passage("negative", ", ".join(facts), audit.documents[one.row])


def _passage(kind: str, facts: str, document: Document) -> str:
    title = f"<b>{escape(document.title)}</b> " if document.title else ""
    return (
        f"<p><span class={kind}>{kind}</span> <span class=quiet>{escape(document.id)}, "
        f"{escape(facts)}</span><br>{title}{escape(_short(document.text, _CUT))}</p>"
    )


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}…"
