"""isthmus turns a pile of documents into a retriever that knows them.

Every verb of the command line is a function here, with the names of its options as arguments, and
so are the types that they return. Names are imported at first use: importing the package is free.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

from isthmus._version import __version__ as __version__

if TYPE_CHECKING:
    from isthmus.benchmarks.report.report import BenchmarkReport as BenchmarkReport
    from isthmus.benchmarks.report.report import report as report
    from isthmus.benchmarks.runner.run import benchmark as benchmark
    from isthmus.collections.spec import open_collection as open_collection
    from isthmus.collections.spec import open_corpus as open_corpus
    from isthmus.encoders.encoder import Encoder as Encoder
    from isthmus.encoders.loader import load_cross_encoder as load_cross_encoder
    from isthmus.encoders.loader import load_encoder as load_encoder
    from isthmus.errors import IsthmusError as IsthmusError
    from isthmus.evaluation.report import Report as Report
    from isthmus.finetuning.finetune import finetune as finetune
    from isthmus.inspection.doctor import doctor as doctor
    from isthmus.inspection.explain import Explanation as Explanation
    from isthmus.inspection.explain import explain as explain
    from isthmus.inspection.inspect import Inspection as Inspection
    from isthmus.inspection.inspect import inspect as inspect
    from isthmus.inspection.negatives import negatives as negatives
    from isthmus.inspection.probe import ProbeReport as ProbeReport
    from isthmus.inspection.probe import probe as probe
    from isthmus.inspection.recipes import recipes as recipes
    from isthmus.pretraining.pretrain import pretrain as pretrain
    from isthmus.records import Document as Document
    from isthmus.records import Query as Query
    from isthmus.records import Ranking as Ranking
    from isthmus.records import Run as Run
    from isthmus.retrieval.hits import Hit as Hit
    from isthmus.retrieval.hits import Hits as Hits
    from isthmus.retrieval.hybrid import HybridSearcher as HybridSearcher
    from isthmus.retrieval.reranker import RerankingSearcher as RerankingSearcher
    from isthmus.retrieval.searcher import Searcher as Searcher
    from isthmus.retrieval.searcher import open_searcher as open_searcher
    from isthmus.retrieval.verbs.encode import encode as encode
    from isthmus.retrieval.verbs.export import export as export
    from isthmus.retrieval.verbs.index import index as index
    from isthmus.retrieval.verbs.search import open_search as open_search
    from isthmus.retrieval.verbs.search import search as search
    from isthmus.retrieval.verbs.sparsify import sparsify as sparsify
    from isthmus.retrieval.verbs.sync import Sync as Sync
    from isthmus.retrieval.verbs.sync import sync as sync
    from isthmus.retrieval.verbs.tune import tune as tune
    from isthmus.retrieval.verbs.update import Writer as Writer
    from isthmus.retrieval.verbs.update import add as add
    from isthmus.retrieval.verbs.update import delete as delete
    from isthmus.retrieval.verbs.update import merge as merge
    from isthmus.retrieval.verbs.update import open_writer as open_writer
    from isthmus.serving.serve import open_app as open_app
    from isthmus.serving.serve import serve as serve
    from isthmus.workflows.adapt import Adaptation as Adaptation
    from isthmus.workflows.adapt import adapt as adapt
    from isthmus.workflows.evaluate import evaluate as evaluate
    from isthmus.workflows.quickstart import quickstart as quickstart

_HOMES = {
    "isthmus.benchmarks.report.report": ["BenchmarkReport", "report"],
    "isthmus.benchmarks.runner.run": ["benchmark"],
    "isthmus.collections.spec": ["open_collection", "open_corpus"],
    "isthmus.encoders.encoder": ["Encoder"],
    "isthmus.encoders.loader": ["load_cross_encoder", "load_encoder"],
    "isthmus.errors": ["IsthmusError"],
    "isthmus.evaluation.report": ["Report"],
    "isthmus.finetuning.finetune": ["finetune"],
    "isthmus.inspection.doctor": ["doctor"],
    "isthmus.inspection.explain": ["Explanation", "explain"],
    "isthmus.inspection.inspect": ["Inspection", "inspect"],
    "isthmus.inspection.negatives": ["negatives"],
    "isthmus.inspection.probe": ["ProbeReport", "probe"],
    "isthmus.inspection.recipes": ["recipes"],
    "isthmus.pretraining.pretrain": ["pretrain"],
    "isthmus.records": ["Document", "Query", "Ranking", "Run"],
    "isthmus.retrieval.hits": ["Hit", "Hits"],
    "isthmus.retrieval.hybrid": ["HybridSearcher"],
    "isthmus.retrieval.reranker": ["RerankingSearcher"],
    "isthmus.retrieval.searcher": ["Searcher", "open_searcher"],
    "isthmus.retrieval.verbs.encode": ["encode"],
    "isthmus.retrieval.verbs.export": ["export"],
    "isthmus.retrieval.verbs.index": ["index"],
    "isthmus.retrieval.verbs.search": ["open_search", "search"],
    "isthmus.retrieval.verbs.sparsify": ["sparsify"],
    "isthmus.retrieval.verbs.sync": ["Sync", "sync"],
    "isthmus.retrieval.verbs.tune": ["tune"],
    "isthmus.retrieval.verbs.update": ["Writer", "add", "delete", "merge", "open_writer"],
    "isthmus.serving.serve": ["open_app", "serve"],
    "isthmus.workflows.adapt": ["Adaptation", "adapt"],
    "isthmus.workflows.evaluate": ["evaluate"],
    "isthmus.workflows.quickstart": ["quickstart"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]


if not TYPE_CHECKING:  # for which every name would exist

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if _HOME[name] in modules:
            return getattr(modules[_HOME[name]], name)
        from isthmus.progress import waiting

        with waiting(f"importing the libraries of {name}"):
            return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Public names, those included that are not imported yet."""
    return sorted({*globals(), *_HOME})
