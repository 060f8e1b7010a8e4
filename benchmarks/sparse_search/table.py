"""The table of a comparison, in Markdown."""

from __future__ import annotations

from typing import Any

_MB = 1e6
_COLUMNS = (
    ("build s", "build_seconds", 1, ".1f"),
    ("MB on disk", "bytes", _MB, ",.1f"),
    ("bytes per posting", "bytes_per_posting", 1, ".2f"),
    ("memory MB", "resident", _MB, ",.0f"),
    ("anonymous MB", "anonymous", _MB, ",.0f"),
    ("p50 ms", "p50_ms", 1, ".3f"),
    ("p99 ms", "p99_ms", 1, ".3f"),
    ("queries/s per core", "qps_core", 1, ",.0f"),
    ("queries/s, all threads", "qps_all", 1, ",.0f"),
    ("recall", "recall", 1, ".4f"),
)


def markdown(report: dict[str, Any]) -> str:
    """A section per number of documents."""
    return "\n\n".join([report["machine"], *map(_section, report["sizes"])]) + "\n"


def _section(size: dict[str, Any]) -> str:
    heads = ["k", "system", *(head for head, *_ in _COLUMNS), "p50 / plain", "p50 / isthmus"]
    lines = [
        f"## {size['documents']:,} documents, {size['vectors']}",
        "",
        f"{size['terms']:.0f} terms a document; {size['queries']} queries of "
        f"{size['query_terms']:.0f} terms that meet {size['met']:,.0f} postings each; "
        f"load {size['load']:.1f}",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in size["rows"]]
    notes = {f"{row['system']}: {row['failed']}": None for row in size["rows"] if "failed" in row}
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [
        str(row.get("k", "")),
        row["system"] + (" (failed, see below)" if row.get("failed") else ""),
    ]
    for _, key, unit, form in _COLUMNS:
        value = row.get(key)
        cells.append("" if value is None else format(value / unit, form))
    return cells + [_ratio(row, peer) for peer in ("plain", "isthmus")]


def _ratio(row: dict[str, Any], peer: str) -> str:
    if f"p50_to_{peer}" in row:
        return f"{row[f'p50_to_{peer}']:.2f}"
    # Nobody knows its p50: rates on one thread stand in.
    return f"~{row[f'by_rate_to_{peer}']:.2f}" if f"by_rate_to_{peer}" in row else ""
