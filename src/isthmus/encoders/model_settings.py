"""How a model is meant to encode, as far as its files, its name and the user tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from isthmus.config.model_files import read_model_json
from isthmus.config.models import model_folder
from isthmus.encoders.cross import CrossEncoder
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.encoder import SETTINGS_FILE, VectorSettings
from isthmus.encoders.families import Family, family_of
from isthmus.encoders.layouts import layout_of, layout_settings
from isthmus.encoders.modules import from_modules, modules, positions, prompts, stated_length
from isthmus.encoders.multi_vector import MultiVectorSettings
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, choices
from isthmus.progress import notice

AnySettings = DenseSettings | SparseSettings | MultiVectorSettings
_KINDS: dict[str, type[AnySettings]] = {
    "dense": DenseSettings,
    "sparse": SparseSettings,
    "tokens": MultiVectorSettings,
}
_KIND = {settings: kind for kind, settings in _KINDS.items()}


class Meant(NamedTuple):
    """How a model is meant to encode, and what of that is assumed ("": nothing)."""

    settings: AnySettings
    assumed: str


def stored_settings(name: str, chosen: Mapping[str, Any] | None = None) -> Meant:
    """How the model of this name encodes: as files beside it say, or else its family, or defaults.

    `chosen` values replace what is found; a notice says what is assumed.
    """
    chosen = dict(chosen or {})
    kind = chosen.pop("encoder", None)
    found = _found(name)
    if found is None and kind == "sparse":
        found = Meant(SparseSettings.parse({}, where=name), "")
    assumed = found.assumed if found is not None else _default(chosen)
    settings = DenseSettings() if found is None else found.settings
    if kind not in (None, own := _KIND[type(settings)]):
        raise InputError(
            f"encoder = {kind!r}, but {name!r} is {'multi-vector' if own == 'tokens' else own}",
            "leave encoder out; isthmus finetune trains another type from it",
        )
    if chosen:
        settings = settings.parse({**settings.model_dump(), **chosen}, where="--set")
    if assumed:
        notice(f"{name}: {assumed}")
    return Meant(settings, assumed)


def known_settings(name: str) -> AnySettings | None:
    """The settings that lie beside a model, or that its family is known for; None for others."""
    found = _found(name)
    return None if found is None else found.settings


def per_text(settings: AnySettings | None) -> DenseSettings | SparseSettings | None:
    """The settings of an encoder of one vector per text; None for one of a vector per token."""
    return None if isinstance(settings, MultiVectorSettings) else settings


def parsed(values: Mapping[str, Any], name: str, where: str) -> AnySettings:
    """The settings that an encoder described itself by, of the model of this name."""
    own = dict(values)
    kind = own.pop("kind", "dense")
    if kind == CrossEncoder.kind:
        raise InputError(
            f"{where}: {name!r} is a cross-encoder, which scores pairs and gives no vectors",
            "re-rank with it (isthmus search INDEX --rerank MODEL), distil it (teacher), or "
            "choose an encoder",
        )
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"{where}: there is no encoder type {kind!r}",
            "correct the file",
            choices(str(kind), _KINDS),
        )
    return _KINDS[kind].parse(own, where=where)


def _found(name: str) -> Meant | None:
    folder = model_folder(name)
    own = read_model_json(folder, SETTINGS_FILE, dict)
    if own is not None:
        return Meant(parsed(own, name, f"{folder}/{SETTINGS_FILE}"), "")
    layout = layout_of(folder)
    if layout is not None:
        return Meant(layout_settings(folder, layout), "")
    listed = modules(folder)
    config = read_model_json(folder, "config.json", dict) or {}
    if listed is None:
        known = family_of(name, folder, config)
        return None if known is None else _of_family(folder, *known)
    settings = from_modules(folder, listed)
    if stated := prompts(folder):
        return Meant(_with(settings, stated), "")
    # Not by what the model was made from: it may have been trained on without prompts.
    known = family_of(name, folder, {})
    if known is None or not known[0].prompts:
        return Meant(settings, "")
    settings = _with(settings, known[0].prompts)
    return Meant(settings, _assumed(settings, known[0], known[1], list(known[0].prompts)))


def _of_family(folder: str, family: Family, by: str) -> Meant:
    """What a plain model of a family is known for."""
    known = (stated_length(folder), positions(folder), family.max_length)
    length = min(one for one in known if one)
    lengths = {"query_max_length": length, "document_max_length": length}
    values = {**family.settings, **family.prompts, **lengths}
    settings = _KINDS[family.kind].parse(values, where=folder)
    return Meant(settings, _assumed(settings, family, by, [*family.settings, *family.prompts]))


def _with(settings: DenseSettings | SparseSettings, values: Mapping[str, Any]) -> Any:
    return settings.model_copy(update=dict(values))


def _assumed(settings: VectorSettings, family: Family, by: str, names: list[str]) -> str:
    shown = ", ".join(f"{name}={getattr(settings, name)!r}" for name in names)
    kind = "" if family.kind == "dense" else f"{family.kind}{', ' * bool(shown)}"
    # Those of a family with modules are complete only in sentence-transformers' layout.
    lost = (
        f", WITHOUT the {family.modules} layer of its published vectors, which is not in this "
        "folder: copy all of sentence-transformers' files"
    )
    return (
        f"taken for {family.title} by {by}: {kind}{shown} (the files beside it do not say so; "
        f"--set names others){lost if family.modules else ''}"
    )


def _default(chosen: Mapping[str, Any]) -> str:
    """What is taken for granted of a model of which nothing is known."""
    names = [name for name in ("pooling", "similarity") if name not in chosen]
    if not names:
        return ""
    settings = DenseSettings()
    values = " and ".join(str(getattr(settings, name)) for name in names)
    return (
        f"nothing beside the model says how to pool; using {values} "
        f"({' '.join(f'--set {name}=…' for name in names)} names others)"
    )
