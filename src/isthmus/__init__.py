"""isthmus turns a pile of documents into a retriever that knows them.

Every verb of the command line is a function here, with the names of its options as arguments, and
so are the types that they return. Names are imported at first use: importing the package is free.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isthmus._version import __version__ as __version__

if TYPE_CHECKING:
    from isthmus import research as research
    from isthmus.api import Index as Index
    from isthmus.api import adapt as adapt
    from isthmus.api import doctor as doctor
    from isthmus.api import evaluate as evaluate
    from isthmus.api import finetune as finetune
    from isthmus.api import index as index
    from isthmus.api import open_index as open_index
    from isthmus.api import pretrain as pretrain
    from isthmus.api import quickstart as quickstart
    from isthmus.api import recipes as recipes
    from isthmus.api import serve as serve
    from isthmus.benchmarks.report.report import BenchmarkReport as BenchmarkReport
    from isthmus.collections.spec import open_collection as open_collection
    from isthmus.encoders.encoder import Encoder as Encoder
    from isthmus.encoders.loader import load_cross_encoder as load_cross_encoder
    from isthmus.encoders.loader import load_encoder as load_encoder
    from isthmus.errors import IsthmusError as IsthmusError
    from isthmus.evaluation.report import Report as Report
    from isthmus.records import Document as Document
    from isthmus.retrieval.hits import Hit as Hit
    from isthmus.retrieval.hits import Hits as Hits
    from isthmus.workflows.adapt import Adaptation as Adaptation

_HOMES = {
    "isthmus.api": [
        "Index",
        "quickstart",
        "evaluate",
        "adapt",
        "doctor",
        "finetune",
        "index",
        "open_index",
        "pretrain",
        "recipes",
        "serve",
    ],
    "isthmus.benchmarks.report.report": ["BenchmarkReport"],
    "isthmus.collections.spec": ["open_collection"],
    "isthmus.encoders.encoder": ["Encoder"],
    "isthmus.encoders.loader": ["load_cross_encoder", "load_encoder"],
    "isthmus.errors": ["IsthmusError"],
    "isthmus.evaluation.report": ["Report"],
    "isthmus.records": ["Document"],
    "isthmus.retrieval.hits": ["Hit", "Hits"],
    "isthmus.workflows.adapt": ["Adaptation"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", "research", *_HOME]


if not TYPE_CHECKING:  # for which every name would exist

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used."""
        if name == "research":
            return import_module("isthmus.research")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Public names, those included that are not imported yet."""
    return sorted({*globals(), *__all__})
