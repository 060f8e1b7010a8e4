"""A pre-training recipe: the parts it names, checked against each other before anything loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from isthmus.errors import SettingsError
from isthmus.pretraining.bottlenecks import Bottleneck
from isthmus.pretraining.corruption import Corruption, Side
from isthmus.pretraining.decoders import Decoder
from isthmus.pretraining.objectives import Objective
from isthmus.pretraining.parts import Column, Part, Vector
from isthmus.pretraining.registries import BOTTLENECKS, CORRUPTIONS, DECODERS, OBJECTIVES, VIEWS
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.views import View
from isthmus.registry import Registry
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Parts:
    """The assembled parts of one recipe."""

    view: View
    corruption: Corruption | None
    bottleneck: Bottleneck | None
    decoder: Decoder | None
    decoder_corruption: Corruption | None
    objectives: dict[str, Objective]

    @property
    def vector(self) -> Vector:
        """What the recipe teaches to stand for a text: an objective's, else the bottleneck's."""
        declared = (part.trains for part in (*self.objectives.values(), self.bottleneck) if part)
        return next(filter(None, declared), "cls")

    def columns(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> dict[str, Column]:
        """What they must know of every token, made once and kept beside the corpus."""
        return {name: one for part in self for name, one in part.columns(corpus, tokenizer).items()}

    def __iter__(self) -> Iterator[Part]:
        """All of them, in the order of the step."""
        optional = (self.corruption, self.decoder_corruption, self.bottleneck, self.decoder)
        yield self.view
        yield from (part for part in optional if part is not None)
        yield from self.objectives.values()


def assemble(settings: PretrainSettings) -> Parts:
    """The parts a recipe names; raises if one requires what nothing provides."""
    parts = Parts(
        view=_part(VIEWS, settings.view, "view"),
        corruption=_part(CORRUPTIONS, settings.corruption, "corruption", "encoder"),
        bottleneck=_part(BOTTLENECKS, settings.bottleneck, "bottleneck"),
        decoder=_part(DECODERS, settings.decoder, "decoder"),
        decoder_corruption=_part(
            CORRUPTIONS, settings.decoder_corruption, "decoder_corruption", "decoder"
        ),
        objectives={
            name: _part(OBJECTIVES, {"name": name, **inner}, f"objectives.{name}")
            for name, inner in settings.objectives.items()
        },
    )
    if parts.corruption is not None:
        parts.corruption.beside(None)
    if parts.decoder_corruption is not None:
        parts.decoder_corruption.beside(parts.corruption)
    provided = set(parts.view.provides)
    named: list[tuple[str, Part | None]] = [
        ("corruption", parts.corruption),
        ("decoder_corruption", parts.decoder_corruption),
        ("backbone", _Backbone(None)),
        ("bottleneck", parts.bottleneck),
        ("decoder", parts.decoder),
        *((f"objectives.{name}", objective) for name, objective in parts.objectives.items()),
    ]
    for where, found in named:
        if found is not None:
            _check(found, where, provided)
            provided |= found.provides
    _check_used(named)
    return parts


class _Backbone(Part):
    provides = frozenset({"hidden_states", "middle_states"})
    requires = frozenset({"input_ids", "attention_mask"})


def _part(registry: Registry, chosen: Mapping[str, Any] | None, where: str, *side: Side) -> Any:
    """The part that a recipe names, with its settings; a corruption is of a side."""
    if chosen is None:
        return None
    values = dict(chosen)
    name = values.pop("name", None)
    if not isinstance(name, str):
        known = ", ".join(registry.names())
        raise SettingsError(f"{where} has no name", f"write {where}: {{name: …}}", known)
    part = registry.load(name, where)
    if side and side[0] not in part.sides:
        raise SettingsError(
            f"{where}: {name} works on the {part.sides[0]}'s side only",
            f"choose one of these for {where}",
            ", ".join(one for one in registry.names() if side[0] in registry.load(one).sides),
        )
    return part(part.Settings.parse(values, where, under=where), *side)


def _check(part: Part, where: str, provided: set[str]) -> None:
    missing = sorted(part.requires - provided)
    if missing:
        field = missing[0]
        raise SettingsError(
            f"{where} requires {field!r}, which nothing in this recipe provides",
            f"add a part that provides it, or remove {where}",
            ", ".join(_providers(field)),
        )


def _providers(field: str) -> list[str]:
    found = []
    for registry in (VIEWS, CORRUPTIONS, BOTTLENECKS, DECODERS):
        for name in registry.names():
            part = registry.load(name)
            if field in part.provides and "encoder" in getattr(part, "sides", ("encoder",)):
                found.append(f"{registry.kind} {name}")
            if field in getattr(part, "decoder_provides", ()):
                found.append(f"decoder_corruption {name}")
    return found


def _users(fields: Set[str]) -> list[str]:
    """The parts that require one of these fields."""
    return [
        f"{registry.kind} {name}"
        for registry in (DECODERS, OBJECTIVES)
        for name in registry.names()
        if fields & registry.load(name).requires
    ]


def _check_used(named: list[tuple[str, Part | None]]) -> None:
    """Refuses a bottleneck, decoder or decoder's corruption that nothing would use."""
    required = {field for _, part in named if part is not None for field in part.requires}
    for where, part in named:
        if where in ("bottleneck", "decoder", "decoder_corruption") and part is not None:
            given = part.provides - {"decoder_labels"}
            if not given & required:
                raise SettingsError(
                    f"{where} is given, but nothing in this recipe uses what it provides",
                    f"remove {where}, or add a part that uses it",
                    ", ".join(_users(given)),
                )
