"""What is tortured: a tiny collection, tiny encoders, an index of every kind, a job per verb."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from io import StringIO
from pathlib import Path
from typing import Any

from tests.torture import given
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
    """A command that writes OUTPUT, which starts as a copy of an index where one is named.

    `commits` are commands that do the same one after the other, where each counts by itself.
    """

    words: str
    start: str | None = None
    slow: bool = False
    commits: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        return self.words.split()[0]


INDEXES: dict[str, str] = {
    "bm25": "index CORPUS --output OUTPUT",
    "dense": "index CORPUS --model MODEL --output OUTPUT",
    "fields": "index CORPUS --model MODEL --model SPARSE --output OUTPUT --set block_size=16 "
    "--set passages.length=16",
    "hnsw": "index CORPUS --model MODEL --output OUTPUT --set dense.hnsw=true --set bm25=false",
    "floats": "index CORPUS --model SPARSE --output OUTPUT --set bm25=false "
    "--set sparse.weights=float --set sparse_sizes=[4]",
}
CHANGING = ("bm25", "dense", "fields")
"""Kinds of indexes that are changed; "grown", they have several segments and deleted documents."""
_FIRST = {name: words.replace("CORPUS", "FIRST") for name, words in INDEXES.items()}
_GROW = "sync OUTPUT CORPUS --set block_size=3"  # which makes the index that of the corpus

JOBS: dict[str, Job] = {
    **{f"index {kind}": Job(words) for kind, words in INDEXES.items()},
    "overwrite bm25": Job("index OTHER --output OUTPUT --overwrite", "fields"),
    "overwrite fields": Job(
        "index OTHER --model MODEL --model SPARSE --output OUTPUT --overwrite --set block_size=8",
        "dense grown",
    ),
    "field dense": Job("index CORPUS --model MODEL --output OUTPUT", "bm25 grown"),
    "fields both": Job("index CORPUS --model MODEL --model SPARSE --output OUTPUT", "bm25 grown"),
    "field sparse": Job("index CORPUS --model SPARSE --output OUTPUT", "dense grown"),
    "field bm25": Job(INDEXES["hnsw"].replace("--set bm25=false", ""), "hnsw"),
    **{
        f"{verb} {kind}": Job(words, f"{kind} grown" if verb == "merge" else kind, commits=commits)
        for kind in CHANGING
        for verb, words, commits in (
            ("add", "add OUTPUT MORE --set block_size=3", ()),
            ("delete", "delete OUTPUT d1 d2 d33 --set problems=skip", ()),
            ("sync", "sync OUTPUT OTHER --set block_size=3", ()),
            ("merge", "sync OUTPUT CORPUS --compact", ()),
            ("serve", "serve", ("delete OUTPUT d3", "add OUTPUT ONE", "delete OUTPUT d4 new")),
        )
    },
    **{
        f"given {verb}": Job(f"given {verb}", start)
        for verb, start in (
            ("build", None), ("overwrite", "given"), ("add", "given"), ("delete", "given"),
            ("field", "given words"), ("merge", "given grown"), ("weights", "given"),
        )
    },
    "tune": Job("tune OUTPUT DATA --split train --set steps=4 --set folds=2", "fields"),
    "export": Job("export BM25 -o OUTPUT"),
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
        (folder / "compiled").mkdir()
        self._write_collection()
        made = Child(self._make_models, self.place).end()
        assert made.code == 0, made.err
        self.clear(Job(""))

    def _write_collection(self) -> None:
        generator = random.Random(0)
        (self.data / "qrels").mkdir(parents=True)
        texts = [" ".join(generator.choices(WORDS, k=20)) for _ in range(45)]
        documents = [
            json.dumps(
                {
                    "_id": f"d{number}", "title": WORDS[number % 24], "text": text,
                    "year": 2000 + number % 9, "lang": ["en", "de"][: number % 3],
                    **({"price": number / 4} if number % 2 else {}),
                }
            )
            for number, text in enumerate(texts)
        ]  # fmt: skip
        queries = [
            json.dumps({"_id": f"q{number}", "text": " ".join(text.split()[:4])})
            for number, text in enumerate(texts[:12])
        ]
        judged = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(12))]
        more = [line.replace("ba", "mu") for line in documents[36:]]  # four are there already
        other = [line.replace("ba", "mu") for line in documents[5:8]] + documents[8:30]
        gone = json.dumps({"_id": "gone", "text": texts[0]})
        one = json.dumps({"_id": "new", "text": texts[1], "year": 1999})
        for name, lines in {
            "corpus.jsonl": documents[:40], "queries.jsonl": queries, "more.jsonl": more,
            "other.jsonl": other, "first.jsonl": [*other, gone], "one.jsonl": [one],
            "qrels/train.tsv": judged,
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
            "FIRST": self.data / "first.jsonl", "ONE": self.data / "one.jsonl",
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
        made_by = {"": "build", "grown": "grow", "words": "words"}
        if kind == "given":
            ended = Child(partial(getattr(given, made_by[grown]), folder), self.place).end()
            assert ended.code == 0, ended.err
            self._compile(folder)
            return folder
        if grown:
            self._made(_FIRST[kind], folder)
            self._made(_GROW, folder)
            self._made("delete OUTPUT d3 d11", folder)
            self._made(_GROW, folder)
        else:
            self._made(INDEXES[kind], folder)
        if "SPARSE" in INDEXES[kind]:
            self._compile(folder)
        return folder

    def _compile(self, folder: Path) -> None:
        """Has this process read the kernels' machine code, which every child would else do."""
        from isthmus.indexes.manifest import read_manifest, updated
        from isthmus.indexes.writer import IndexWriter
        from isthmus.records import Document

        known = updated(read_manifest(folder), segments=[], passages=None)
        documents = [Document(str(number), "") for number in range(8)]
        vectors = {name: asked(self.questions, name, one) for name, one in known.fields.items()}
        with (
            redirect_stderr(StringIO()),
            IndexWriter(self.folder / "compiled" / folder.name, known) as writer,
        ):
            writer.add(documents, documents, vectors)
            writer.commit()
        answers(folder, self.questions)

    @cached_property
    def run_file(self) -> Path:
        """A run of the judged queries."""
        return self._made(JOBS["search"].words, self.folder / "bm25.trec")

    @cached_property
    def reported(self) -> Path:
        """A folder with a snapshot of the command that made it."""
        return self._made(JOBS["evaluate"].words, self.folder / "report")

    @cached_property
    def questions(self) -> dict[str, Any]:
        """What fields of each type are asked: vectors, or texts."""

        def encoded() -> dict[str, Any]:
            from isthmus.encoders import load_encoder

            texts = [" ".join(WORDS[n : n + 3]) for n in range(0, 24, 3)]
            vectors = {
                kind: load_encoder(str(self.folder / name), exact=True).encode_queries(texts)
                for kind, name in (("dense", "model"), ("sparse", "sparse"))
            }
            both = load_encoder(str(self.folder / "model"), exact=True).with_tokens()
            tokens = both.encode_queries(texts).tokens
            return {**vectors, **given.questions(), "tokens": tokens, "bm25": texts}

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
        return Child(self.work(job.words), self.place, **harm)

    def work(self, words: str) -> list[str] | Callable[[], None]:
        """A command, or what the writer itself does."""
        if words.startswith("given "):
            return partial(told, partial(getattr(given, words.removeprefix("given ")), self.output))
        if words == "serve":
            return partial(told, partial(serve, self.output, self.data / "one.jsonl"))
        return self.words(words)

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
        after = self.state()
        counts = range(1, len(job.commits))
        between = tuple(self.after(job.start, job.commits[:count]) for count in counts)
        return Reference(before, after, ended, seconds, between)

    @cache  # noqa: B019
    def after(self, start: str | None, commands: tuple[str, ...]) -> Any:
        """What lies in the place after these commands, one after the other, unharmed."""
        self.clear(Job("", start))
        for command in commands:
            Child(self.work(command), self.place).end(300)  # the second may find all done
        return self.state()

    def state(self) -> Any:
        """What lies in the place: the answers of an index, the files of anything else.

        An IsthmusError, by its first line, where it cannot be used.
        """
        questions = self.questions
        looked = Child(lambda: look(self.output, questions), self.place).end()
        return looked.value if looked.code == 0 else f"FINDING {looked.tail}"

    def left_over(self) -> list[str]:
        """Names beside the output, and files and folders in it, that a finished job leaves."""
        beside = [
            path.name for path in self.place.iterdir() if path.name not in ("output", "cache")
        ]
        if (self.output / "manifest.json").is_file():
            within = unnamed(self.output)
        else:
            within = [one.name for one in self.output.glob("**/.*")] if self.output.is_dir() else []
        return [name for name in (*beside, *within) if not name.endswith("lock")]

    def recorded(self) -> int:
        """The documents of a segment under construction that were brought to the disk."""
        files = self.output.glob("segments/*/progress.json")
        found = [json.loads(file.read_bytes()) for file in files]
        return max((one["count"]["documents"] for one in found if one.get("job")), default=0)


@dataclass(frozen=True)
class Reference:
    """What was there before a job, what after, how it ended and after how long.

    `between` is what may be there while it is done, if it counts in several steps.
    """

    before: Any
    after: Any
    ended: Ended
    seconds: float
    between: tuple[Any, ...] = ()


def unnamed(folder: Path) -> list[str]:
    """What lies in the folder of an index that its manifest does not name."""
    named = {Path("manifest.json"), Path("segments")}
    for segment in json.loads((folder / "manifest.json").read_bytes())["segments"]:
        files = [Path("segments", segment["name"], file) for file in segment["files"]]
        named.update(*((file, *file.parents) for file in files))
    return [
        str(one) for file in folder.rglob("*") if (one := file.relative_to(folder)) not in named
    ]


def told(work: Callable[[], None]) -> None:
    """Does something, and ends as a command does where it is refused."""
    from isthmus.errors import IsthmusError

    try:
        work()
    except IsthmusError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"error: {error}\n  fix: as the command line says", file=sys.stderr)
        raise SystemExit(2) from None


def watch(output: Path, questions: dict[str, Any], stop: Path) -> list[Any]:
    """All that could be seen of an output, looked at again and again until told to stop."""
    found: list[Any] = []
    while not stop.exists():
        seen = look(output, questions)
        if not any(same(seen, one) for one in found):
            found.append(seen)
    return found


def serve(output: Path, documents: Path) -> None:
    """Three changes by one writer, as a server commits them."""
    from isthmus.collections import open_corpus
    from isthmus.retrieval.change import open_writer

    with open_writer(output) as writer:
        writer.delete(["d3"])
        writer.commit()
        writer.add(open_corpus(str(documents)).documents())
        writer.commit()
        writer.delete(["d4", "new"])
        writer.commit()
        writer.merge()


def look(output: Path, questions: dict[str, Any]) -> Any:
    """What can be seen of an output: see `Scene.state`."""
    from isthmus.errors import IsthmusError

    try:
        if not output.exists():
            return "absent"
        if output.is_file():
            return output.read_bytes()
        snapshot = output / "isthmus.json"
        if not snapshot.is_file():
            return answers(output, questions)
        if not json.loads(snapshot.read_bytes()).get("complete"):
            return "unfinished"
        return dict(finished(output, json.loads(snapshot.read_bytes())))
    except IsthmusError as error:
        return f"refused: {error.what}"


def answers(folder: Path, questions: dict[str, Any]) -> Any:
    """Every document of an index by id, its weights, and the rankings of each of its fields."""
    from isthmus.indexes.filters import parse
    from isthmus.indexes.index import Index

    index = Index.open(folder)
    ids = [f"q{number}" for number in range(8)]
    known = any("year" in segment.columns.fields for segment in index.segments)
    some = index.masks(parse({"year": {"$gte": 2004} if known else {"$exists": False}}))
    found: dict[str, Any] = {"weights": dict(index.manifest.fusion)}
    documents = index.documents(sorted(index.ids()))
    found["documents"] = [(d.id, d.title, d.text, dict(d.metadata)) for d in documents]
    for name, about in index.manifest.fields.items():
        queries = asked(questions, name, about)
        for masks in (None, some):
            rankings = index.search(name, queries, 10, ids, masks)
            found[f"{name} {masks is None}"] = [(r.document_ids, r.scores) for r in rankings]
        if index.has_passages(name):
            best = index.search(name, queries, 5, ids, by="passage")
            found[f"{name} passages"] = [(r.document_ids, r.scores) for r in best]
        if about.type == "tokens":
            first = [one.id for one in documents[:9]]
            found[f"{name} of some"] = [index.scored(name, queries[[n]], first) for n in range(8)]
        if about.type == "dense" and about.settings.graph is not None:
            near = Index.open(folder, [name], graph=True).search(name, queries, 10, ids)
            found[f"{name} hnsw"] = [(r.document_ids, r.scores) for r in near]
    return found


def asked(questions: dict[str, Any], name: str, about: Any) -> Any:
    """What a field is asked: as one of its name, or of its type."""
    return questions[name if name in questions else about.type]


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
