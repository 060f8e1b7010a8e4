"""Settings of a recipe with those of a protocol's parts over them, none of which is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from isthmus.config import Settings, resolve
from isthmus.config.recipes import merged
from isthmus.config.settings import inner_model
from isthmus.errors import IsthmusError, SettingsError, shown
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.pretraining.settings import PretrainSettings

Values = dict[str, Any]
Layer = tuple[str, Mapping[str, Any]]
"""Where in the protocol settings stand, and these; "": what the protocol itself says elsewhere."""

_ELSEWHERE = {
    "corpus": "starts.NAME.corpus or collections.NAME.corpus",
    "collection": "tasks.NAME.collection",
    "output": "--output",
    "model": "base.model or starts.NAME.model",
    "init": "base.init",
    "queries": "tasks.NAME.queries",
    "training.seed": "seeds",
}
_MODELS: dict[str, type[Settings]] = {"pretrain": PretrainSettings, "finetune": FinetuneSettings}


def layered(
    verb: str, values: Mapping[str, Any], layers: Iterable[Layer], taken: Iterable[str]
) -> Values:
    """Settings with layers over them; raises on what a layer says in vain.

    That is a value where a mapping belongs, which a later layer would cover, and what the protocol
    says elsewhere: in a later layer of its own, or, if it is among `taken`, in no layer.
    """
    found, said = dict(values), dict[str, str]()
    for place, layer in layers:
        own = resolve(verb, None, None, layer)
        _check_mappings(verb, own, place)
        for name in filter(lambda name: _holds(own, name), _ELSEWHERE):
            if place and name not in taken:
                said[name] = place
            elif place or name in said:
                raise _in_vain(name, said.get(name, place))
        found = merged(found, own)
    return found


@contextmanager
def advised(layers: Sequence[Layer]) -> Iterator[None]:
    """Lets the advice of errors name settings where the protocol has them: the last to say them."""
    named = [(place, {key.split(".")[0] for key in layer}) for place, layer in layers if place]

    def placed(found: re.Match[str]) -> str:
        said = [place for place, keys in named if found[1] in keys]
        return f"--set {[named[0][0], *said][-1]}.{found[1]}"

    try:
        yield
    except IsthmusError as error:
        error.fix = re.sub(r"--set (\w+)", placed, error.fix)
        raise


def _in_vain(name: str, place: str) -> SettingsError:
    return SettingsError(
        f"{place}.{name} has no effect: it is set by {_ELSEWHERE[name]}",
        f"remove it, and set {_ELSEWHERE[name]}",
    )


def _holds(values: Mapping[str, Any], name: str) -> bool:
    section, _, key = name.rpartition(".")
    return key in (values.get(section, {}) if section else values)


def _check_mappings(verb: str, values: Mapping[str, Any], place: str) -> None:
    for name, field in _MODELS[verb].model_fields.items():
        inner = inner_model(field)  # the field's type itself, where it cannot be null
        whole = field.annotation == inner
        if inner and whole and not isinstance(values.get(name, {}), Mapping):
            raise SettingsError(
                f"{place}.{name} = {shown(values[name])} cannot be used: {name} holds several "
                "settings",
                f"set one of them: --set {place}.{name}.KEY=…",
                ", ".join(inner.model_fields),
            )
