"""Anserini's JsonVectorCollection, which Lucene searches by impact: whole numbers, exactly."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from isthmus.config.output import only_writer, read_snapshot, whole_folder
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.contents import Contents
from isthmus.indexes.engines import ENCODERS, read_encoders
from isthmus.indexes.engines._json_lines import term_weights, write_lines
from isthmus.records import Ranking

JAR = "ANSERINI_JAR"
_COLLECTION, _LUCENE = "collection", "lucene"


class Anserini:
    """A folder of documents as Anserini reads them, and the Lucene index made of it."""

    fields = ("sparse",)
    files = True

    def __init__(self, place: str, name: str) -> None:
        self.folder = Path(place)

    def fill(self, contents: Contents, approximate: bool) -> None:
        """Writes the collection."""
        _refuse_floats(contents)
        with whole_folder(self.folder / _COLLECTION) as folder:
            write_lines(folder, "jsonl", _lines(contents))

    def following(self) -> str:
        """The command that makes a Lucene index of the collection."""
        command = _indexing(self.folder / _COLLECTION, self.folder / _LUCENE)
        return f"java -cp ${JAR} {shlex.join(command)}"

    def encoders(self) -> Mapping[str, str]:
        """The fingerprint of the encoder that weighed the terms."""
        return read_encoders(read_snapshot(self.folder)["identity"].get(ENCODERS), str(self.folder))

    def search(
        self, field: str, vectors: Any, depth: int, query_ids: Sequence[str]
    ) -> list[Ranking]:
        """The answers of Lucene, whose index is made at the first search."""
        assert field == "sparse"
        if not (self.folder / _LUCENE).is_dir():
            with only_writer(self.folder), whole_folder(self.folder / _LUCENE) as folder:
                _java(_indexing(self.folder / _COLLECTION, folder))
        found: list[dict[str, float]] = [{} for _ in query_ids]
        with TemporaryDirectory() as place:
            topics, run = Path(place) / "topics.tsv", Path(place) / "run.txt"
            with topics.open("w", encoding="utf-8") as stream:
                for number, weights in enumerate(term_weights(vectors)):
                    # A weight is said by repeating the term; ids may hold anything, numbers do not.
                    terms = " ".join(" ".join([str(t)] * int(w)) for t, w in weights.items())
                    if terms:
                        stream.write(f"{number}\t{terms}\n")
            if topics.stat().st_size:
                _java(_searching(self.folder / _LUCENE, topics, run, depth))
                for line in run.read_text(encoding="utf-8").splitlines():
                    topic, _, rest = line.split(" ", 2)
                    document_id, _, score, _ = rest.rsplit(" ", 3)
                    found[int(topic)][document_id] = float(score)
        return [Ranking.sorted(q, scores) for q, scores in zip(query_ids, found, strict=True)]


def _lines(contents: Contents) -> Iterator[str]:
    for batch in contents.batches():
        weights = term_weights(batch.vectors["sparse"])
        for document, vector in zip(batch.documents, weights, strict=True):
            record = {"id": document.id, "contents": document.contents(), "vector": vector}
            yield json.dumps(record, ensure_ascii=False)


def _indexing(collection: Path, lucene: Path) -> list[str]:
    return [
        "io.anserini.index.IndexCollection", "-collection", "JsonVectorCollection",
        "-generator", "DefaultLuceneDocumentGenerator", "-impact", "-pretokenized",
        "-threads", "4", "-input", str(collection), "-index", str(lucene),
    ]  # fmt: skip


def _searching(lucene: Path, topics: Path, run: Path, depth: int) -> list[str]:
    return [
        "io.anserini.search.SearchCollection", "-impact", "-pretokenized",
        "-topicReader", "TsvString", "-topics", str(topics),
        "-index", str(lucene), "-output", str(run), "-hits", str(depth),
    ]  # fmt: skip


def _java(arguments: Sequence[str]) -> None:
    java, jar = shutil.which("java"), os.environ.get(JAR, "")
    if java is None or not Path(jar).is_file():
        raise InputError(
            f"Anserini cannot run: {'java is not installed' if java is None else f'{JAR}={jar!r}'}",
            where="the search of Lucene",
            allowed="Java 11 or newer, and a jar of Anserini with all it needs",
            remedy=f"export {JAR}=…/anserini-VERSION-fatjar.jar",
        )
    ended = subprocess.run([java, "-cp", jar, *arguments], capture_output=True, text=True, check=False)  # noqa: S603, E501 # fmt: skip
    if ended.returncode:
        last = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise InputError(
            f"Anserini ended with {ended.returncode}: {''.join(last)}",
            where=f"java -cp {jar} {' '.join(arguments)}",
            allowed="a jar of Anserini (0.25 is known to work)",
            remedy="run the command by itself to see all that it says",
        )


def _refuse_floats(contents: Contents) -> None:
    settings = contents.manifests["sparse"].inverted
    assert settings is not None
    if settings.weights != "integer":
        raise MismatchError(
            f"the weights of the index are of kind {settings.weights!r}",
            where="inverted.weights",
            allowed="integer: Lucene counts how often a term occurs",
            remedy="build the index without --set inverted.weights=float",
        )
