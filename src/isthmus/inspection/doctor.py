"""Checks before hours are spent: this machine, and documents, models and indexes that are named."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import combinations
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from isthmus.collections import Collection, Corpus, Problems, open_corpus
from isthmus.collections.formats import FORMATS
from isthmus.collections.formats.folder import Folder
from isthmus.config.cache import cache_folder
from isthmus.config.models import PACKAGE, model_folder, on_this_disk
from isthmus.config.output import SNAPSHOT
from isthmus.errors import InputError, IsthmusError, similar, visible
from isthmus.indexes.columns import types_of
from isthmus.indexes.documents import blocks
from isthmus.indexes.integrity import changed, forget, parsing, read_files
from isthmus.indexes.manifest import (
    MANIFEST,
    SEGMENTS,
    Bm25Field,
    DenseField,
    Manifest,
    SegmentAbout,
    index_folder,
    is_index,
    parts_of,
    read_manifest,
)
from isthmus.indexes.segment import Segment
from isthmus.indexes.segment_builder import PROGRESS
from isthmus.progress import said_once, track
from isthmus.retrieval.searcher import encoder_name
from isthmus.text.order import CutTexts

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
    return any((folder / name).exists() for name in (MANIFEST, SEGMENTS))


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
    from isthmus.encoders.layouts import layout_of
    from isthmus.encoders.model_settings import stored_settings

    try:
        settings, assumed = stored_settings(name)
    except IsthmusError as error:
        return Finding(f"vectors of {name}", True, error.what, error.fix)
    detail = ", ".join(f"{key}={value!r}" for key, value in settings.model_dump().items())
    if (layout := layout_of(model_folder(name))) is not None:
        detail = f"one for each token, as {layout} has them: {detail}"
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
    detail += "; an index holds passages of them, which it reads in full"
    if corpus.in_passages:  # then it is trained on these too
        return Finding(subject, True, detail)
    return Finding(subject, True, detail, "to train on passages too: --set passages=true")


def _index(folder: str) -> list[Finding]:
    """What an index holds, and every one of its files that is not as it was written."""
    place = index_folder(folder)
    try:
        manifest = read_manifest(place)
    except IsthmusError as error:
        return [_failed(str(place / MANIFEST if is_index(place) else place), error)]
    findings = [one for about in manifest.segments for one in _damaged(place, manifest, about)]
    segments = [Segment(place, about, manifest) for about in manifest.segments if not findings]
    for segment in segments:
        try:
            segment.check()  # also that numbers in the files lead nowhere else
        except IsthmusError as error:
            findings.append(_failed(str(segment.folder), error))
    if not findings:
        findings = [Finding(str(place), True, _contents(manifest, segments))]
        findings += [_field(place, manifest, name) for name in manifest.fields]
    return [*findings, *_encoders(place, manifest), *_unfinished(place)]


def _contents(manifest: Manifest, segments: Sequence[Segment]) -> str:
    """What an index holds, besides its fields."""
    found = f"{manifest.documents:,} documents"
    if dead := sum(about.dead for about in manifest.segments):
        found += f" and {dead:,} deleted ones"
    if manifest.passages is not None:
        passages = sum(about.passages or 0 for about in manifest.segments)
        found += f", {passages:,} passages of at most {manifest.passages.length:,} tokens"
    count = len(manifest.segments)
    found += f", in {count:,} segment{'s' * (count != 1)}; every checksum holds"
    if len(manifest.fields) > 1:
        weights = manifest.fusion.weights
        fused = ", ".join(f"{weights.get(name, 1.0):g} {name}" for name in manifest.fields)
        found += f"\nfused by {manifest.fusion.fusion}: {fused}"
    if types := types_of(segment.columns for segment in segments):
        found += f"\nmetadata: {', '.join(f'{name} ({type_})' for name, type_ in types.items())}"
    return found


def _field(folder: Path, manifest: Manifest, name: str) -> Finding:
    """What a field of an index is, of what, and how large."""
    about, segments = manifest.fields[name], manifest.segments
    rows = sum(segment.rows(about) for segment in segments)
    counts = [segment.fields[name] for segment in segments]
    size = sum(stored.bytes for one in segments for stored in one.files_of(name).values())
    found = f"{about.type}, {rows:,} rows, {size / 2**20:,.1f} MiB"
    if isinstance(about, Bm25Field):
        words = about.settings
        found += f", {words.language}, k1={words.k1:g}, b={words.b:g}"
        return Finding(str(folder / name), True, found)
    found += f", of {about.encoder.name}"
    if isinstance(about, DenseField):
        found += f": {about.dimension:,} numbers in {about.settings.dtype}"
        for depth in dict.fromkeys(depth for one in counts for depth in one.recall or ()):
            least = min(one.recall[depth] for one in counts if one.recall)
            found += f"; hnsw finds {least:.1%} of the {depth} nearest"
    else:
        postings = sum(one.layout.postings for one in counts if one.layout is not None)
        found += f": {postings / max(1, rows):.1f} terms in an average row"
    if about.encoder.assumed:
        found += f"\nits encoder is {about.encoder.assumed}"
    return Finding(str(folder / name), True, found)


def _encoders(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """The fields whose encoder is not where the index says, so that nobody can ask them."""
    for name, origin in manifest.encoders.items():
        try:
            encoder_name(folder, origin)
        except IsthmusError as error:
            yield _failed(str(folder / name), error)


def _unfinished(folder: Path) -> Iterator[Finding]:
    """What an interrupted command left."""
    for pattern in (f"*/{PROGRESS}", f"*/*/{PROGRESS}"):
        for record in sorted((folder / SEGMENTS).glob(pattern)):
            fix = "run the command again, and it resumes; any other change of the index removes it"
            what = "a command that adds documents or fields has not ended here"
            yield Finding(str(record.parent), True, what, fix)


def _damaged(index: Path, manifest: Manifest, about: SegmentAbout) -> list[Finding]:
    """The files of a segment that are missing or changed, after every byte of them was read."""
    folder, files = index / SEGMENTS / about.name, about.files
    with parsing(folder, index):
        found, _ = read_files(folder, [name for name in files if (folder / name).is_file()])
    if found != files:
        for part in parts_of(manifest):
            forget(folder / part, about.files_of(part))
    findings = []
    for name, stored in files.items():
        if found.get(name) != stored:
            what = changed(stored, found[name]) if name in found else "it is missing"
            findings.append(Finding(str(folder / name), False, f"damaged: {what}", _COPY))
    return findings
