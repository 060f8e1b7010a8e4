"""Queries that one start wins and another loses, with their texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.collections import Problems, open_collection
from isthmus.errors import IsthmusError, SettingsError, choices
from isthmus.progress import notice, track

_REMOTE = ("hf:", "irds:")  # may be fetched from the network: a report never does that


@dataclass(frozen=True)
class Example:
    """One query: both scores, its relevant documents, and what each start ranks first."""

    query: str
    scores: tuple[float, float]
    relevant: tuple[str, ...] = ()
    first: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True)
class WinsAndLosses:
    """Two starts in one column, query by query; texts by id, as far as they could be read."""

    column: Column
    starts: tuple[str, str]
    won: int
    tied: int
    lost: int
    wins: tuple[Example, ...]
    losses: tuple[Example, ...]
    queries: dict[str, str]
    documents: dict[str, str]


def wins_and_losses(outcomes: Outcomes, settings: ReportSettings) -> list[WinsAndLosses]:
    """For every kind: the pairs of the settings, or the best start against the first."""
    found = []
    for kind in outcomes.protocol.kinds:
        for column in outcomes.columns(kind, outcomes.protocol.measures[0])[:1]:
            pairs = [_pair(text, outcomes) for text in settings.pairs] or _best(outcomes, column)
            for pair in pairs:
                compared = _compare(outcomes, column, pair, settings.examples)
                if compared is not None:
                    found.append(compared)
    return _with_texts(found, outcomes) if settings.texts and settings.examples else found


def _pair(text: str, outcomes: Outcomes) -> tuple[str, str]:
    one, _, other = text.partition(":")
    for name in (one, other):
        if name not in outcomes.starts:
            raise SettingsError(
                f"pairs = {text!r}: there is no start named {name!r}",
                "name two starts of the protocol, as START:START",
                choices(name, outcomes.starts),
            )
    return one, other


def _best(outcomes: Outcomes, column: Column) -> list[tuple[str, str]]:
    means = {start: scores.mean for start, scores in outcomes.by_start(column).items()}
    if len(means) < 2:
        return []
    reference = next(iter(means))
    best = max(means, key=means.__getitem__)
    return [(best, reference)] if best != reference else []


def _compare(
    outcomes: Outcomes, column: Column, pair: tuple[str, str], examples: int
) -> WinsAndLosses | None:
    one, other = (outcomes.scores(start, column) for start in pair)
    if one is None or other is None or one.queries != other.queries:
        return None
    differences = dict(zip(one.queries, one.by_query - other.by_query, strict=True))
    values = {
        query: (float(mine), float(theirs))
        for query, mine, theirs in zip(one.queries, one.by_query, other.by_query, strict=True)
    }
    order = sorted(differences, key=lambda query: -differences[query])
    won = [query for query in order if differences[query] > 1e-9]
    lost = [query for query in reversed(order) if differences[query] < -1e-9]
    first = [_first(outcomes, start, column) for start in pair]

    def shown(queries: list[str]) -> tuple[Example, ...]:
        return tuple(
            Example(query, values[query], first=(first[0].get(query), first[1].get(query)))
            for query in queries[:examples]
        )

    tied = len(order) - len(won) - len(lost)
    return WinsAndLosses(column, pair, len(won), tied, len(lost), shown(won), shown(lost), {}, {})


def _first(outcomes: Outcomes, start: str, column: Column) -> dict[str, str]:
    """The best document of each query, of the first run that kept it."""
    for result in outcomes.at(start, column.kind, column.task):
        test = result.tests.get(column.collection)
        if test is not None and test.first:
            return test.first
    return {}


def _with_texts(found: Iterable[WinsAndLosses], outcomes: Outcomes) -> list[WinsAndLosses]:
    """Wins and losses with texts, of every collection that can be opened without the network."""
    done = []
    for compared in found:
        name = compared.column.collection
        spec = outcomes.protocol.spec(name)
        try:
            if spec.startswith(_REMOTE) and not Path(spec.partition(":")[2]).exists():
                notice(f"{name}: its texts are not fetched for a report; ids are shown")
                done.append(compared)
            else:
                done.append(_read_texts(compared, spec, outcomes.protocol.collections[name].split))
        except (IsthmusError, OSError) as error:
            what = error.what if isinstance(error, IsthmusError) else str(error)
            notice(f"{name}: its texts cannot be read ({what}); ids are shown")
            done.append(compared)
    return done


def _read_texts(compared: WinsAndLosses, spec: str, split: str) -> WinsAndLosses:
    opened = open_collection(spec, Problems("skip"))
    judged = opened.judgements(split)
    examples = {one.query for one in (*compared.wins, *compared.losses)}
    answers = opened.answers(split)
    queries = {
        query.id: " → ".join([query.text, *answers.get(query.id, [])[:1]])
        for query in opened.queries()
        if query.id in examples
    }

    def completed(one: Example) -> Example:
        relevant = (document for document, grade in judged.get(one.query, {}).items() if grade > 0)
        return replace(one, relevant=tuple(relevant))

    wins, losses = (tuple(map(completed, side)) for side in (compared.wins, compared.losses))
    wanted = {
        document
        for one in (*wins, *losses)
        for document in (*one.relevant, *one.first)
        if document is not None
    }
    documents: dict[str, str] = {}
    for document in track(opened.documents(), "reading texts", total=opened.count()):
        if document.id in wanted:
            documents[document.id] = document.contents()
            if len(documents) == len(wanted):
                break
    return replace(compared, wins=wins, losses=losses, queries=queries, documents=documents)
