"""Everything that reads what comes from outside, with valid inputs to start from."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.torture.scene import Scene


@dataclass(frozen=True)
class Target:
    """A reader of one file: what the file may hold, how it is read, how many batches it gets."""

    file: Path
    seeds: list[bytes]
    how: Callable[[Path], object]
    batches: int

    def read(self, data: bytes) -> object:
        """Whatever the reader makes of this content."""
        self.file.write_bytes(data)
        return self.how(self.file)

    def last(self) -> bytes:
        """The beginning of what was read last."""
        return self.file.read_bytes()[:300] if self.file.is_file() else b""


def targets(scene: Scene) -> dict[str, Target]:
    """Readers of data, settings, stored files and models, by name."""
    scratch = scene.folder / "fuzz"
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        **_data(scene, scratch),
        **_settings(scratch),
        **_stored(scene, scratch),
        **_models(scene, scratch),
    }


def _data(scene: Scene, scratch: Path) -> dict[str, Target]:
    from pyarrow import compress

    from isthmus.collections import (
        Problems,
        open_collection,
        open_corpus,
        read_judgements,
        read_queries,
        read_run,
    )
    from isthmus.finetuning.scores import read_scores

    turns = cycle(("skip", "refuse"))

    def problems() -> Any:
        return Problems(next(turns))  # type: ignore[arg-type]

    def corpus(file: Path) -> object:
        return list(open_corpus(str(file), problems()).documents())

    def texts(file: Path) -> object:
        return list(open_corpus(f"folder:{file.parent}", problems()).documents())

    def collection(folder: Path) -> object:
        found = open_collection(str(folder), problems())
        read = [list(found.documents()), list(found.queries())]
        return read, [found.judgements(split) for split in found.splits()]

    documents = [
        b'{"_id": "d1", "title": "a title", "text": "word"}\n{"_id": "d2", "text": "caf\\u00e9"}\n',
        b'{"id": 7, "contents": "text", "more": [1, {"a": null}]}\r\n\r\n{"docid": "x"}\n',
    ]
    queries = [
        b'{"_id": "q1", "text": "a question"}\n{"_id": "q2", "text": "2", "n": {"m": 1.5}}\n'
    ]
    tabs = [b"q1\ta question\nq2\tmore words 12\n", b"1\ttext\r\n2\tother\r\n"]
    passages = [b"1\tfirst text\n2\tsecond\n3\tthird\n", b"D1\thttp://a\ttitle\tbody\n"]
    judged = [
        b"q1 0 1 1\nq1 0 2 0\nq2 0 3 -2\n",
        b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t3\n",
    ]
    run = [b"q1 Q0 d1 1 12.5 tag\nq1 Q0 d2 2 1e-3 tag\nq2 Q0 d1 1 -4 tag\n"]
    page = (
        b"<html><title>T &amp; t</title><style>x</style><p>one<br>two &#65;</p><script>n</script>"
    )
    first, second = (compress(one, "zstd", asbytes=True) for one in documents)
    packed = [gzip.compress(documents[0] * 3), first, first + second]
    for name in ("corpus", "queries", "qrels"):
        shutil.copytree(scene.data, scratch / f"beir {name}")
        folder = scratch / f"msmarco {name}"
        folder.mkdir()
        for file, content in (("collection", passages), ("queries", tabs), ("qrels", judged)):
            (folder / f"{file}.tsv").write_bytes(content[0])
    wikipedia = [b'id\ttext\ttitle\n1\t"a ""b"" c"\tT\n2\tx\tU\n']
    asked = [
        b'[{"question": "q", "answers": ["a"], "positive_ctxs": [{"psg_id": "1"}]}, {}]',
    ]
    answered = [b'where\t[\'Paris\', "it\'s"]\nwho\t["x"]\n']
    for name in ("passages", "questions", "answers"):
        folder = scratch / f"dpr {name}"
        folder.mkdir()
        for file, content in (
            ("psgs_w100.tsv", wikipedia), ("nq.json", asked), ("test.csv", answered),
        ):  # fmt: skip
            (folder / file).write_bytes(content[0])
    scored = [
        b'{"qid": 1, "pid": "d", "score": 2.5}\n{"qid": "q", "scores": {"d": -1}}\n',
        b'{"qid": 1, "pos": [{"pid": 2, "ce-score": 1}], "neg": {"s": [{"pid": 3}]}}',
    ]
    for name in ("html", "markdown"):
        (scratch / name).mkdir()
    found = {
        "jsonl": ("f.jsonl", documents, corpus, 60),
        "compressed": ("c.jsonl.gz", packed, corpus, 40),
        "tab lines": ("f.tsv", passages, corpus, 50),
        "queries jsonl": ("q.jsonl", queries, lambda p: read_queries(p, problems()), 50),
        "queries tab": ("q.tsv", tabs, lambda p: read_queries(p, problems()), 45),
        "queries plain": ("q.txt", [*queries, *tabs], lambda p: read_queries(p, problems()), 25),
        "qrels": ("qrels.txt", judged, lambda p: read_judgements(p, problems()), 60),
        "scores": ("s.jsonl", scored, lambda p: list(read_scores(p, problems())), 25),
        "run": ("run.trec", run, lambda p: read_run(p, problems()), 60),
        "html": ("html/page.html", [page], texts, 20),
        "markdown": ("markdown/page.md", [b"# Title\n\nSome *text*\n", b"plain\n\nm\n"], texts, 15),
    }
    for name, file, content in (
        ("beir corpus", "corpus.jsonl", documents),
        ("beir queries", "queries.jsonl", queries),
        ("beir qrels", "qrels/train.tsv", judged),
        ("msmarco corpus", "collection.tsv", passages),
        ("msmarco queries", "queries.tsv", tabs),
        ("msmarco qrels", "qrels.tsv", judged),
        ("dpr passages", "psgs_w100.tsv", wikipedia),
        ("dpr questions", "biencoder-nq.json", asked),
        ("dpr answers", "test.qa.csv", answered),
    ):
        folder = scratch / name
        read = lambda _, folder=folder: collection(folder)  # noqa: E731
        found[name] = (f"{name}/{file}", content, read, 8)
    return {n: Target(scratch / file, *rest) for n, (file, *rest) in found.items()}  # type: ignore[arg-type]


def _settings(scratch: Path) -> dict[str, Target]:
    from isthmus.config.recipes import find_recipe, resolve, shipped_recipes
    from isthmus.evaluation import EvaluationSettings
    from isthmus.finetuning.settings import FinetuneSettings
    from isthmus.finetuning.stages import assemble as stages_of
    from isthmus.pretraining.recipe import assemble
    from isthmus.pretraining.settings import PretrainSettings
    from isthmus.retrieval.index import IndexSettings
    from isthmus.retrieval.search import SearchSettings
    from isthmus.retrieval.tune import TuneSettings

    models: list[Any] = [
        EvaluationSettings, FinetuneSettings, PretrainSettings, IndexSettings, SearchSettings,
        TuneSettings,
    ]  # fmt: skip
    turns = cycle(models)

    def parsed(verb: str, values: dict[str, Any]) -> object:
        if verb == "finetune" and "stages" in values:
            return stages_of(values, where="fuzz")
        model = next(model for model in models if model.verb == verb)
        settings = model.parse(values, "fuzz")
        return assemble(settings) if verb == "pretrain" else settings

    def override(file: Path) -> object:
        verb = next(turns).verb
        words = file.read_bytes().decode("utf-8", "surrogateescape").split("\n")
        return parsed(verb, resolve(verb, None, None, [word for word in words if word]))

    def recipe(file: Path) -> object:
        text = file.read_bytes()
        verb = "finetune" if b"finetune" in text else "pretrain"
        return parsed(verb, find_recipe(str(file), verb).settings)

    overrides = [
        b"training.learning_rate=1e-4", b"corruption.name=whole_word",
        b"objectives.masked_lm.weight=0.5\nmax_length=32", b"sparse.terms=8\nblock_size=4",
        b"stages.mined.negatives.num_negatives=7", b"weights=[0.5, 0.5]", b"measures=[RR@10, AP]",
        b"problems=skip", b"dense.hnsw={neighbours: 8}", b"texts=false",
        b'fusion="raw_sum"', b"bm25.k1=1.2\nbm25.b=0.75", b"depth=100\nrerank.model=x",
    ]  # fmt: skip
    recipes = [one.file.read_bytes() for one in shipped_recipes() if one.verb != "quickstart"]
    return {
        "overrides": Target(scratch / "overrides", overrides, override, 60),
        "recipes": Target(scratch / "recipe.yaml", recipes, recipe, 10),
    }


def _stored(scene: Scene, scratch: Path) -> dict[str, Target]:
    from isthmus.config.output import is_complete, read_snapshot
    from isthmus.indexes.columns import read_columns
    from isthmus.indexes.index import Index

    found = {}
    for name in ("fields", "bm25 grown", "hnsw", "given grown"):
        folder = Path(shutil.copytree(scene.index(name), scratch / name))
        seed = (folder / "manifest.json").read_bytes()
        unsealed = json.loads(seed)
        del unsealed["checksum"]
        found[f"manifest {name}"] = Target(
            folder / "manifest.json",
            [json.dumps(unsealed).encode()],
            lambda p: [segment.check() for segment in Index.open(p.parent).segments],
            20,
        )
    columns = scratch / "given grown" / "segments"
    file = next(columns.glob("*/metadata/fields.json"))
    found["columns"] = Target(file, [file.read_bytes()], lambda p: read_columns(p.parent, 25), 20)
    shutil.copytree(scene.reported, scratch / "report")
    file = scratch / "report" / "isthmus.json"
    found["snapshot"] = Target(
        file, [file.read_bytes()], lambda p: (is_complete(p.parent), read_snapshot(p.parent)), 25
    )
    return found


def _models(scene: Scene, scratch: Path) -> dict[str, Target]:
    from isthmus.encoders import load_encoder
    from isthmus.encoders.model_settings import known_settings
    from isthmus.text.tokenizer import Tokenizer

    found = {}

    def target(
        name: str, file: str, content: list[Any], how: Callable[[Path], object], batches: int
    ) -> None:
        folder = scratch / f"model {name}"
        shutil.copytree(scene.folder / "model", folder)
        if name != "encoder":
            (folder / "encoder.json").unlink(missing_ok=True)
        kinds = enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
        modules = [
            {"idx": n, "path": p, "type": f"sentence_transformers.{t}"} for n, (p, t) in kinds
        ]
        pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True}
        beside = {
            "modules.json": modules, "1_Pooling/config.json": pooling,
            "sentence_bert_config.json": {"max_seq_length": 64},
            "config_sentence_transformers.json": {"similarity_fn_name": "cosine", "prompts": {}},
        }  # fmt: skip
        if name != "encoder":
            for path, value in beside.items():
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_text(json.dumps(value))
        seeds = [json.dumps(value).encode() for value in content] or [(folder / file).read_bytes()]
        found[f"model {name}"] = Target(folder / file, seeds, lambda _: how(folder), batches)

    def settings(folder: Path) -> object:
        return known_settings(str(folder))

    encoders = [{"kind": "dense", "pooling": "cls", "similarity": "dot", "query_max_length": 32},
                {"kind": "sparse", "query_terms": 9, "titles": True}]  # fmt: skip
    target("encoder", "encoder.json", encoders, settings, 12)
    target("modules", "modules.json", [], settings, 12)
    target("pooling", "1_Pooling/config.json", [], settings, 8)
    target("lengths", "sentence_bert_config.json", [], settings, 6)
    target("similarity", "config_sentence_transformers.json", [], settings, 6)
    target("tokenizer", "tokenizer.json", [], lambda p: Tokenizer.load(str(p)), 3)
    target("tokenizer settings", "tokenizer_config.json", [], lambda p: Tokenizer.load(str(p)), 3)
    target("shape", "config.json", [], lambda p: load_encoder(str(p)), 2)
    return found
