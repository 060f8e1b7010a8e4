"""Negatives from a published list, such as sentence-transformers' msmarco-hard-negatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from isthmus.collections import Problems
from isthmus.collections.fields import json_lines
from isthmus.errors import SettingsError, choices, shown
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.negatives._files import FileSource
from isthmus.finetuning.score_files import listed_id
from isthmus.records import Query, Ranking


class ListedSettings(MiningSettings):
    """Which candidates are kept, and the file that lists them."""

    file: str = Field(
        description='jsonl, one query a line: {"qid": …, "neg": {"SYSTEM": [document, …], …}}'
    )
    systems: list[str] | None = Field(
        None, min_length=1, description="whose lists are taken; null: all that there are"
    )

    @model_validator(mode="after")
    def _without_scores(self) -> Self:
        if self.has_margin and self.margin_by == "source":
            raise ValueError("a list has no scores for a margin: margin_by=teacher, or none")
        return self


class Listed(FileSource):
    """Takes the lists of one or several systems, best first, in turns; a document counts once."""

    Settings = ListedSettings
    kind = "list of negatives"

    def identity(self) -> str:
        """What tells the rankings from those of other sources."""
        return f"{super().identity()} {self.settings.systems}"

    def read(self, queries: Sequence[Query], problems: Problems) -> Mapping[str, Ranking]:
        """The lists of the queries, which must be those of systems that there are."""
        file: str = self.settings.file
        wanted = {query.id for query in queries}
        found: dict[str, Ranking] = {}
        systems: set[str] = set()
        for query_id, lists in _lines(Path(file), problems):
            systems |= lists.keys()
            if query_id in wanted:
                chosen = lists.keys() if self.settings.systems is None else self.settings.systems
                found[query_id] = _in_turns(query_id, [lists.get(name, []) for name in chosen])
        for name in self.settings.systems or ():
            if systems and name not in systems:
                raise SettingsError(
                    f"{file!r} has no list of a system {name!r}",
                    where="negatives.systems",
                    allowed=choices(name, systems),
                    remedy="choose one of these, or leave systems out to take all",
                )
        return found


def _in_turns(query_id: str, lists: Sequence[Sequence[str]]) -> Ranking:
    """The first documents of all lists, then the second ones, and so on, each once."""
    turns = (one for row in zip_longest(*lists) for one in row if one is not None)
    ids = tuple(dict.fromkeys(turns))
    return Ranking(query_id, ids, tuple(-float(rank) for rank in range(len(ids))))


def _lines(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, list[str]]]]:
    for where, record in json_lines(file, problems):
        query_id, lists = listed_id(record.get("qid")), record.get("neg")
        read = _read(lists)
        if query_id is None or read is None:
            detail = f"no query with lists of documents by system: {shown(record)}"
            remedy = 'write {"qid": "q1", "neg": {"bm25": ["d1", "d2"]}}'
            problems.report("broken line", where, detail, remedy)
        else:
            yield query_id, read


def _read(lists: Any) -> dict[str, list[str]] | None:
    """The ids by system, which are given alone or as the `pid` of mappings; None for others."""
    if not isinstance(lists, dict):
        return None
    found = {}
    for name, documents in lists.items():
        if not isinstance(documents, list):
            return None
        ids = [listed_id(one.get("pid") if isinstance(one, dict) else one) for one in documents]
        if None in ids:
            return None
        found[name] = [one for one in ids if one is not None]
    return found
