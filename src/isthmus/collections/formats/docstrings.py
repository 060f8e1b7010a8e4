"""Documentation of Python packages."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import xxhash

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.formats import collection_format
from isthmus.collections.problems import Problems
from isthmus.collections.sources import Package, installed_sources
from isthmus.progress import Bar, notice
from isthmus.records import Document, Query

STANDARD_LIBRARY = "stdlib"
DEFAULT_SPLITS: Mapping[str, Sequence[str]] = {
    "dev": ("scipy",),
    "test": ("networkx", "numpy"),
}
_LEAST_QUERY_WORDS = 4
_MOST_QUERY_WORDS = 40
_LEAST_WORDS_LEFT = 20
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|resp|approx|[A-Z]|al|Eq|Fig|Ref|No)\.$")
_WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")
_NOT_PROSE = re.compile(r"\w+ ?\(.*\)( ?:|$)|[\w.]+\(|Alias for field number", re.DOTALL)
_MARKUP_LINE = re.compile(r"^\s*(\W{3,}|>>>.*|\.\. .*|[:@]\w+.*|[-*] .*)$", re.MULTILINE)


@collection_format("docstrings")
class Docstrings(Collection):
    """Documentation of Python packages: a real collection that every machine already holds.

    A document is the documentation string of one public object; its query is the first sentence,
    taken out. Splits go by top-level package, so that nothing leaks from training into test.

    `packages` are import names, "stdlib" for the standard library (None: everything found).
    `splits` gives the top-level packages of each split, all others are in "train".
    `limit_per_package` keeps a fixed sample of each.
    All documents are in memory: which sentences are queries depends on all of them.
    """

    def __init__(
        self,
        packages: Sequence[str] | None = None,
        splits: Mapping[str, Sequence[str]] = DEFAULT_SPLITS,
        limit_per_package: int | None = None,
    ) -> None:
        self.packages = packages
        self.limit_per_package = limit_per_package
        self.problems = Problems("skip")
        self._splits = sorted({"train", *splits}, key=lambda s: (s != "train", s))
        self._split_of = {name: split for split, names in splits.items() for name in names}

    @classmethod
    def open(cls, location: str, problems: Problems) -> Self:
        """The documentation of the packages named, separated by commas; of all when none is."""
        del problems  # broken sources are other people's: skipped and counted in any case
        return cls([name.strip() for name in location.split(",") if name.strip()] or None)

    def documents(self) -> Iterator[Document]:
        """Every documented public object in the order of its qualified name."""
        yield from self._read[0]

    def queries(self) -> Iterator[Query]:
        """The first sentences that lead to one document only."""
        for document_id, sentence in self._read[1].items():
            yield Query(_query_id(document_id), sentence)

    def splits(self) -> list[str]:
        """The splits, "train" first."""
        return self._splits

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """For each query of the split's packages, the document it was taken from."""
        choose_split(dict.fromkeys(self._splits), split, "docstrings")
        return {
            _query_id(name): {name: 1}
            for name in self._read[1]
            if self._split_of.get(name.partition(".")[0], "train") == split
        }

    def count(self) -> int:
        """The number of documents."""
        return len(self._read[0])

    def fingerprint(self) -> str:
        """A digest of every document, query and split."""
        digest = xxhash.xxh3_128()
        for document in self.documents():
            digest.update(f"{document.id}\0{document.text}\0".encode("utf-8", "surrogatepass"))
        for split in self._splits:
            digest.update(f"{split}\0{sorted(self.judgements(split))}\0".encode())
        return digest.hexdigest()

    @cached_property
    def _read(self) -> tuple[list[Document], dict[str, str]]:
        """The documents, and the query sentence by document id."""
        texts = self._texts()
        sentences = {name: _first_sentence(text) for name, text in texts.items()}
        occurrences = Counter(sentence.lower() for sentence, _ in sentences.values())
        documents, queries = [], {}
        for name, text in texts.items():
            sentence, rest = sentences[name]
            if sentence and occurrences[sentence.lower()] == 1 and _is_left_useful(rest):
                queries[name] = sentence
                text = rest
            documents.append(Document(name, text, title=name))
        return documents, queries

    def _texts(self) -> dict[str, str]:
        """Documentation by qualified name, each text once under its shortest name."""
        named: dict[str, str] = {}
        sources = self._sources()
        total = sum(map(len, sources.values()))
        with Bar("reading documentation", total, "files") as bar:
            for package, files in sources.items():
                for name, text in Package(files, self.problems).documentation():
                    text = text.encode("utf-8", "ignore").decode().strip()  # lone surrogates
                    if text:
                        named.setdefault(name, text)
                bar.advance(len(files), note=package)
        shortest: dict[str, str] = {}
        for name in sorted(named, key=lambda name: (len(name), name)):
            shortest.setdefault(" ".join(named[name].split()), name)
        kept = self._sample(sorted(shortest.values()))
        return {name: named[name] for name in kept}

    def _sources(self) -> dict[str, dict[str, Path]]:
        named = None if self.packages is None else set(self.packages) - {STANDARD_LIBRARY}
        wanted = None if named is None else set(named)
        if wanted is not None and STANDARD_LIBRARY in (self.packages or ()):
            wanted |= sys.stdlib_module_names
        installed = installed_sources(wanted)
        installed.pop("isthmus", None)  # present or not, depending on how it was installed
        missing = sorted((named or set()) - installed.keys())
        if missing:
            notice(f"documentation of {', '.join(missing)} left out: not installed here")
        return installed

    def _sample(self, names: list[str]) -> list[str]:
        if self.limit_per_package is None:
            return names
        kept: list[str] = []
        seen: Counter[str] = Counter()
        # Ordered by digest, not by name: a limit must not keep only modules early in the alphabet.
        for name in sorted(names, key=lambda name: xxhash.xxh3_64_intdigest(name.encode())):
            package = name.partition(".")[0]
            if seen[package] < self.limit_per_package:
                seen[package] += 1
                kept.append(name)
        return sorted(kept)


def _query_id(document_id: str) -> str:
    # Never equal to the document's: evaluation may drop answers that are their own question.
    return f"query:{document_id}"


def _first_sentence(text: str) -> tuple[str, str]:
    """The first sentence of a documentation string and what follows; ("", text) when none is."""
    paragraph = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    end = len(paragraph)
    for match in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: match.end()]):
            end = match.end()
            break
    sentence = paragraph[:end]
    words = len(sentence.split())
    is_sentence = (
        _LEAST_QUERY_WORDS <= words <= _MOST_QUERY_WORDS
        and len(_WORD.findall(sentence)) >= max(_LEAST_QUERY_WORDS, words // 2)
        and sentence[0].isalpha()
        and not sentence.endswith(":")
        and not _MARKUP_LINE.search(sentence)
        and not _NOT_PROSE.match(sentence)
    )
    return (" ".join(sentence.split()), text[end:].strip()) if is_sentence else ("", text)


def _is_left_useful(rest: str) -> bool:
    return len(_WORD.findall(rest)) >= _LEAST_WORDS_LEFT
