"""Files as users have them: plain or compressed, read line by line as strict UTF-8."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

from isthmus.collections.problems import Problems
from isthmus.errors import InputError, choices, readable, similar

ENDINGS = ("", ".gz", ".zst")
"""What a file's name may end in beside its own ending; its content decides how it is read."""

UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHUNK = 2**20
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by their first bytes
_CONVERT = "convert it, say with `iconv -f {} -t UTF-8`"


def lines(file: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """The lines that hold something, with their numbers, without their ends (LF or CRLF)."""
    most = problems.line_limit + 1  # and the line feed
    with open_bytes(file) as stream:
        number = 0
        while raw := stream.readline(most):
            number += 1
            if len(raw) == most and not raw.endswith(b"\n"):
                problems.report_length(f"{file}:{number}")
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(_CHUNK)
                continue
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                report_encoding(error, f"{file}:{number}", problems)
                continue
            line = line.rstrip("\r\n")
            if line and not line.isspace():
                yield number, line
        if number == 0:
            raise InputError(
                f"{str(file)!r} is empty",
                "check that it was written or downloaded completely",
            )


def report_encoding(
    error: UnicodeDecodeError, where: str, problems: Problems, file: str | None = None
) -> None:
    """Reports bytes that are not in their encoding; `file` is the id of a whole file that is."""
    name = error.encoding.upper()
    detail = f"byte 0x{error.object[error.start]:02x} at position {error.start} is not {name}"
    # Without a mark nobody can say; the commonest is a guess.
    guess = "UTF-16" if error.object.startswith(UTF_16_MARKS) else "LATIN1"
    fix = _CONVERT.format(guess) if name == "UTF-8" else "correct the encoding that it declares"
    problems.report("wrong encoding", where, detail, fix, file, file is not None)


@contextlib.contextmanager
def open_bytes(file: Path) -> Iterator[BinaryIO]:
    """The content of a plain, gzip or zstd file; which of these, its first bytes tell."""
    require_file(file)
    try:
        with readable(file), file.open("rb") as raw:
            yield _decompressed(raw)
    except OSError as error:  # pyarrow's own, without a number
        raise InputError(
            f"{str(file)!r} is damaged or cut off: {error}",
            "copy or download it again; one that takes more than 128 MiB of memory must be "
            "decompressed first",
        ) from error


def require_file(file: Path, what: str = "file") -> None:
    """Refuses a path where there is no file, naming those of a similar name."""
    with readable(file):
        if file.is_dir():
            raise InputError(
                f"{str(file)!r} is a folder where a file should be",
                "name the file itself",
                choices(file.name, (entry.name for entry in file.iterdir())),
            )
        if file.is_symlink() and not file.exists():
            raise InputError(
                f"{str(file)!r} is a link to {str(file.readlink())!r}, which does not exist",
                f"correct the link, or name the {what} itself",
            )
        if not file.exists():
            raise InputError(
                f"there is no {what} {str(file)!r}",
                "check the path",
                similar(file),
            )
        if not file.is_file():
            raise InputError(
                f"{str(file)!r} is a pipe or a device, which can be read only once",
                "write its content to a file first",
            )


def find_file(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, compressed or not; None when there is none."""
    candidates = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((file for file in candidates if file.is_file()), None)


def plain_name(file: Path) -> str:
    """The file's name without the ending of its compression."""
    return file.stem if file.suffix in ENDINGS[1:] else file.name


def fingerprint(files: Iterable[Path], root: Path | None = None) -> str:
    """A digest of the bytes of all files in the order given, and of their names below the root."""
    digest = xxhash.xxh3_128()
    for file in files:
        require_file(file)
        name = file.relative_to(root).as_posix() if root else file.name
        with readable(file), file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _decompressed(raw: BinaryIO) -> BinaryIO:
    start = raw.read(4)
    raw.seek(0)
    kind = next((kind for mark, kind in _COMPRESSIONS.items() if start.startswith(mark)), None)
    if kind is None:
        return raw
    from pyarrow import CompressedInputStream

    return io.BufferedReader(CompressedInputStream(raw, kind), _CHUNK)


def tab_lines(
    file: Path, problems: Problems, widths: tuple[int, ...]
) -> Iterator[tuple[str, list[str]]]:
    """The columns of each line with its place; lines of another width are reported."""
    expected = " or ".join(map(str, widths))
    for number, line in lines(file, problems):
        columns = line.split("\t")
        where = f"{file}:{number}"
        if len(columns) not in widths:
            detail = f"{len(columns)} columns separated by tabs where {expected} are expected"
            problems.report("broken line", where, detail, "correct the line")
        elif not columns[0].strip():
            problems.report("broken line", where, "the id is empty", "give every line an id")
        else:
            columns[0] = columns[0].strip()
            yield where, columns
