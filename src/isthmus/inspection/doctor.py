"""Checks before hours are spent: versions, hardware, disk, and whatever the user names."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import combinations
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from isthmus.collections import Problems, open_collection, open_corpus
from isthmus.config.cache import cache_folder
from isthmus.errors import IsthmusError, visible
from isthmus.indexes.dense.hnsw import HNSW, HnswSettings, building_command, has_hnsw, read_about
from isthmus.indexes.integrity import StoredFile, changed, forget, parsing, read_files
from isthmus.indexes.manifest import HYBRID, MANIFEST, SEGMENTS, stated_manifest
from isthmus.indexes.verification import examine
from isthmus.inspection.text_lengths import read_by, read_in_index
from isthmus.progress import said_once, track
from isthmus.retrieval.hybrid_folder import is_hybrid, read_hybrid
from isthmus.text.truncation import CutTexts

Verdict = Literal["good", "note", "wrong"]
_LITTLE_DISK = 10 * 2**30
_COPY = (
    "copy it again from a whole copy of the folder, or build it again: isthmus index --overwrite"
)

_LEAVE_OUT = "leave such cases out where they are read: isthmus index --set problems=skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, what was found, and whether that will do."""

    subject: str
    verdict: Verdict
    detail: str
    fix: str = ""
    of_machine: bool = False  # and not of anything named


@said_once()
def doctor(
    index: str | None = None,
    *,
    corpus: str | None = None,
    collection: str | None = None,
    model: str | None = None,
) -> list[Finding]:
    """What was found; nothing is changed, and one failed check does not stop the others."""
    python = Finding("Python", "good", platform.python_version())
    machine = (python, *_packages(), _hardware(), _disk())
    findings = [replace(finding, of_machine=True) for finding in machine]
    named: list[tuple[str, str | None, Callable[[str], list[Finding]]]] = [
        ("corpus", corpus, _corpus),
        ("collection", collection, _collection),
        ("model", model, _model),
        ("index", index, _index),
    ]
    if model is not None:
        lengths = partial(_lengths, model=model)
        named += [("lengths of", spec, lengths) for spec in (corpus, collection)]
    for kind, spec, check in named:
        if spec is not None:
            try:
                findings += check(spec)
            except IsthmusError as error:
                findings.append(Finding(f"{kind} {spec}", "wrong", str(error)))
    return findings


def findings_table(findings: list[Finding]) -> Table:
    """The findings as a terminal table."""
    colours = {"good": "green", "note": "yellow", "wrong": "red"}
    table = Table("checked", "verdict", "found")
    for finding in findings:
        colour = colours[finding.verdict]
        verdict = Text(finding.verdict, style=colour)
        found = finding.detail + (f"\nfix: {finding.fix}" if finding.fix else "")
        subject, found = visible(finding.subject), visible(found)
        # Folded: of a path that is cut short, the file and the line are gone.
        table.add_row(Text(subject, overflow="fold"), verdict, Text(found, overflow="fold"))
    return table


def _packages() -> list[Finding]:
    """Every requirement of isthmus against what is installed; extras that are absent are notes."""
    findings = []
    for line in requires("isthmus") or ():
        requirement = Requirement(line)
        extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if requirement.marker is not None and not extra and not requirement.marker.evaluate():
            continue  # not for this machine
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            verdict: Verdict = "note" if extra else "wrong"
            detail = f"not installed; pip install '{requirement.name}{requirement.specifier}'"
            findings.append(Finding(requirement.name, verdict, detail))
            continue
        fits = requirement.specifier.contains(found.partition("+")[0], prereleases=True)
        wanted = f" (wanted: {requirement.specifier})" if not fits else ""
        findings.append(Finding(requirement.name, "good" if fits else "wrong", found + wanted))
    return findings


def _hardware() -> Finding:
    import torch

    from isthmus.nn.numerics import native_bf16

    bf16 = "bf16 is native" if native_bf16() else "no native bf16: training runs in float32"
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        detail = f"{count} x {card.name}, {card.total_memory / 2**30:.0f} GiB; {bf16}"
        return Finding("GPU", "good", detail)
    return Finding("GPU", "note", f"none; {os.cpu_count()} CPU cores; {bf16}")


def _disk() -> Finding:
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    verdict: Verdict = "good" if free > _LITTLE_DISK else "note"
    return Finding("disk", verdict, f"{free / 2**30:,.1f} GiB free for the cache in {folder}")


def _corpus(spec: str) -> list[Finding]:
    problems = Problems("skip")
    words = documents = untitled = 0
    for document in track(open_corpus(spec, problems).documents(), f"read {spec}"):
        documents += 1
        words += len(document.text.split())
        untitled += not document.title
    detail = f"{documents:,} documents, {words / max(documents, 1):,.0f} words on average"
    if untitled:
        detail += f", {untitled:,} without title"
    if not problems.counts:
        return [Finding(f"corpus {spec}", "good", detail)]
    detail += f"; with what is below, `isthmus index` refuses them\n{problems.summary()}"
    return [Finding(f"corpus {spec}", "wrong", detail, _to_do(problems))]


def _to_do(problems: Problems) -> str:
    fixes = dict.fromkeys(problems.fixes[kind] for kind in sorted(problems.counts))
    return f"{'; '.join(fixes)}; or {_LEAVE_OUT}"


def _collection(spec: str) -> list[Finding]:
    findings = _corpus(spec)
    # Problems of documents are among these findings already.
    known = {document.id for document in open_collection(spec, Problems("skip")).documents()}
    problems = Problems("skip")
    collection = open_collection(spec, problems)
    asked = {query.id for query in collection.queries()}
    judged_in: dict[str, Set[str]] = {}
    for split in collection.splits():
        judgements = collection.judgements(split)
        judged_in[split] = judgements.keys()
        missing = sum(d not in known for judged in judgements.values() for d in judged)
        without = sum(query not in asked for query in judgements)
        detail = f"{len(judgements):,} judged queries"
        if missing:
            detail += f"; {missing:,} judged documents are not in the corpus, or have no text"
        if without:
            detail += f"; {without:,} judged queries have no text"
        findings.append(
            Finding(
                f"{spec} {split}",
                "wrong" if missing or without else "good",
                detail,
                f"add them, or take their lines out of the judgements; or {_LEAVE_OUT}"
                if missing or without
                else "",
            )
        )
    if "train" not in collection.splits():
        findings.append(
            Finding(
                f"{spec} train",
                "note",
                f"there is no split 'train' to fine-tune on, only {', '.join(collection.splits())}"
                if collection.splits()
                else "there are no judgements to fine-tune on",
                "write qrels/train.tsv to fine-tune, of other queries than those you measure by",
            )
        )
    if problems.counts:
        findings.append(
            Finding(f"{spec} queries and judgements", "wrong", problems.summary(), _to_do(problems))
        )
    if shared := shared_queries(judged_in):
        fix = (
            "do not measure by a split that shares queries with the one that is trained on "
            "(--set split=NAME): its measures would be too high"
        )
        findings.append(Finding(f"{spec} splits", "note", "\n".join(shared), fix))
    return findings


def _model(name: str) -> list[Finding]:
    from isthmus.config.models import model_folder
    from isthmus.nn.architectures import MASKED_LM
    from isthmus.nn.backbone import Backbone
    from isthmus.text.tokenizer import Tokenizer

    folder = model_folder(name)
    backbone, tokenizer = Backbone.load(folder), Tokenizer.load(folder)
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    head = "a masked-LM head" if backbone.has_head else "no masked-LM head: pretrain adds one"
    if backbone.config.model_type not in MASKED_LM:
        head = "no masked-LM head: to be fine-tuned, not pre-trained"
    detail = (
        f"{backbone.config.model_type}, {parameters / 1e6:.1f} M parameters, width "
        f"{backbone.dimension}, {len(tokenizer):,} tokens, {head}"
    )
    findings = [Finding(f"model {name}", "good", detail), *_encoding(name)]
    if len(tokenizer) > len(backbone.word_embeddings):
        detail = f"{len(tokenizer):,} tokens, but {len(backbone.word_embeddings):,} embeddings"
        findings.append(Finding(f"tokenizer of {name}", "wrong", detail))
    return findings


def _encoding(name: str) -> list[Finding]:
    """How a model encodes texts, and what of that is assumed; nothing of one that gives scores."""
    from isthmus.encoders.model_settings import stored_settings

    try:
        settings, assumed = stored_settings(name)
    except IsthmusError as error:
        return [Finding(f"vectors of {name}", "note", error.what, error.fix)]
    detail = ", ".join(f"{key}={value!r}" for key, value in settings.model_dump().items())
    if not assumed:
        return [Finding(f"vectors of {name}", "good", detail)]
    fix = "where that is wrong, name others: isthmus index, encode, evaluate, adapt … --set "
    fix += "pooling=… --set similarity=…"
    return [Finding(f"vectors of {name}", "note", f"{detail}\n{assumed}", fix)]


def _index(folder: str) -> list[Finding]:
    place = Path(folder)
    if not is_hybrid(place):
        return _whole_index(place)
    try:
        hybrid = read_hybrid(place)
    except IsthmusError as error:
        return [Finding(str(place / HYBRID), "wrong", error.what, _COPY)]
    findings = [Finding(str(place / HYBRID), "good", f"whole, {len(hybrid.members)} indexes")]
    return findings + [one for each in hybrid.folders(place) for one in _whole_index(each)]


def _whole_index(folder: Path) -> list[Finding]:
    """The files of an index and, where none is damaged, how much of the texts its encoder read."""
    findings = _files(folder)
    if any(one.verdict == "wrong" for one in findings):
        return findings
    subject = f"texts of {folder}"
    try:
        found = read_in_index(folder)
    except IsthmusError as error:
        return [*findings, Finding(subject, "note", f"not counted: {error.what}", error.fix)]
    if found is None:
        return findings
    fix = "build it again by passages: isthmus index --set passages=true" if found.cut else ""
    return [*findings, _read(subject, found, fix)]


def _lengths(spec: str, model: str) -> list[Finding]:
    """How many documents the model reads whole."""
    corpus = open_corpus(spec, Problems("skip"))
    found = read_by(model, corpus.documents(), spec)
    fix = ""
    if found.cut and not corpus.in_passages:
        fix = "isthmus index --set passages=true searches long documents by passages"
    elif found.cut:
        fix = "none is needed: `isthmus index` searches the files of a folder by passages"
    return [_read(f"{spec} read by {model}", found, fix)]


def _read(subject: str, found: CutTexts, fix: str) -> Finding:
    return Finding(subject, "note" if found.cut else "good", found.summary(), fix)


def _files(folder: Path) -> list[Finding]:
    """Every file that an index consists of, each of its bytes read."""
    try:
        manifest = stated_manifest(folder)
    except IsthmusError as error:
        if (folder / MANIFEST).is_file():
            return [Finding(str(folder / MANIFEST), "wrong", error.what, _COPY)]
        fix = error.fix + (f" ({error.expected})" if error.expected else "")
        return [Finding(f"index {folder}", "wrong", error.what, fix)]
    findings = _compared(folder, manifest.files, _COPY)
    for segment in manifest.segments or ():
        findings += _files(folder / SEGMENTS / segment.name)
    if has_hnsw(folder):
        findings += _graph(folder)
    unit = "documents" if manifest.passages is None else "passages"
    detail = f"{manifest.kind}, {manifest.documents:,} {unit}"
    if all(one.verdict != "wrong" for one in findings):
        if manifest.segments is None:
            examine(folder, manifest)
        detail += ", every checksum holds"
    if manifest.encoder is not None and manifest.encoder.assumed:
        detail += f"\nits encoder is {manifest.encoder.assumed}"
    return [Finding(str(folder / MANIFEST), "good", detail), *findings]


def _graph(folder: Path) -> list[Finding]:
    fix = f"remove {str(folder / HNSW)!r}; {{}} builds it again"
    try:
        about = read_about(folder)
    except IsthmusError as error:
        command = building_command(folder, HnswSettings())
        return [Finding(str(folder / HNSW), "wrong", error.what, fix.format(command))]
    assert about is not None
    fix = fix.format(building_command(folder, about.settings))
    return _compared(folder / HNSW, {about.file: about.stored}, fix)


def _compared(folder: Path, files: Mapping[str, StoredFile], fix: str) -> list[Finding]:
    with parsing(folder, folder):
        found, _ = read_files(folder, [name for name in files if (folder / name).is_file()])
    if found != files:
        forget(folder, files)
    findings = []
    for name, stored in files.items():
        what = changed(stored, found[name]) if name in found else "it is missing"
        if found.get(name) == stored:
            findings.append(Finding(str(folder / name), "good", f"whole, {stored.bytes:,} bytes"))
        else:
            findings.append(Finding(str(folder / name), "wrong", f"damaged: {what}", fix))
    return findings


def shared_queries(splits: Mapping[str, Set[str]]) -> list[str]:
    """A sentence per split that is a union of others, and per other pair that shares queries."""
    found: list[str] = []
    explained: set[frozenset[str]] = set()
    for name, queries in splits.items():
        parts = [other for other, some in splits.items() if some and some < queries]
        if len(parts) > 1 and set[str]().union(*(splits[part] for part in parts)) == queries:
            found.append(f"{name} is the union of {', '.join(parts)}")
            explained |= {frozenset((name, part)) for part in parts}
    for one, other in combinations(splits, 2):
        if frozenset((one, other)) not in explained:
            found += _shared(one, splits[one], other, splits[other])
    return found


def _shared(one: str, some: Set[str], other: str, others: Set[str]) -> list[str]:
    both = len(some & others)
    if not both:
        return []
    if some == others:
        return [f"{one} and {other} have the same {both:,} queries"]
    for inner, outer, queries in ((one, other, some), (other, one, others)):
        if both == len(queries):
            return [f"all {both:,} queries of {inner} are in {outer} too"]
    return [f"{both:,} queries are in both {one} and {other}"]
