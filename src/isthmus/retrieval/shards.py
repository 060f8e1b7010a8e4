"""An index built by many machines: each fills segments of it with stretches of the documents."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cluster import Cluster, Task
from isthmus.config.encoding import Backend
from isthmus.config.output import write_json, writing
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import SEGMENTS, Manifest, SegmentAbout
from isthmus.indexes.segment import Segment
from isthmus.indexes.segment_builder import SegmentBuilder
from isthmus.indexes.writer import IndexWriter
from isthmus.progress import Bar, notice
from isthmus.records import Document
from isthmus.retrieval.passage_cutter import cutter_of, rows
from isthmus.text.order import CutTexts

if TYPE_CHECKING:
    from isthmus.retrieval.index import Filling, IndexSettings

_ABOUT = "progress.json"  # in a segment that is complete: what vouches for it


def fill_shards(
    cluster: Cluster,
    writer: IndexWriter,
    documents: Iterable[Document],
    fillings: Sequence[Filling],
    settings: IndexSettings,
    job: str,
) -> None:
    """Has the machines of a cluster fill the segments of an index that is to be committed.

    Segments of earlier work of the same job are taken as they are. Encoders are those that the
    manifest names.
    """
    # Whole blocks, so that batches are those of one machine: how a product of matrices is rounded
    # can depend on them.
    size = -(-cluster.settings.shard_documents // settings.block_size) * settings.block_size
    manifest, place = writer.manifest, writer.folder / SEGMENTS
    place.mkdir(parents=True, exist_ok=True)
    known: dict[str, SegmentAbout] = {}
    names: list[str] = []

    def tasks() -> Iterator[Task[tuple[SegmentAbout, list[CutTexts]]]]:
        first = int(writer.first_name())
        for number, shard in enumerate(blocks(documents, size), start=first):
            names.append(name := f"{number:06}")
            if (about := _complete(writer.folder, name, manifest, f"{job} {size}")) is not None:
                known[name] = about
            else:
                yield _build, (writer.folder, name, shard, manifest, f"{job} {size}", settings)

    made: dict[str, SegmentAbout] = {}
    cut = [CutTexts(0) for _ in fillings]
    with Bar(f"indexing {manifest.corpus.spec}", None, "documents") as bar:
        for about, parts in cluster.map(tasks(), place, on_gpus=bool(fillings)):
            made[about.name] = about
            bar.advance(about.documents)
            for total, part in zip(cut, parts, strict=True):
                total.add(part)
    if known:
        found = sum(about.documents for about in known.values())
        notice(f"{found:,} documents were indexed already")
    for name in names:
        writer.take(made.get(name) or known[name])
    for total in cut:
        notice(total.summary())


def _build(
    index: Path,
    name: str,
    documents: list[Document],
    manifest: Manifest,
    job: str,
    settings: IndexSettings,
) -> tuple[SegmentAbout, list[CutTexts]]:
    """Makes one segment and moves it to its place; what vouches for it, and what was cut."""
    # Under a name of its own: a machine that was given up for dead may still be at work on it.
    from isthmus.retrieval.index import Filling

    attempt = index / SEGMENTS / f".{name}-{secrets.token_hex(4)}"
    loaded: dict[str, Any] = {}
    fields: dict[str, list[str]] = {}
    for field, origin in manifest.encoders.items():
        key = f"{origin.fingerprint} {origin.backend}"
        loaded[key] = _load_once(origin.name, origin.backend, json.dumps(origin.settings))
        fields.setdefault(key, []).append(field)
        if loaded[key].fingerprint != origin.fingerprint:
            raise MismatchError(
                f"a machine of the cluster has another encoder at {origin.name} "
                f"({loaded[key].fingerprint}, not {origin.fingerprint})",
                "put the encoder on storage that all machines share",
            )
    cutter = cutter_of(manifest, index, list(loaded.values()))
    builder = SegmentBuilder(index, name, manifest, "", settings.memory, attempt)
    try:
        with writing(index):
            fillings = [
                Filling.of(one, fields[key], manifest.fields) for key, one in loaded.items()
            ]
            for filling in fillings:
                filling.encoder.cut_texts.restart()
            for block in blocks(documents, settings.block_size):
                read = list(rows(cutter, block))
                vectors: dict[str, Any] = {}
                for one in fillings:
                    vectors |= dict.fromkeys(one.fields, one.encoder.encode_documents(read))
                builder.add(block, read, vectors)
            about = builder.finish()
            write_json(
                attempt / _ABOUT, sealed({"job": job, "about": about.model_dump(mode="json")})
            )
            _move(attempt, index / SEGMENTS / name)
    finally:
        builder.close()
        shutil.rmtree(attempt, ignore_errors=True)
    return about, [filling.encoder.cut_texts for filling in fillings]


def _move(attempt: Path, place: Path) -> None:
    try:
        attempt.rename(place)
    except OSError:
        if not place.exists():  # else another attempt came first, with the same
            raise


def _complete(index: Path, name: str, manifest: Manifest, job: str) -> SegmentAbout | None:
    """What vouches for a segment that earlier work of this job completed; None if there is none."""
    folder = index / SEGMENTS / name
    if not folder.exists():
        return None
    try:
        found = read_mapping(folder / _ABOUT)
        if found.get("job") == job:
            about = SegmentAbout.parse(found["about"], where="")
            Segment(index, about, manifest).check()
            return about
    except (UnreadableError, InputError, SettingsError, KeyError):
        pass
    shutil.rmtree(folder)
    return None


@lru_cache(maxsize=2)
def _load_once(model: str, backend: Backend, settings: str) -> Any:
    """The encoder, kept by the process for its next shard; its settings as JSON."""
    from isthmus.encoders import load_indexed_encoder

    return load_indexed_encoder(model, json.loads(settings), backend)
