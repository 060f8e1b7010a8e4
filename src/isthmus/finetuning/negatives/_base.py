"""Sources of candidates: what every one offers, and those that settings name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from isthmus.errors import SettingsError
from isthmus.finetuning.mining.candidates import CorpusIds, MiningSettings, Ranker, TrainingCorpus
from isthmus.records import Query
from isthmus.registry import Registry

NEGATIVES = Registry("isthmus.finetuning.negatives", "source of negatives")


class Source(ABC):
    """Where candidates come from: one class per file of `negatives/`."""

    Settings: ClassVar[type[MiningSettings]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def origin(self) -> str | None:
        """A digest of the file or model that the settings name; None where they name none.

        Raises if it is missing; called before any work begins.
        """
        return None

    def check(self, queries: Sequence[Query], corpus: CorpusIds) -> None:  # noqa: B027 (most have no ids)
        """Raises if ids show that it cannot rank these documents for these queries.

        Called for all stages before the first one trains; prints no notices, as `open` does.
        """

    @abstractmethod
    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The ranker of this corpus."""


def listed(chosen: Any) -> list[dict[str, Any]]:
    """The settings of each source that settings name: of one, several or none."""
    return chosen if isinstance(chosen, list) else [chosen] if chosen else []


def negative_sources(chosen: Any, teacher: bool) -> list[Source]:
    """The sources that settings name."""
    sources = []
    for number, values in enumerate(listed(chosen)):
        where = f"negatives.{number}" if isinstance(chosen, list) else "negatives"
        values = dict(values)
        source = NEGATIVES.load(str(values.pop("name", None)), where)
        settings = source.Settings.parse(values, where, under=where)
        if settings.margin_by == "teacher" and not teacher:
            raise SettingsError(
                f"{where}.margin_by = 'teacher', but there is no teacher",
                "--set teacher.name=cross_encoder --set teacher.model=NAME, or --set "
                f"{where}.margin_by=source",
            )
        sources.append(source(settings))
    return sources
