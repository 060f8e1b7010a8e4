"""The settings of a verb: each with its path, default, values and meaning."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from isthmus.config import Settings, allowed_values, inner_model
from isthmus.errors import SettingsError, choices

# By name, not by import: only the chosen verb is loaded.
VERBS = {
    "pretrain": "isthmus.pretraining.settings:PretrainSettings",
    "finetune": "isthmus.finetuning.settings:FinetuneSettings",
    "index": "isthmus.retrieval.verbs.index:IndexSettings",
    "add": "isthmus.retrieval.verbs.update:AddSettings",
    "delete": "isthmus.retrieval.verbs.update:DeleteSettings",
    "encode": "isthmus.retrieval.verbs.encode:EncodeSettings",
    "sync": "isthmus.retrieval.verbs.sync:SyncSettings",
    "merge": "isthmus.retrieval.verbs.update:MergeSettings",
    "search": "isthmus.retrieval.verbs.search:SearchSettings",
    "serve": "isthmus.serving.settings:ServeSettings",
    "tune": "isthmus.retrieval.verbs.tune:TuneSettings",
    "sparsify": "isthmus.retrieval.verbs.sparsify:SparsifySettings",
    "evaluate": "isthmus.workflows.evaluate:EvaluateSettings",
    "export": "isthmus.retrieval.verbs.export:ExportSettings",
    "inspect": "isthmus.inspection.inspect:InspectSettings",
    "explain": "isthmus.retrieval.verbs.search:SearchSettings",
    "probe": "isthmus.inspection.probe:CheckpointSettings",
    "negatives": "isthmus.finetuning.settings:FinetuneSettings",
    "benchmark report": "isthmus.benchmarks.report.settings:ReportSettings",
    "benchmark run": "isthmus.benchmarks.protocol.settings:Protocol",
    "adapt": "isthmus.workflows.adapt_settings:AdaptSettings",
    "quickstart": "isthmus.workflows.quickstart:QuickstartSettings",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as `--set PATH=VALUE` and recipes take it."""

    path: str
    default: str
    values: str
    meaning: str


def settings_of(verb: str, under: str = "") -> list[Setting]:
    """All settings of a verb, or those under a path (`training`, say), nested ones included."""
    found = list(settings_in(settings_class(verb)))
    if not under:
        return found
    chosen = [one for one in found if f"{one.path}.".startswith(f"{under}.")]
    if not chosen:
        raise SettingsError(
            f"`isthmus {verb}` has no setting {under!r}",
            f"isthmus list settings {verb} shows all; what a part takes, isthmus list parts NAME",
            choices(under, (one.path for one in found)),
        )
    return chosen


def settings_class(verb: str) -> type[Settings]:
    """The class that a verb's settings are checked by."""
    if verb not in VERBS:
        raise SettingsError(
            f"isthmus list settings: no command {verb!r} takes settings"
            if verb
            else "isthmus list settings: the settings of which command?",
            "isthmus list settings COMMAND",
            choices(verb, VERBS, limit=len(VERBS)),
        )
    return load_class(VERBS[verb])


def load_class(named: str) -> type[Settings]:
    """The class that `MODULE:NAME` stands for."""
    module, _, name = named.partition(":")
    found: type[Settings] = getattr(importlib.import_module(module), name)
    return found


def settings_in(
    model: type[BaseModel], under: str = "", given: BaseModel | None = None
) -> Iterator[Setting]:
    """The settings of a class, with the defaults of `given` where there is such an instance."""
    for name, field in model.model_fields.items():
        path = f"{under}{name}"
        if given is not None:
            default = getattr(given, name)
        else:
            default = ... if field.is_required() else field.get_default(call_default_factory=True)
        inner = inner_model(field)
        meaning = field.description or ((inner.__doc__ or "").partition("\n")[0] if inner else "")
        yield Setting(path, _written(default), allowed_values(field), meaning)
        if inner is not None:
            yield from settings_in(
                inner, f"{path}.", default if isinstance(default, BaseModel) else None
            )


def _written(default: Any) -> str:
    """A default as one would write it after `--set PATH=`."""
    if default is ...:
        return "required"
    if isinstance(default, BaseModel):
        return "as below"
    return default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
