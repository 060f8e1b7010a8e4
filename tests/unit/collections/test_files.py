from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from isthmus.collections.files import fingerprint, lines
from isthmus.collections.problems import Problems
from isthmus.errors import InputError

CONTENT = "one\ntwo é\nthree\n".encode()
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}


def read(file: Path, problems: Problems | None = None) -> list[tuple[int, str]]:
    return list(lines(file, problems or Problems()))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compression_is_told_by_content_not_by_name(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "misnamed.txt"
    file.write_bytes(COMPRESSORS[kind](CONTENT))
    assert read(file) == [(1, "one"), (2, "two é"), (3, "three")]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_concatenated_archives_are_read_to_the_end(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(COMPRESSORS[kind](CONTENT) + COMPRESSORS[kind](b"four\n"))
    assert read(file)[-1] == (4, "four")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
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
    assert "wrong encoding: byte 0xef at position 2 is not UTF-8" in caught.value.what
    assert f"{file}:2" in caught.value.what
    assert "iconv" in caught.value.fix
    problems = Problems("skip")
    assert read(file, problems) == [(1, "good"), (3, "good again")]
    assert problems.counts == {"wrong encoding": 1}


def test_missing_file_names_those_that_are_near(tmp_path: Path) -> None:
    for name in ("corpus.jsonl", "README.md", "zzz", "corpses.jsonl"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match="there is no file") as caught:
        read(tmp_path / "corpsu.jsonl")
    assert caught.value.expected == f"{tmp_path / 'corpus.jsonl'}, {tmp_path / 'corpses.jsonl'}"
    with pytest.raises(InputError, match="there is no file") as caught:
        read(tmp_path / "12345")
    assert caught.value.expected == ""


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


def zstd_bomb(content: int) -> bytes:
    """A zstd frame of so many letters a, four bytes for every 128 KiB of them."""
    blocks = content // 2**17
    header = b"\x28\xb5\x2f\xfd\x00\x38"  # content of unknown size, window of 128 KiB
    block = (2**17 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (1 << 1 | 1).to_bytes(3, "little") + b"a"  # of no letter
    return header + block * blocks + last


@pytest.mark.parametrize(("kind", "most"), [("gzip", 20), ("zstd", 20)])
def test_a_bomb_is_read_in_bounded_memory(kind: str, most: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    pack = COMPRESSORS[kind]
    bomb = zstd_bomb(2**28) if kind == "zstd" else pack(b"a" * 2**20) * 2**5
    file.write_bytes(pack(b"first\n") + bomb + pack(b"\nlast\n"))
    problems = Problems("skip", line_limit=2**20)
    pool = pyarrow.default_memory_pool()
    before = pool.max_memory()
    tracemalloc.start()
    try:
        found = read(file, problems)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pool.max_memory() - before < most * 2**20
    assert found == [(1, "first"), (3, "last")]
    assert problems.counts == {"too long": 1}
    assert peak < most * 2**20


def test_a_zstd_frame_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    header = b"\x28\xb5\x2f\xfd\x00\x90"  # content of unknown size, window of 256 MiB
    last = (5 << 3 | 1).to_bytes(3, "little") + b"line\n"
    file.write_bytes(header + last)
    with pytest.raises(InputError, match="too much memory") as caught:
        read(file)
    assert "128 MiB" in caught.value.fix
    file.write_bytes(header[:5] + b"\x38" + last)  # of 128 KiB
    assert read(file) == [(1, "line")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_over_the_limit_is_named_or_counted(end: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"short\n12345678" + end)
    with pytest.raises(InputError) as caught:
        read(file, Problems(line_limit=7))
    assert "too long: more than 7 bytes" in caught.value.what
    assert f"{file}:2" in caught.value.what
    assert "--set line_limit=BYTES" in caught.value.fix
    problems = Problems("skip", line_limit=7)
    assert read(file, problems) == [(1, "short")]
    assert problems.counts == {"too long": 1}


def test_a_line_as_long_as_the_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1234567\nabcdefg\nABCDEFG")
    assert len(read(file, Problems(line_limit=7))) == 3


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe or a device"):
        read(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe or a device"):
        fingerprint([tmp_path / "pipe"])


def test_a_link_to_itself_and_a_name_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "x" * 5000):
        with pytest.raises(InputError):
            read(tmp_path / name)


def test_the_fingerprint_of_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.txt")
    file.write_text("text")
    other = tmp_path / "cafe.txt"
    other.write_text("text")
    assert fingerprint([file]) != fingerprint([other])
