"""A folder of text, markdown and HTML files: every file is one document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from isthmus.collections.collection import Corpus
from isthmus.collections.document_checks import screened
from isthmus.collections.files import fingerprint, open_bytes, report_encoding
from isthmus.collections.html_text import read_html
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, existing, readable
from isthmus.records import Document

ENDINGS = (".txt", ".md", ".html", ".htm")

_HEADING = re.compile(r"#{1,6}[ \t]+(.+)")
_FENCE = re.compile(r"\s*(```|~~~)")


class Folder(Corpus):
    """The documents in a folder and the folders below it, hidden ones left out.

    The id is the path below the folder, with forward slashes. The title is the first markdown
    heading or the HTML title, which then is no longer part of the text.
    """

    in_passages = True  # files are as long as they are: few fit an encoder

    def __init__(self, folder: str | Path, problems: Problems | None = None) -> None:
        self.folder = Path(folder)
        self._problems = problems or Problems()
        if not self.folder.is_dir():
            raise InputError(
                f"there is no folder {str(folder)!r}",
                where=str(folder),
                allowed=f"files that end in {', '.join(ENDINGS)}, in "
                + existing("folder", self.folder),
                remedy="check the path",
            )

    @classmethod
    def open(cls, location: str, problems: Problems) -> Self:
        """The corpus in the folder at this path."""
        return cls(location, problems)

    def documents(self) -> Iterator[Document]:
        """Every file as a document, in the order of their paths; an error names all bad files."""
        problems = self._problems.reading(str(self.folder))
        try:
            yield from screened(self._documents(problems), problems, str(self.folder))
        except InputError as error:
            if problems.action == "refuse":
                error.what += self._others()
            raise

    def _others(self) -> str:
        """What is wrong with the folder where that is more than one thing, to end a message."""
        found = Problems("skip", self._problems.line_limit)
        for _ in screened(self._documents(found), found, str(self.folder)):
            pass
        if (total := sum(found.counts.values())) < 2:
            return ""
        places = [place for examples in found.examples.values() for place in examples]
        more = f"\n  and {total - len(places):,} more" if total > len(places) else ""
        return f"; {total:,} files in all:\n  " + "\n  ".join(places) + more

    def fingerprint(self) -> str:
        """A digest of the names and bytes of all files."""
        return fingerprint(_files(self.folder), root=self.folder)

    def _documents(self, problems: Problems) -> Iterator[tuple[str, Document]]:
        for file in _files(self.folder):
            with open_bytes(file) as stream:
                content = stream.read(problems.line_limit + 1)
            if len(content) > problems.line_limit:
                problems.report_length(str(file))
                continue
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                line = content.count(b"\n", 0, error.start) + 1
                report_encoding(error, f"{file}:{line}", problems)
                continue
            title = ""
            if file.suffix.lower() == ".md":
                title, text = _markdown(text)
            elif file.suffix.lower() != ".txt":
                title, text = read_html(text)
            yield str(file), Document(file.relative_to(self.folder).as_posix(), text.strip(), title)


def _files(folder: Path) -> Iterator[Path]:
    """The files to read, in the order of their paths; pipes, devices and broken links are none."""
    ahead = [folder]
    while ahead:
        path = ahead.pop()
        if path == folder or (path.is_dir() and not path.is_symlink()):
            with readable(path):
                entries = sorted(path.iterdir(), key=lambda entry: entry.name, reverse=True)
            ahead += [entry for entry in entries if not entry.name.startswith(".")]
        elif path.name.lower().endswith(ENDINGS) and path.is_file():
            yield path


def _markdown(text: str) -> tuple[str, str]:
    """The first heading and the text without it; a # within a fenced block is a comment."""
    lines = text.splitlines()
    fenced = False
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
        elif (
            not fenced
            and (heading := _HEADING.fullmatch(line))
            and (title := heading[1].rstrip(" \t#"))
        ):
            return title, "\n".join(lines[:number] + lines[number + 1 :])
    return "", text
