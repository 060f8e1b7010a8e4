"""Checks before hours are spent: this machine, and documents, models and indexes that are named."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import combinations
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from isthmus.collections import Collection, Corpus, Problems, open_corpus
from isthmus.collections.formats.folder import Folder
from isthmus.collections.spec import FORMATS
from isthmus.config.cache import cache_folder
from isthmus.config.models import PACKAGE, model_folder, on_this_disk
from isthmus.config.output import SNAPSHOT
from isthmus.errors import InputError, IsthmusError, similar, visible
from isthmus.indexes.dense.hnsw import HNSW, HnswSettings, building_command, has_hnsw, read_about
from isthmus.indexes.documents import DOCUMENTS, blocks
from isthmus.indexes.integrity import StoredFile, changed, forget, parsing, read_files
from isthmus.indexes.manifest import HYBRID, MANIFEST, SEGMENTS, stated_manifest
from isthmus.indexes.verification import examine
from isthmus.progress import said_once, track
from isthmus.retrieval.hybrid_folder import is_hybrid, read_hybrid
from isthmus.text.truncation import CutTexts

_LITTLE_DISK = 10 * 2**30
_AT_ONCE = 256  # texts that are tokenised together
_COPY = "copy it again from an intact copy, or build it again: isthmus index --overwrite"
_SKIP = "skip such cases when the documents are read: isthmus index --set problems=skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: whether it will do, what was found, and what to do about it."""

    subject: str
    ok: bool
    detail: str
    fix: str = ""


class Findings(list[Finding]):
    """What was found, in the order of the checks: a list that shows itself."""

    @property
    def exit_code(self) -> int:
        """1 if anything is wrong."""
        return int(not all(one.ok for one in self))

    def to_json(self) -> str:
        """Everything, as a text."""
        return json.dumps(list(map(asdict, self)), ensure_ascii=False, indent=2)

    def __rich__(self) -> Table:
        """A line for each, where no path is cut short."""
        table = Table.grid(padding=(0, 1))
        for one in self:
            verdict, colour = ("note", "yellow") if one.fix else ("ok", "green")
            if not one.ok:
                verdict, colour = "wrong", "red"
            found = f"{one.subject}: {one.detail}" + (f"\nfix: {one.fix}" if one.fix else "")
            table.add_row(Text(verdict, style=colour), Text(visible(found), overflow="fold"))
        return table


@said_once()
def doctor(things: str | Path | Iterable[str | Path] = ()) -> Findings:
    """What was found; nothing is changed, and one failed check does not stop the others."""
    findings = Findings([*_packages(), _hardware(), _disk()])
    found: dict[str, list[str]] = {"index": [], "model": [], "documents": []}
    checks = {"index": _index, "model": _model, "documents": _documents}
    for thing in map(str, [things] if isinstance(things, str | Path) else things):
        try:
            kind = _recognised(thing)
            findings += checks[kind](thing)
            found[kind].append(thing)
        except IsthmusError as error:
            findings.append(_failed(thing, error))
    for model in found["model"]:
        for spec in found["documents"]:
            try:
                findings.append(_read_by(model, spec))
            except IsthmusError as error:
                findings.append(_failed(f"{spec} read by {model}", error))
    return findings


def _recognised(thing: str) -> Literal["index", "model", "documents"]:
    """What a thing that is named is."""
    folder, scheme = Path(thing), thing.partition(":")[0]
    if _is_index(folder):
        return "index"
    models = ("config.json", "modules.json", SNAPSHOT)
    if thing.startswith(PACKAGE) or any((folder / name).is_file() for name in models):
        return "model"
    if folder.exists() or (scheme != thing and scheme in FORMATS.names()):
        return "documents"
    if on_this_disk(thing) is None and (alike := similar(folder)):
        raise InputError(f"there is no file, folder or model {thing!r}", "check the path", alike)
    return "model"


def _is_index(folder: Path) -> bool:
    """Whether a folder is an index, or what is left of one."""
    return any((folder / name).exists() for name in (MANIFEST, HYBRID, SEGMENTS, DOCUMENTS))


def _failed(subject: str, error: IsthmusError) -> Finding:
    expected = f" ({error.expected})" if error.expected else ""
    return Finding(subject, False, error.what, error.fix + expected)


def _packages() -> list[Finding]:
    """Python, every package that is not as required, and the extras that are not installed."""
    wrong: list[Finding] = []
    absent: dict[str, list[str]] = defaultdict(list)
    for line in requires("isthmus") or ():
        wanted = Requirement(line)
        (extra,) = re.findall(r'extra == "(.+?)"', str(wanted.marker)) or [""]
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue  # not for this machine
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            if extra:
                absent[extra].append(wanted.name)
                continue
            found = "no version"
        if not wanted.specifier.contains(found.partition("+")[0], prereleases=True):
            fix = f"pip install '{wanted.name}{wanted.specifier}'"
            wrong.append(Finding(wanted.name, False, f"{found} is installed", fix))
    own = (f"{name} {version(name)}" for name in ("isthmus", "torch", "transformers"))
    findings = [Finding("Python", True, ", ".join([platform.python_version(), *own])), *wrong]
    if absent:
        detail = "; ".join(f"{', '.join(some)} ({extra})" for extra, some in absent.items())
        fix = f"to use them: pip install 'isthmus[{','.join(absent)}]'"
        findings.append(Finding("optional packages", True, f"not installed: {detail}", fix))
    return findings


def _hardware() -> Finding:
    import torch

    from isthmus.nn.numerics import native_bf16

    bf16 = "bf16 is native" if native_bf16() else "no native bf16: training runs in float32"
    if not torch.cuda.is_available():
        return Finding("GPU", True, f"none; {os.cpu_count()} CPU cores; {bf16}")
    card = torch.cuda.get_device_properties(0)
    detail = f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / 2**30:.0f} GiB"
    return Finding("GPU", True, f"{detail}; {bf16}")


def _disk() -> Finding:
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    fix = "" if free > _LITTLE_DISK else "free some space, or set ISTHMUS_CACHE to another disk"
    return Finding("disk", True, f"{free / 2**30:,.1f} GiB free for the cache in {folder}", fix)


def _documents(spec: str) -> list[Finding]:
    """Documents that are read through, and the queries and qrels that come with them."""
    problems = Problems("skip")
    corpus = open_corpus(spec, problems)
    judged = isinstance(corpus, Collection) and bool(corpus.splits())
    ids: set[str] = set()
    words = count = untitled = 0
    for document in track(corpus.documents(), f"read {spec}"):
        count += 1
        words += len(document.text.split())
        untitled += not document.title
        if judged:
            ids.add(document.id)
    detail = f"{count:,} documents, {words / max(count, 1):,.0f} words on average"
    if untitled:
        detail += f", {untitled:,} without title"
    if not count:
        findings = [Finding(spec, False, "there are no documents in it", "check the path")]
    else:
        findings = [_sound(spec, detail, problems, left_out=isinstance(corpus, Folder))]
    return findings + (_judged(spec, ids) if judged else [])


def _sound(subject: str, detail: str, problems: Problems, left_out: bool = False) -> Finding:
    """What was read; wrong where problems were met that `isthmus index` refuses.

    Files of a folder it leaves out instead: `left_out`.
    """
    if not problems.counts:
        return Finding(subject, True, detail)
    fixes = dict.fromkeys(problems.fixes[kind] for kind in sorted(problems.counts))
    fix, detail = "; ".join(fixes), f"{detail}\n{problems.summary()}"
    return Finding(subject, left_out, detail, fix if left_out else f"{fix}; or {_SKIP}")


def _judged(spec: str, ids: Set[str]) -> list[Finding]:
    """The queries and qrels of a collection whose documents have these ids."""
    problems = Problems("skip")
    collection = open_corpus(spec, problems)
    assert isinstance(collection, Collection)
    asked = {query.id for query in collection.queries()}
    findings = []
    splits: dict[str, Set[str]] = {}
    for split in collection.splits():
        qrels = collection.judgements(split)
        splits[split] = qrels.keys()
        missing = sum(document not in ids for judged in qrels.values() for document in judged)
        without = sum(query not in asked for query in qrels)
        detail = f"{len(qrels):,} judged queries"
        if missing:
            detail += f"; {missing:,} judged documents are not in the corpus, or have no text"
        if without:
            detail += f"; {without:,} judged queries have no text"
        fix = f"add them, or take their lines out of the qrels; or {_SKIP}"
        wrong = bool(missing or without)
        findings.append(Finding(f"{spec} {split}", not wrong, detail, fix if wrong else ""))
    if problems.counts:
        findings.append(_sound(f"{spec} queries and qrels", f"{len(asked):,} queries", problems))
    if shared := list(_shared(splits)):
        fix = (
            "do not train on one and measure on the other (--set split=NAME): the measures would "
            "be too high"
        )
        findings.append(Finding(f"{spec} splits", True, "\n".join(shared), fix))
    return findings


def _shared(splits: Mapping[str, Set[str]]) -> Iterator[str]:
    """A sentence for each pair of splits that have queries in common."""
    for one, other in combinations(splits, 2):
        if both := len(splits[one] & splits[other]):
            yield f"{both:,} queries are in both {one} and {other}"


def _model(name: str) -> list[Finding]:
    from isthmus.nn.architectures import MASKED_LM
    from isthmus.nn.backbone import Backbone
    from isthmus.text.tokenizer import Tokenizer

    folder = model_folder(name, "MODEL")
    backbone, tokenizer = Backbone.load(folder), Tokenizer.load(folder)
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    head = "a masked-LM head" if backbone.has_head else "no masked-LM head: pretrain adds one"
    if backbone.config.model_type not in MASKED_LM:
        head = "no masked-LM head: to be fine-tuned, not pre-trained"
    detail = (
        f"{backbone.config.model_type}, {parameters / 1e6:.1f} M parameters, width "
        f"{backbone.dimension}, {len(tokenizer):,} tokens, {head}"
    )
    findings = [Finding(name, True, detail), _encoding(name)]
    if len(tokenizer) > (rows := len(backbone.word_embeddings)):
        detail = f"{len(tokenizer):,} tokens, but {rows:,} embeddings"
        fix = "save the tokenizer and the model again, from the same training"
        findings.append(Finding(f"tokenizer of {name}", False, detail, fix))
    inside = Path(name, "index")  # of the output of adapt
    return findings + (_index(str(inside)) if _is_index(inside) else [])


def _encoding(name: str) -> Finding:
    """How a model encodes texts, and what of that is assumed; nothing of one that gives scores."""
    from isthmus.encoders.model_settings import stored_settings

    try:
        settings, assumed = stored_settings(name)
    except IsthmusError as error:
        return Finding(f"vectors of {name}", True, error.what, error.fix)
    detail = ", ".join(f"{key}={value!r}" for key, value in settings.model_dump().items())
    if not assumed:
        return Finding(f"vectors of {name}", True, detail)
    fix = "if that is wrong, set it where you use the model: --set pooling=… --set similarity=…"
    return Finding(f"vectors of {name}", True, f"{detail}\n{assumed}", fix)


def _read_by(model: str, spec: str) -> Finding:
    """How many documents a model reads to their end."""
    from isthmus.encoders.model_settings import stored_settings
    from isthmus.text.tokenizer import Tokenizer

    corpus: Corpus = open_corpus(spec, Problems("skip"))
    settings, tokenizer = stored_settings(model).settings, Tokenizer.load(model_folder(model))
    found = CutTexts(settings.room(tokenizer))
    for block in blocks(track(corpus.documents(), f"tokenise {spec}"), _AT_ONCE):
        texts = [document.contents(settings.titles) for document in block]
        found.count(len(encoding) for encoding in tokenizer.split(texts))
    subject, detail = f"{spec} read by {model}", found.summary()
    if not found.cut:
        return Finding(subject, True, detail)
    if corpus.in_passages:
        return Finding(subject, True, f"{detail}, but an index of a folder holds passages")
    fix = "isthmus index --set passages=true searches long documents by passages"
    return Finding(subject, True, detail, fix)


def _index(folder: str) -> list[Finding]:
    """Every byte of an index, or of the indexes that a folder holds."""
    place = Path(folder)
    if not is_hybrid(place):
        return _files(place)
    try:
        hybrid = read_hybrid(place)
    except IsthmusError as error:
        return [Finding(str(place / HYBRID), False, error.what, _COPY)]
    findings = [Finding(folder, True, f"{len(hybrid.members)} indexes")]
    return findings + [one for each in hybrid.folders(place) for one in _files(each)]


def _files(folder: Path) -> list[Finding]:
    """The index, and each of its files that is not as it was written."""
    try:
        manifest = stated_manifest(folder)
    except IsthmusError as error:
        if (folder / MANIFEST).is_file():
            return [Finding(str(folder / MANIFEST), False, error.what, _COPY)]
        return [_failed(str(folder), error)]
    wrong = _damaged(folder, manifest.files, _COPY)
    for segment in manifest.segments or ():
        wrong += [one for one in _files(folder / SEGMENTS / segment.name) if not one.ok]
    if has_hnsw(folder):
        wrong += _graph(folder)
    if wrong:
        return wrong
    if manifest.segments is None:
        examine(folder, manifest)
    unit = "documents" if manifest.passages is None else "passages"
    detail = f"{manifest.kind}, {manifest.documents:,} {unit}, every checksum holds"
    if manifest.encoder is not None and manifest.encoder.assumed:
        detail += f"\nits encoder is {manifest.encoder.assumed}"
    return [Finding(str(folder), True, detail)]


def _graph(folder: Path) -> list[Finding]:
    fix = f"remove {str(folder / HNSW)!r}; {{}} builds it again"
    try:
        about = read_about(folder)
    except IsthmusError as error:
        command = building_command(folder, HnswSettings())
        return [Finding(str(folder / HNSW), False, error.what, fix.format(command))]
    assert about is not None
    fix = fix.format(building_command(folder, about.settings))
    return _damaged(folder / HNSW, {about.file: about.stored}, fix)


def _damaged(folder: Path, files: Mapping[str, StoredFile], fix: str) -> list[Finding]:
    """The files that are missing or changed, after every byte of them was read."""
    with parsing(folder, folder):
        found, _ = read_files(folder, [name for name in files if (folder / name).is_file()])
    if found != files:
        forget(folder, files)
    findings = []
    for name, stored in files.items():
        if found.get(name) != stored:
            what = changed(stored, found[name]) if name in found else "it is missing"
            findings.append(Finding(str(folder / name), False, f"damaged: {what}", fix))
    return findings
