"""Development splits on which papers report their results, recognised by name."""

from __future__ import annotations

import re
from pathlib import Path

# Of other data sets (FiQA, NFCorpus, …) papers report on test, and dev is there to choose by.
_BY_ID = {
    "MS MARCO": re.compile(
        r"(msmarco-(passage|document)(-v2)?|msmarco-qna|beir/msmarco|mmarco(/v2)?/\w+|neumarco/\w+)"
        r"/dev\d?(/.*)?"
    ),
    "MIRACL": re.compile(r"miracl/\w+/dev"),
}
_PUBLISHED = re.compile(r"(beir|mteb)/msmarco(-qrels)?(:.*)?", re.IGNORECASE)
_DEVELOPMENT = ("dev", "validation")


def reported_by(spec: str, split: str) -> str | None:
    """The data set whose papers report on this split of a collection.

    None where names leave that open: a folder counts where its own says ms marco, or the split
    is dev.small.
    """
    scheme, _, location = spec.partition(":")
    if scheme == "irds":
        name = location.strip("/")
        name = name if name.endswith(f"/{split}") else f"{name}/{split}"
        return next((title for title, known in _BY_ID.items() if known.fullmatch(name)), None)
    if not split.startswith(_DEVELOPMENT):
        return None
    if scheme == "hf" and _PUBLISHED.fullmatch(location):
        return "MS MARCO"
    folder = Path(spec if Path(spec).exists() else location or spec).resolve()
    names = (folder.parent.name if folder.is_file() else folder.name).lower()
    certain = "msmarco" in re.sub(r"[^a-z]", "", names) or split == "dev.small"
    return "MS MARCO" if certain else None
