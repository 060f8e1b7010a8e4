"""Sources of candidates: what every one offers, and those that settings name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from isthmus.errors import SettingsError
from isthmus.finetuning.mining.candidates import CorpusIds, Ranker, TrainingCorpus
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.records import Query
from isthmus.registry import Registry

NEGATIVES = Registry("isthmus.finetuning.negatives", "source of negatives")


class Source(ABC):
    """Where candidates come from: one class per file of `negatives/`."""

    Settings: ClassVar[type[MiningSettings]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def origin(self) -> str | None:
        """A digest of what the settings only name (a file, a model); None where there is none.

        Refused when it is not there: asked before any work begins.
        """
        return None

    def check(self, queries: Sequence[Query], corpus: CorpusIds) -> None:  # noqa: B027 (most have no ids)
        """Refuses what cannot rank these documents for these queries, where ids can tell.

        Asked of all stages before the first one starts, so nothing is said that `open` will say.
        """

    @abstractmethod
    def open(self, corpus: TrainingCorpus) -> Ranker:
        """What ranks this corpus."""


def negative_sources(chosen: Any, teacher: bool) -> list[Source]:
    """The sources that settings name (one, several or none), checked before anything is read."""
    several = isinstance(chosen, list)
    sources = []
    for number, values in enumerate(chosen if several else [chosen] if chosen else []):
        where = f"negatives.{number}" if several else "negatives"
        values = dict(values)
        source = NEGATIVES.load(str(values.pop("name", None)), where)
        settings = source.Settings.parse(values, where, under=where)
        if settings.margin_by == "teacher" and not teacher:
            raise SettingsError(
                f"{where}.margin_by = 'teacher', but there is no teacher",
                where=f"{where}.margin_by",
                allowed="source, or teacher where the stage has one",
                remedy="--set teacher.name=cross_encoder --set teacher.model=NAME, or "
                f"--set {where}.margin_by=source",
            )
        sources.append(source(settings))
    return sources
