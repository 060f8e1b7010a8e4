"""Files as users have them: plain or compressed, read line by line as strict UTF-8."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash
import zstandard

from isthmus.collections.problems import Problems
from isthmus.errors import InputError, choices, existing

ENDINGS = ("", ".gz", ".zst", ".xz")
"""What a file's name may end in beside its own ending; its content decides how it is read."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHUNK = 2**20
_CONVERT = "convert it, say with `iconv -f LATIN1 -t UTF-8`"


def lines(file: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """The lines that hold something, with their numbers, without their ends (LF or CRLF)."""
    with open_bytes(file) as stream:
        number = 0
        for number, raw in enumerate(stream, start=1):
            if number == 1:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
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
                where=str(file),
                allowed="a file with at least one line",
                remedy="check that it was written or downloaded completely",
            )


def report_encoding(error: UnicodeDecodeError, where: str, problems: Problems) -> None:
    """Reports bytes that are not UTF-8."""
    detail = f"byte 0x{error.object[error.start]:02x} at position {error.start} is not UTF-8"
    problems.report("wrong encoding", where, detail, _CONVERT)


@contextlib.contextmanager
def open_bytes(file: Path) -> Iterator[BinaryIO]:
    """The content of a plain, gzip, zstd or xz file; which of these, its first bytes tell."""
    require_file(file)
    try:
        with file.open("rb") as raw:
            yield _decompressed(raw)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InputError(
            f"the compressed file is damaged or cut off: {error}",
            where=str(file),
            allowed="complete gzip, zstd or xz files, or plain ones",
            remedy="copy or download it again",
        ) from error
    except PermissionError:
        raise InputError(
            f"no permission to read {str(file)!r}",
            where=str(file),
            allowed="a readable file",
            remedy="change its permissions, or copy it",
        ) from None


def require_file(file: Path, what: str = "file") -> None:
    """Refuses a path where there is no file, naming those of a similar name."""
    if file.is_dir():
        raise InputError(
            f"{str(file)!r} is a folder where a file should be",
            where=str(file),
            allowed=choices(file.name, (entry.name for entry in file.iterdir())),
            remedy="name the file itself",
        )
    if not file.exists():
        raise InputError(
            f"there is no {what} {str(file)!r}",
            where=str(file),
            allowed=existing(what, file),
            remedy="check the path",
        )


def find_file(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, compressed or not; None when there is none."""
    candidates = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((file for file in candidates if file.is_file()), None)


def plain_name(file: Path) -> str:
    """The file's name without the ending that tells its compression."""
    return file.stem if file.suffix in ENDINGS[1:] else file.name


def fingerprint(files: Iterable[Path], root: Path | None = None) -> str:
    """A digest of the bytes of all files in the order given, and of their names below the root."""
    digest = xxhash.xxh3_128()
    for file in files:
        require_file(file)
        name = file.relative_to(root).as_posix() if root else file.name
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _decompressed(raw: BinaryIO) -> BinaryIO:
    start = raw.read(6)
    raw.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(raw)  # type: ignore[return-value]
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(raw)  # type: ignore[return-value]
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return io.BufferedReader(_ZstdFrames(raw), _CHUNK)
    return raw


class _ZstdFrames(io.RawIOBase):
    """The content of one zstd frame after another.

    The library's own reader takes the end of a cut-off file for the end of its content.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._ready = memoryview(b"")
        self._left_over = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            compressed = self._left_over or self._raw.read(_CHUNK // 8)
            if not compressed:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(compressed))
            self._left_over = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
