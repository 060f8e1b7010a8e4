"""What is tortured: a tiny collection, tiny encoders, an index of every kind, a job per verb."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.torture.children import Child, Ended

WORDS = [a + b for a in ("ba", "do", "ke", "li", "mu", "na") for b in ("po", "ri", "su", "te")]
TINY = (
    "training.max_steps=4", "training.save_steps=2", "training.per_device_train_batch_size=4",
    "training.gradient_accumulation_steps=1", "training.logging_steps=1", "training.report_to=[]",
    "training.bf16=false",
)  # fmt: skip


@dataclass
class Outcome:
    """What a case came to: how much was tried, and what was found."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One thing to try; its name says it again."""

    name: str
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Job:
    """A command that writes OUTPUT, which starts as a copy of an index where one is named."""

    words: str
    start: str | None = None
    slow: bool = False

    @property
    def verb(self) -> str:
        return self.words.split()[0]


INDEXES: dict[str, str] = {
    "dense": "index CORPUS --model MODEL --output OUTPUT",
    "float16": "index CORPUS --model MODEL --output OUTPUT --set dtype=float16",
    "inverted": "index CORPUS --model SPARSE --output OUTPUT",
    "bm25": "index CORPUS --output OUTPUT",
    "hnsw": "index CORPUS --model MODEL --output OUTPUT --set hnsw=true",
    "passages": "index CORPUS --model MODEL --output OUTPUT --set passages.length=16",
}
INDEXES["together"] = "index CORPUS --model bm25 --model MODEL --output OUTPUT"
CHANGING = ("dense", "inverted", "bm25", "together", "passages")
"""Kinds of indexes that documents are added to."""

JOBS: dict[str, Job] = {
    **{f"index {kind}": Job(words) for kind, words in INDEXES.items() if kind != "float16"},
    **{
        f"add {kind}": Job("add OUTPUT MORE --set block_size=3", kind)
        for kind in CHANGING
    },
    **{
        f"delete {kind}": Job("delete OUTPUT d1 d2 d33 --set problems=skip", kind)
        for kind in CHANGING
    },
    **{
        f"compact {kind}": Job("sync OUTPUT OTHER --compact", f"{kind} grown")
        for kind in CHANGING
    },
    **{f"sync {kind}": Job("sync OUTPUT OTHER --set block_size=3", kind) for kind in CHANGING},
    "tune": Job("tune OUTPUT DATA --split train --set steps=4 --set folds=2", "together"),
    "evaluate": Job("evaluate QRELS RUN --measures RR@10 --output OUTPUT"),
    "probe": Job("research probe MODEL --documents CORPUS -o OUTPUT --set measure=[masked_lm]"),
    "inspect": Job("research inspect MODEL river --coverage CORPUS -o OUTPUT --set k=[5]"),
    "search": Job("search BM25 --queries QUERIES --output OUTPUT"),
    "pretrain": Job("pretrain CORPUS --model MODEL --output OUTPUT TINY", slow=True),
    "finetune": Job("finetune DATA --model MODEL --output OUTPUT TINY", slow=True),
}  # fmt: skip


class Scene:
    """A folder of data, models and indexes, and a place in it where jobs are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / "place"
        self.output = self.place / "output"
        self.data = folder / "data"
        self.place.mkdir(parents=True)
        self._write_collection()
        made = Child(self._make_models, self.place).end()
        assert made.code == 0, made.err
        self.clear(Job(""))

    def _write_collection(self) -> None:
        generator = random.Random(0)
        (self.data / "qrels").mkdir(parents=True)
        texts = [" ".join(generator.choices(WORDS, k=20)) for _ in range(45)]
        documents = [
            json.dumps({"_id": f"d{number}", "title": WORDS[number % 24], "text": text})
            for number, text in enumerate(texts)
        ]
        queries = [
            json.dumps({"_id": f"q{number}", "text": " ".join(text.split()[:4])})
            for number, text in enumerate(texts[:12])
        ]
        judged = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(12))]
        more = [line.replace("Mba", "ba") for line in documents[36:]]  # four are there already
        for name, lines in {
            "corpus.jsonl": documents[:40], "queries.jsonl": queries, "more.jsonl": more,
            "other.jsonl": documents[5:30], "qrels/train.tsv": judged,
        }.items():  # fmt: skip
            (self.data / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _make_models(self) -> None:
        from isthmus.pretraining.pretrain import start_from_nothing

        texts = [json.loads(line)["text"] for line in (self.data / "corpus.jsonl").open()]
        for name in ("model", "sparse"):
            folder = start_from_nothing(lambda: texts, "tiny", 300, self.folder / name, seed=1)
            kind = {"model": "dense", "sparse": "sparse"}[name]
            (folder / "encoder.json").write_text(json.dumps({"kind": kind}))

    def words(self, command: str, output: Path | None = None) -> list[str]:
        """A command with its places filled in."""
        places = {
            "CORPUS": self.data / "corpus.jsonl", "MORE": self.data / "more.jsonl",
            "OTHER": self.data / "other.jsonl", "DATA": self.data,
            "QUERIES": self.data / "queries.jsonl", "QRELS": self.data / "qrels" / "train.tsv",
            "MODEL": self.folder / "model", "SPARSE": self.folder / "sparse",
            "OUTPUT": output or self.output,
        }  # fmt: skip
        lazy = {"DENSE": "dense", "BM25": "bm25"}
        found: list[str] = []
        for word in command.split():
            if word == "TINY":
                found += [part for setting in TINY for part in ("--set", setting)]
            elif word in lazy:
                found.append(str(self.index(lazy[word])))
            elif word == "RUN":
                found.append(str(self.run_file))
            else:
                found.append(str(places.get(word, word)))
        return found

    @cache  # noqa: B019 (one scene a process)
    def index(self, name: str) -> Path:
        """A whole index of a kind, or one that has "grown" into segments, made when asked for."""
        folder = self.folder / "indexes" / name.replace(" ", "-")
        kind, _, grown = name.partition(" ")
        if not grown:
            self._made(INDEXES[kind], folder)
            if kind == "inverted":
                self._compile(folder)
        else:
            shutil.copytree(self.index(kind), folder)
            self._made("add OUTPUT MORE", folder)
            self._made("delete OUTPUT d0 d7 d41", folder)
        return folder

    def _compile(self, folder: Path) -> None:
        """Has this process read the kernels' machine code, which every child would else do."""
        from isthmus.indexes.kinds import builder_for
        from isthmus.indexes.manifest import Description
        from isthmus.indexes.verification import read_manifest
        from isthmus.records import Document

        known = read_manifest(folder).model_dump(include=set(Description.model_fields))
        documents = [Document(str(number), "") for number in range(8)]
        with builder_for(self.folder / "compiled", Description(**known)) as builder:
            builder.add(documents, self.questions["inverted"])
            builder.finish({})
        answers(folder, self.questions)

    @cached_property
    def run_file(self) -> Path:
        """A run of the judged queries."""
        return self._made(JOBS["search"].words, self.folder / "bm25.trec")

    @cached_property
    def questions(self) -> dict[str, Any]:
        """What indexes of each kind are asked: vectors, or texts."""

        def encoded() -> dict[str, Any]:
            from isthmus.encoders import load_encoder

            texts = [" ".join(WORDS[n : n + 3]) for n in range(0, 24, 3)]
            vectors = {
                kind: load_encoder(str(self.folder / name), exact=True).encode_queries(texts)
                for kind, name in (("dense", "model"), ("inverted", "sparse"))
            }
            return {**vectors, "bm25": texts}

        made = Child(encoded, self.place).end()
        assert made.value is not None, made.err
        questions: dict[str, Any] = made.value
        return questions

    def _made(self, command: str, output: Path) -> Path:
        ended = Child(self.words(command, output), self.place).end()
        if ended.code:
            raise RuntimeError(f"{command}: {ended.err}")
        return output

    def clear(self, job: Job) -> None:
        """Empties the place, but for what the job starts from."""
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "cache").mkdir(parents=True)
        if job.start is not None:
            shutil.copytree(self.index(job.start), self.output)

    def start(self, job: Job, **harm: Any) -> Child:
        """A child that does the job in the place as it is."""
        return Child(self.words(job.words), self.place, **harm)

    @cache  # noqa: B019
    def reference(self, name: str) -> Reference:
        """What a job makes where nothing harms it, and in how many steps."""
        job = JOBS[name]
        self.clear(job)
        before, started = self.state(), time.monotonic()
        ended = self.start(job).end(600)
        seconds = time.monotonic() - started
        if ended.code:
            raise RuntimeError(f"{name}: {ended.err}")
        return Reference(before, self.state(), ended, seconds)

    @cache  # noqa: B019
    def after(self, start: str | None, commands: tuple[str, ...]) -> Any:
        """What lies in the place after these commands, one after the other, unharmed."""
        self.clear(Job("", start))
        for command in commands:
            Child(self.words(command), self.place).end(300)  # the second may find all done
        return self.state()

    def state(self) -> Any:
        """What lies in the place: the answers of an index, the files of anything else.

        An IsthmusError, by its first line, where it cannot be used.
        """
        questions = self.questions
        looked = Child(lambda: look(self.output, questions), self.place).end()
        return looked.value if looked.code == 0 else f"FINDING {looked.tail}"

    def left_over(self) -> list[str]:
        """Names beside the output, and hidden ones in it, that a finished job leaves."""
        beside = [
            path.name for path in self.place.iterdir() if path.name not in ("output", "cache")
        ]
        within = [path.name for path in self.output.glob("**/.*")] if self.output.is_dir() else []
        return [name for name in (*beside, *within) if not name.endswith("lock")]


@dataclass(frozen=True)
class Reference:
    """What was there before a job, what after, how it ended and after how long."""

    before: Any
    after: Any
    ended: Ended
    seconds: float


def look(output: Path, questions: dict[str, Any], hnsw: bool = False) -> Any:
    """What can be seen of an output: see `Scene.state`."""
    from isthmus.errors import IsthmusError

    try:
        if not output.exists():
            return "absent"
        if output.is_file():
            return output.read_bytes()
        if (output / "hybrid.json").is_file():
            return hybrid_answers(output)
        snapshot = output / "isthmus.json"
        if (output / "manifest.json").is_file():
            return answers(output, questions, hnsw)
        if not snapshot.is_file() or not json.loads(snapshot.read_bytes()).get("complete"):
            return "unfinished"
        return dict(finished(output, json.loads(snapshot.read_bytes())))
    except IsthmusError as error:
        return f"refused: {error.what}"


def answers(folder: Path, questions: dict[str, Any], hnsw: bool = False) -> Any:
    """Every document of an index by id, and its rankings for the questions."""
    from isthmus.indexes.segments.index import open_index

    index = open_index(folder, hnsw)
    asked = questions[index.manifest.kind]
    ids = [f"q{number}" for number in range(8)]
    store = index.store
    documents = sorted(
        (d.id, d.title, d.text) for d in (store.document(row) for row in range(len(store)))
    )
    found = [(r.document_ids, r.scores) for r in index.search(asked, 10, ids)]
    return {"documents": documents, "rankings": found}


def hybrid_answers(folder: Path) -> Any:
    """The documents and rankings of a hybrid, which loads its indexes and their encoders."""
    from isthmus.records import Query
    from isthmus.retrieval.hybrid_folder import open_hybrid

    queries = [Query(f"q{n}", " ".join(WORDS[n : n + 3])) for n in range(0, 24, 3)]
    hybrid = open_hybrid(folder)
    stores = [one.index.store for one in hybrid.searchers]
    documents = [
        sorted((d.id, d.title, d.text) for d in (store.document(row) for row in range(len(store))))
        for store in stores
    ]
    assert all(found == documents[0] for found in documents), "indexes at different states"
    return [documents[0], [(r.document_ids, r.scores) for r in hybrid.search(queries, 10)]]


def finished(folder: Path, snapshot: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What must be the same in two outputs of one job: neither times nor places."""
    log = snapshot["results"].get("log", ())
    yield "losses", [entry["loss"] for entry in log if "loss" in entry]
    for file in sorted((folder / "final" if log else folder).rglob("*")):
        left_out = file.suffix == ".svg" or file.name == "isthmus.json" or file.name[0] == "."
        if file.is_file() and not left_out:
            yield str(file.relative_to(folder)), file.read_bytes()


def same(one: Any, two: Any) -> bool:
    """Whether two states are equal to the last bit."""
    return pickle.dumps(one) == pickle.dumps(two) or bool(one == two)


def drawn(cases: Iterable[Case], count: int | None) -> Iterable[Case]:
    """So many of the cases, always the same; all where no number is given."""
    if count is None:
        return cases
    found = list(cases)
    return random.Random(0).sample(found, min(count, len(found)))
