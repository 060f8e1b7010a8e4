"""isthmus turns a pile of documents into a search engine that knows them.

Names are imported at first use: importing the package is free.
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
    from isthmus.api import serve as serve
    from isthmus.collections import Collection as Collection
    from isthmus.collections import open_collection as open_collection
    from isthmus.encoders.cross import Reranker as Reranker
    from isthmus.encoders.encoder import Encoder as Encoder
    from isthmus.encoders.loader import load_encoder as load_encoder
    from isthmus.encoders.loader import load_reranker as load_reranker
    from isthmus.errors import IsthmusError as IsthmusError
    from isthmus.evaluation import Report as Report
    from isthmus.records import Document as Document
    from isthmus.retrieval.hits import Hits as Hits
    from isthmus.workflows.adapt import Adaptation as Adaptation

_API = (
    "Index", "adapt", "doctor", "evaluate", "finetune", "index", "open_index", "pretrain", "serve",
)  # fmt: skip
_HOMES = {name: f"isthmus.api:{name}" for name in _API} | {
    "Adaptation": "isthmus.workflows.adapt:Adaptation",
    "Collection": "isthmus.collections:Collection",
    "Document": "isthmus.records:Document",
    "Encoder": "isthmus.encoders.encoder:Encoder",
    "Hits": "isthmus.retrieval.hits:Hits",
    "IsthmusError": "isthmus.errors:IsthmusError",
    "Report": "isthmus.evaluation:Report",
    "Reranker": "isthmus.encoders.cross:Reranker",
    "load_encoder": "isthmus.encoders.loader:load_encoder",
    "load_reranker": "isthmus.encoders.loader:load_reranker",
    "open_collection": "isthmus.collections:open_collection",
}
__all__ = ["__version__", "research", *_HOMES]


if not TYPE_CHECKING:  # for which every name would exist

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used."""
        if name in ("research", "progress"):
            return import_module(f"isthmus.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """Public names, those included that are not imported yet."""
    return sorted({*__all__, "progress"})
