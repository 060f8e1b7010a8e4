"""Folders of text, markdown and HTML files."""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isthmus.collections.collection import Corpus
from isthmus.collections.document_checks import screened
from isthmus.collections.files import UTF_16_MARKS, fingerprint, open_bytes, report_encoding
from isthmus.collections.formats import collection_format
from isthmus.collections.html_text import decoded_html, read_html
from isthmus.collections.markdown_text import read_markdown, titled
from isthmus.collections.metadata import Others
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, lone_surrogate, readable, shortened, similar
from isthmus.progress import notice
from isthmus.records import Document

_PLAIN = (".txt", ".rst")
_MARKDOWN = (".md", ".markdown")
_HTML = (".html", ".htm")
ENDINGS = (*_PLAIN, *_MARKDOWN, *_HTML)
CONVERSIONS = {".pdf": "pdftotext FILE{}"} | dict.fromkeys(
    (".docx", ".epub", ".odt", ".org", ".rtf", ".tex"), "pandoc FILE{} -o FILE.md"
)
_LONGEST = 200  # characters of a name
_SHOWN = 6  # kinds of files
_READING = 4  # one more whenever other texts are read of the same Markdown and HTML


@collection_format("folder")
class Folder(Corpus):
    """A folder of text, markdown and HTML files: every file is one document.

    Files in folders below it count too, hidden ones do not. The id is the path below the
    folder, with forward slashes, and %20 for a space. The title is that of a Markdown file's
    front matter or of an HTML page, or else its first heading, which is no part of the text;
    what else front matter says is metadata. Files without any text are left out, and counted;
    those that cannot be read are skipped and named, unless problems are refused. Texts are
    UTF-8, or UTF-16 with its mark; an HTML page is in the encoding that it declares.
    """

    in_passages = True  # files are as long as they are: few fit an encoder

    def __init__(self, folder: str | Path, problems: Problems | None = None) -> None:
        self.folder = Path(folder)
        self._problems = problems or Problems()
        if self.folder.is_file():
            raise InputError(
                f"{str(folder)!r} is a file, not a folder",
                "name the folder that holds it; all files there that can be read are documents",
            )
        if not self.folder.is_dir():
            raise InputError(
                f"there is no folder {str(folder)!r}",
                "check the path",
                similar(self.folder),
            )

    def documents(self) -> Iterator[Document]:
        """Every file as a document, in the order of their paths; an error names all bad files."""
        problems = self._problems.reading(str(self.folder))
        try:
            yield from screened(self._documents(problems), problems, str(self.folder))
        except InputError as error:
            if problems.action != "skip":
                error.what += self._others()
            raise

    def _others(self) -> str:
        """What is wrong with the folder where that is more than one thing, to end a message."""
        found = Problems("skip", self._problems.line_limit)
        with suppress(InputError):  # that nothing is left
            for _ in screened(self._documents(found), found, str(self.folder)):
                pass
        if (total := sum(found.counts.values())) < 2:
            return ""
        places = [place for examples in found.examples.values() for place in examples]
        more = f"\n  and {total - len(places):,} more" if total > len(places) else ""
        return f"; {total:,} files in all:\n  " + "\n  ".join(places) + more

    def fingerprint(self) -> str:
        """A digest of the names and bytes of all files, and of how pages are read."""
        files = list(texts_in(self.folder))
        if self._problems.action != "refuse":
            files = [file for file in files if os.access(file, os.R_OK)]
        plain = all(file.name.lower().endswith(_PLAIN) for file in files)
        return fingerprint(files, root=self.folder) + ("" if plain else f"-{_READING}")

    def _documents(self, problems: Problems) -> Iterator[tuple[str, Document]]:
        others: Counter[str] = Counter()
        empty: list[str] = []
        front_matter = Others(str(self.folder))
        for file in texts_in(self.folder, others):
            # White space separates the columns of run files.
            name = re.sub(
                r"\s", lambda found: quote(found[0]), file.relative_to(self.folder).as_posix()
            )
            text = _content(file, name, problems)
            if text is None:
                continue
            title, text, fields = _parts(file.name.lower(), text)
            if text.strip() or title.strip():
                metadata = front_matter.of(fields)
                yield str(file), Document(name, text.strip(), title, metadata=metadata)
            else:  # an empty note is no error
                empty.append(name)
        front_matter.tell()
        said = []
        if empty:
            files = "empty file" if len(empty) == 1 else "empty files"
            said.append(
                f"{len(empty):,} {files} skipped, {shortened(min(empty), _LONGEST)!r} first"
            )
        if others:
            kinds = "file of another kind" if others.total() == 1 else "files of other kinds"
            said += [f"{others.total():,} {kinds} skipped: {tally(others)}", conversions(others)]
        if said:
            _say(f"{self.folder}: {'; '.join(filter(None, said))}")


def _parts(name: str, source: str) -> tuple[str, str, dict[str, Any]]:
    """Title, text and front matter of a file of this name."""
    fields: dict[str, Any] = {}
    if name.endswith(_PLAIN):
        return "", source, fields
    if name.endswith(_MARKDOWN):
        title, text, fields = read_markdown(source)
    else:
        title, text = read_html(source)
    return *titled(title, text), fields


def _content(file: Path, name: str, problems: Problems) -> str | None:
    """The text or page in a file; None, and a report, where it cannot be read."""
    if half := lone_surrogate(name):
        problems.report(
            "wrong encoding",
            str(file),
            f"its name holds {half!r}, half of a surrogate pair, in place of a character",
            "rename the file, whose name is not UTF-8",
            document=name,
            whole_file=True,
        )
        return None
    try:
        with open_bytes(file) as stream:
            content = stream.read(problems.line_limit + 1)
    except InputError as error:
        problems.report(
            "unreadable file", str(file), error.what, error.fix, document=name, whole_file=True
        )
        return None
    if len(content) > problems.line_limit:
        problems.report_length(str(file), name)
        return None
    try:
        if content.startswith(UTF_16_MARKS):
            return content.decode("utf-16")
        if content.startswith(codecs.BOM_UTF8) or not name.lower().endswith(_HTML):
            return content.decode("utf-8-sig")
        return decoded_html(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        report_encoding(error, f"{file}:{line}", problems, name)
        return None


def texts_in(folder: Path, others: Counter[str] | None = None) -> Iterator[Path]:
    """The files to read, in the order of their paths; the kinds of others are counted.

    Pipes, devices, broken links and links to folders are not read.
    """
    ahead = [folder]
    while ahead:
        path = ahead.pop()
        if path == folder or (path.is_dir() and not path.is_symlink()):
            with readable(path):
                entries = sorted(path.iterdir(), key=lambda entry: entry.name, reverse=True)
            ahead += [entry for entry in entries if not entry.name.startswith(".")]
        elif path.name.lower().endswith(ENDINGS) and path.is_file():
            yield path
        elif others is not None:
            others[_kind(path)] += 1


def _kind(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return "broken links"
    if not path.is_file():
        return "links to folders" if path.is_dir() else "pipes and devices"
    return path.suffix.lower() or "without an ending"


def tally(others: Counter[str]) -> str:
    """The kinds of files and how many there are of each: ".png 8, .pdf 4"."""
    kinds = [f"{kind} {count:,}" for kind, count in others.most_common(_SHOWN)]
    return ", ".join(kinds) + ", …" * (len(others) > _SHOWN)


def conversions(kinds: Iterable[str]) -> str:
    """The commands that make files to read of others; empty where none is known."""
    found = [CONVERSIONS[kind].format(kind) for kind in sorted(kinds) if kind in CONVERSIONS]
    return f"convert them: {'; '.join(found)}" if found else ""


@cache
def _say(message: str) -> None:
    notice(message)  # once, however often the folder is read
