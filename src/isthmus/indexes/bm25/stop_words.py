"""Stop words by language: the lists of bm25s, read without bm25s itself.

Its package brings numba and scipy, which take longer to import than a search does, and starts JAX
where that is installed, with most of a GPU's memory.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path


@lru_cache(maxsize=1)
def _lists() -> dict[str, frozenset[str]]:
    package = find_spec("bm25s")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("stopwords.py")
    spec = spec_from_file_location("bm25s.stopwords", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    named = {name: words for name, words in vars(module).items() if name.startswith("STOPWORDS_")}
    return {name.removeprefix("STOPWORDS_"): frozenset(words) for name, words in named.items()}


def stop_words(language: str, many: bool = False) -> frozenset[str]:
    """The words of a language that say nothing alone; none where it has no list.

    `many`: of English, 179 words in place of Lucene's 33.
    """
    if language == "english":
        return _lists()["EN_PLUS" if many else "EN"]
    return _lists().get(language.upper(), frozenset())
