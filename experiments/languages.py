"""What BM25 finds in the translations of one book, analysed as English and by their language.

The Debian installation guide (`apt-get download installation-guide-arm64`, then `dpkg -x`) in its
languages: a section is a document, its heading the query that should find it.

python experiments/languages.py FOLDER   # …/usr/share/doc/installation-guide-arm64
The last column needs the extra segmenters.
"""

from __future__ import annotations

import html
import json
import re
import sys
import tempfile
from pathlib import Path

import isthmus
from isthmus.records import Query

_HEADING = re.compile(r'<h\d class="title"[^>]*>(.*?)</h\d>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_NUMBER = re.compile(r"^[^ \xa0]*\d[^ \xa0]*[ \xa0]+")
_LETTERS = 80  # of a section at least


def _sections(folder: Path) -> dict[str, str]:
    """The text of every section by its heading, without headings that several have."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for page in sorted(folder.glob("*s*.html")):
        _, *parts = _HEADING.split(page.read_text(encoding="utf-8"))
        for heading, body in zip(parts[::2], parts[1::2], strict=True):
            title = _NUMBER.sub("", _plain(heading))
            text = _plain(body.partition('<div class="navfooter">')[0])
            if title in seen:
                found.pop(title, None)
            elif len(text) >= _LETTERS:
                found[title] = text
            seen.add(title)
    return found


def _plain(marked: str) -> str:
    return " ".join(html.unescape(_TAG.sub("", marked)).split())


def _mean_reciprocal_rank(
    sections: dict[str, str], language: str, scratch: Path, segmenter: str = "pairs"
) -> float:
    corpus = scratch / "corpus.jsonl"
    lines = ({"_id": str(n), "text": text} for n, text in enumerate(sections.values()))
    corpus.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    folder = isthmus.index(
        str(corpus),
        scratch / "index",
        language=language,
        overwrite=True,
        settings={"bm25.segmenter": segmenter},
    )
    searcher = isthmus.open_searcher(folder)
    total = 0.0
    for number, title in enumerate(sections):
        if searcher.has_tokens(title):
            (ranking,) = searcher.search([Query("query", title)], 10)
            ids = ranking.document_ids
            total += 1 / (1 + ids.index(str(number))) if str(number) in ids else 0.0
    return total / len(sections)


def main() -> None:
    """Prints a row per language of the book."""
    print("| language | sections | as English | by its language | by words of a dictionary |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for folder in sorted(Path(sys.argv[1]).glob("*/")):
        sections = _sections(folder)
        code = folder.name[:2]
        with tempfile.TemporaryDirectory() as scratch:
            found = [
                _mean_reciprocal_rank(sections, language, Path(scratch))
                for language in ("english", {"cs": "none", "vi": "none"}.get(code, code))
            ]
            if code in ("ja", "ko", "th", "zh"):
                found.append(_mean_reciprocal_rank(sections, code, Path(scratch), "words"))
        cells = [folder.name, str(len(sections)), *(f"{each:.3f}" for each in found)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
