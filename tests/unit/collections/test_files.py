from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from isthmus.collections.files import fingerprint, lines
from isthmus.collections.problems import Problems
from isthmus.errors import InputError

CONTENT = "one\ntwo é\nthree\n".encode()
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def read(file: Path, problems: Problems | None = None) -> list[tuple[int, str]]:
    return list(lines(file, problems or Problems()))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compression_is_told_by_content_not_by_name(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "misnamed.txt"
    file.write_bytes(COMPRESSORS[kind](CONTENT))
    assert read(file) == [(1, "one"), (2, "two é"), (3, "three")]


@pytest.mark.parametrize("kind", ["gzip", "xz", "zstd"])
def test_concatenated_archives_are_read_to_the_end(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(COMPRESSORS[kind](CONTENT) + COMPRESSORS[kind](b"four\n"))
    assert read(file)[-1] == (4, "four")


@pytest.mark.parametrize("kind", ["gzip", "xz", "zstd"])
@pytest.mark.parametrize("left", [0.5, 0.98])
def test_a_cut_off_archive_is_refused(kind: str, left: float, tmp_path: Path) -> None:
    noise = b"".join(b"%d\n" % (i * i * 7919 % 1000003) for i in range(50_000))
    whole = COMPRESSORS[kind](noise)
    file = tmp_path / "file"
    file.write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(InputError, match="damaged or cut off"):
        read(file)


def test_byte_order_mark_and_crlf_are_no_content(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\r\n")
    assert read(file) == [(1, "one"), (3, "two")]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a\u2028b\x0bc\n", encoding="utf-8")
    assert read(file) == [(1, "a\u2028b\x0bc")]


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"good\nna\xefve\ngood again\n")
    with pytest.raises(InputError) as caught:
        read(file)
    assert caught.value.what == "wrong encoding: byte 0xef at position 2 is not UTF-8"
    assert caught.value.where == f"{file}:2"
    assert "iconv" in caught.value.remedy
    problems = Problems("skip")
    assert read(file, problems) == [(1, "good"), (3, "good again")]
    assert problems.counts == {"wrong encoding": 1}


def test_missing_file_names_those_that_are_near(tmp_path: Path) -> None:
    for name in ("corpus.jsonl", "README.md", "zzz", "corpses.jsonl"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match="there is no file") as caught:
        read(tmp_path / "corpsu.jsonl")
    assert caught.value.allowed == "an existing file, perhaps corpus.jsonl, corpses.jsonl"
    with pytest.raises(InputError, match="there is no file") as caught:
        read(tmp_path / "12345")
    assert caught.value.allowed == "an existing file"


def test_missing_file_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        read(tmp_path / "nowhere" / "corpus.jsonl")


def test_folder_where_a_file_should_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder where a file should be"):
        read(tmp_path)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_empty_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(COMPRESSORS[kind](b""))
    with pytest.raises(InputError, match="is empty"):
        read(file)


def test_fingerprint_changes_with_content_name_and_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    first = fingerprint([one, two])
    assert first == fingerprint([one, two])
    assert first != fingerprint([two, one])
    two.write_text("c")
    assert first != fingerprint([one, two])
