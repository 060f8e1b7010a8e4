"""Imports of what loads and inspects models, which must not begin in two threads at once."""

from __future__ import annotations

from threading import Lock

_IMPORTING = Lock()


def import_models() -> None:
    """Imports transformers and what is built on it, where that has not been done yet.

    Its modules import each other when they are first needed: a second thread can find them half
    made.
    """
    with _IMPORTING:
        import transformers

        import isthmus.inspection.inspect  # noqa: F401 (imported for others)

        for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer"):
            getattr(transformers, name)  # which imports its module
