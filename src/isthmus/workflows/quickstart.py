"""The main job on an embedded default: from documentation strings to a compared search engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import Field, model_validator
from rich.console import Console

from isthmus.collections import Collection, open_collection, write_run
from isthmus.collections.formats.beir import write_beir
from isthmus.collections.formats.docstrings import Docstrings
from isthmus.config import Overrides, Settings
from isthmus.config.models import model_folder
from isthmus.config.output import claimed, finish, whole_folder
from isthmus.encoders import DenseEncoder, DenseSettings
from isthmus.evaluation import EvaluationSettings, Report, evaluate, per_query
from isthmus.finetuning.run_stage import run as run_finetune
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.pretrain import run as run_pretrain
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.scratch import start_from_nothing
from isthmus.pretraining.settings import PretrainSettings
from isthmus.progress import notice, track
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.retrieval.verbs.index import index
from isthmus.retrieval.verbs.search import hits
from isthmus.retrieval.weights import tune_weights
from isthmus.text.tokenizer import Tokenizer

_MEASURE = "RR@10"
_DEPTH = 100


class QuickstartSettings(Settings):
    """Which documentation, which encoder, and how both training stages go."""

    verb = "quickstart"

    output: str = Field(description="the folder to write")
    packages: list[str] = Field(description="import names; stdlib is the standard library")
    limit_per_package: int = Field(ge=1, description="documents of each package at most")
    splits: dict[str, list[str]] = Field(description="packages held out for dev and test")
    dev_queries: int = Field(300, ge=1, description="that choose the best system and the weight")
    query: str = Field(description="the search to end with")
    model: str | None = Field(None, description="the encoder to adapt")
    init: str | None = Field(None, description="or a size to start from nothing")
    vocabulary: int = Field(16_000, ge=100, description="tokens to learn, with init")
    seed: int = Field(42, ge=0, description="of the weights, with init")
    encoder: DenseSettings = Field(description="how texts become vectors, in every row alike")
    pretrain: dict[str, Any] = Field(description="settings of `isthmus pretrain`")
    finetune: dict[str, Any] = Field(description="settings of `isthmus finetune`")
    evaluation: EvaluationSettings = EvaluationSettings(measures=(_MEASURE, "nDCG@10", "R@100"))

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if (self.model is None) == (self.init is None):
            raise ValueError("give either model (a folder or hub name) or init (a size), not both")
        return self


def quickstart(
    output: str = "runs/quickstart",
    recipe: str = "quickstart",
    *,
    settings: QuickstartSettings | Overrides = None,
) -> Report:
    """Collects, pre-trains, fine-tunes, indexes, compares and searches; returns the comparison.

    Interrupted and run again, every finished stage is kept and the unfinished one resumes.
    """
    return run(QuickstartSettings.given(settings, {"output": output}, recipe))


def run(settings: QuickstartSettings) -> Report:
    """Runs a quickstart from complete settings; returns the comparison."""
    began = time.monotonic()
    output = Path(settings.output)
    corpus, start = str(output / "collection"), str(output / "start")
    pretraining = PretrainSettings.parse(
        {**settings.pretrain, "corpus": corpus, "model": start, "output": str(output / "pretrain")},
        where="pretrain",
    )
    assemble(pretraining)
    plain, adapted = (
        _finetuning(settings, corpus, model, str(output / name))
        for model, name in ((start, "finetuned"), (pretraining.output, "pretrained-finetuned"))
    )
    described = {"settings": settings.model_dump(exclude={"output"})}
    with claimed(output, "quickstart", described):
        _say(began, "1/6 collect the documentation strings of this machine's Python packages")
        collection = _collect(settings, Path(corpus))
        _start(settings, collection, Path(start))
        _say(began, "2/6 pre-train: learn the corpus, without labels")
        run_pretrain(pretraining)
        _say(began, "3/6 fine-tune, once without pre-training and once with")
        run_finetune(plain)
        run_finetune(adapted)
        _say(began, "4/6 index: BM25, the encoder as it is, and both fine-tuned ones")
        systems = {
            "BM25": "bm25",
            "encoder as it is": start,
            "fine-tuned": plain.output,
            "bag of words + fine-tuned": adapted.output,
        }
        searchers = {
            name: open_searcher(index(corpus, output / "index" / Path(model).name, model))
            for name, model in systems.items()
        }
        _say(began, "5/6 evaluate on packages that no training query came from")
        best, hybrid = _hybrid(settings, collection, searchers)
        everyone: dict[str, Searcher | HybridSearcher] = {**searchers, f"{best} + BM25": hybrid}
        report = _evaluate(settings, collection, everyone)
        console = Console()
        console.print(report)

        _say(began, "6/6 search")
        (ranking,) = hybrid.search([Query("query", settings.query)], 5)
        console.print(hits(hybrid, ranking, settings.query))
        folder = output / "index"
        weight = hybrid.weights[0]
        command = (
            f'isthmus search {folder / Path(systems[best]).name} "{settings.query}" '
            f"--with {folder / 'bm25'} --set 'weights=[{weight:g}, {1 - weight:g}]'"
        )
        seconds = time.monotonic() - began
        finish(output, {"seconds": seconds, "best": best, "weight": weight, "search": command})
    minutes = f"{seconds / 60:.1f} minutes"
    console.print(f"done in {minutes}; report in {output / 'report'}; search on:")
    console.print(f"  {command}", soft_wrap=True, highlight=False)
    return report


def _say(began: float, message: str) -> None:
    notice(f"\n[{time.monotonic() - began:5.0f} s] {message}")


def _finetuning(
    settings: QuickstartSettings, corpus: str, model: str, output: str
) -> FinetuneSettings:
    fixed = {"model": model, "collection": corpus, "output": output}
    return FinetuneSettings.parse(
        {**settings.encoder.model_dump(), **settings.finetune, **fixed}, where="finetune"
    )


def _collect(settings: QuickstartSettings, folder: Path) -> Collection:
    if not folder.is_dir():
        found = Docstrings(settings.packages, settings.splits, settings.limit_per_package)
        write_beir(found, folder)
    collection = open_collection(f"beir:{folder}")
    for split in collection.splits():
        notice(f"{split}: {len(collection.judgements(split)):,} queries")
    return collection


def _start(settings: QuickstartSettings, collection: Collection, folder: Path) -> None:
    """The starting point as an encoder of its own, so that every row encodes alike."""
    if folder.is_dir():
        return
    if settings.init is not None:
        titles, untrained = settings.encoder.titles, folder.with_name("untrained")
        name = str(
            start_from_nothing(
                lambda: (document.contents(titles) for document in collection.documents()),
                settings.init,
                settings.vocabulary,
                untrained,
                settings.seed,
            )
        )
    else:
        assert settings.model is not None
        name = model_folder(settings.model)
    encoder = DenseEncoder(Backbone.load(name), Tokenizer.load(name), settings.encoder)
    with whole_folder(folder) as partial:
        encoder.save(partial)


def _hybrid(
    settings: QuickstartSettings, collection: Collection, searchers: Mapping[str, Searcher]
) -> tuple[str, HybridSearcher]:
    """The system that is best on the dev queries, joined with BM25 by the best weight there."""
    judged = collection.judgements("dev")
    chosen = [query for query in collection.queries() if query.id in judged]
    chosen = chosen[:: max(1, len(chosen) // settings.dev_queries)]

    def measure(rankings: Sequence[Ranking]) -> float:
        found = Run("dev", {ranking.query_id: ranking for ranking in rankings})
        wanted = {ranking.query_id: judged[ranking.query_id] for ranking in rankings}
        return fmean(per_query(found, wanted, [_MEASURE])[_MEASURE].values())

    dense = [name for name in searchers if name != "BM25"]
    on_dev = {
        name: measure(searchers[name].search(chosen, 10))
        for name in track(dense, "choose on dev queries", len(dense), "systems")
    }
    best = max(on_dev, key=lambda name: on_dev[name])
    hybrid = HybridSearcher([searchers[best], searchers["BM25"]], candidates=_DEPTH)
    weights = tune_weights(hybrid, chosen, judged, _MEASURE).weights
    shown = ", ".join(f"{name} {value:.3f}" for name, value in on_dev.items())
    notice(f"dev {_MEASURE}: {shown}; weight of {best!r} in the hybrid: {weights[0]:g}")
    return best, HybridSearcher(hybrid.searchers, weights=weights, candidates=_DEPTH)


def _evaluate(
    settings: QuickstartSettings,
    collection: Collection,
    systems: Mapping[str, Searcher | HybridSearcher],
) -> Report:
    judged = collection.judgements("test")
    queries = [query for query in collection.queries() if query.id in judged]
    runs = []
    for name, searcher in track(systems.items(), "search", len(systems), "systems"):
        found = Run(name, {r.query_id: r for r in searcher.search(queries, _DEPTH)})
        file = Path(settings.output) / "runs" / f"{name.replace(' ', '-')}.trec"
        file.parent.mkdir(exist_ok=True)
        write_run(file, found)
        runs.append(found)
    return evaluate(
        runs, judged, settings=settings.evaluation, output=Path(settings.output) / "report"
    )
