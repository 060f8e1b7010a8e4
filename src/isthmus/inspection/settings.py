"""The settings of a verb: each with its path, default, values and meaning."""

from __future__ import annotations

import importlib

from isthmus.config import Settings
from isthmus.config.setting_list import Setting as Setting
from isthmus.config.setting_list import settings_in as settings_in
from isthmus.errors import SettingsError, choices

# By name, not by import: only the chosen verb is loaded.
VERBS = {
    "pretrain": "isthmus.pretraining.settings:PretrainSettings",
    "finetune": "isthmus.finetuning.settings:FinetuneSettings",
    "index": "isthmus.retrieval.verbs.index:IndexSettings",
    "add": "isthmus.retrieval.verbs.update:AddSettings",
    "delete": "isthmus.retrieval.verbs.update:DeleteSettings",
    "sync": "isthmus.retrieval.verbs.sync:SyncSettings",
    "search": "isthmus.retrieval.verbs.search:SearchSettings",
    "serve": "isthmus.serving.settings:ServeSettings",
    "tune": "isthmus.retrieval.verbs.tune:TuneSettings",
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
