from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.collections import Problems
from isthmus.collections.formats.folder import Folder
from isthmus.errors import InputError
from isthmus.records import Document
from isthmus.text.passages import Cut, Cutter


def write(folder: Path, name: str, content: str | bytes) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def only(folder: Path) -> Document:
    (document,) = Folder(folder).documents()
    return document


def test_files_below_in_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b/c.html", "ignored.pdf", ".hidden/x.txt", "C.TXT"):
        write(tmp_path, name, "text")
    assert [d.id for d in Folder(tmp_path).documents()] == [
        "C.TXT",
        "a/b/c.html",
        "a/z.md",
        "b.txt",
    ]


def test_white_space_in_names_is_encoded_in_ids(tmp_path: Path) -> None:
    write(tmp_path, "old notes/a\u2003b\tc.txt", "text")
    assert only(tmp_path).id == "old%20notes/a%E2%80%83b%09c.txt"
    write(tmp_path, "old%20notes/a\u2003b\tc.txt", "another")
    with pytest.raises(InputError, match="duplicate id"):
        list(Folder(tmp_path).documents())


def test_one_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "text")
    with pytest.raises(InputError, match="is a file, not a folder"):
        Folder(tmp_path / "a.txt")


def test_the_first_markdown_heading_is_the_title(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "```\n# a comment\n```\n\n## The title ##\nText.\n# Another\n")
    assert only(tmp_path) == Document(
        "a.md", "```\n# a comment\n```\n\nText.\n# Another", "The title"
    )


@pytest.mark.parametrize(
    ("page", "title", "text"),
    [
        ("---\ntitle: 'A: b'\ntags:\n- c\n---\n# Own\nText.", "A: b", "# Own\nText."),
        ("---\r\nlayout: x\r\nTitle: A: b\r\n---\r\n# A: b\r\nText.", "A: b", "Text."),
        ("---\ntitle: >\n  Two\n  lines\n...\nText.", "Two lines", "Text."),
        ("---\ntitle: 1.10\n---\nText.", "1.10", "Text."),
        ("---\ntitle:\xa0x\n---\nText.", "x", "Text."),
        ("---\n# no title\ndate: 2024-01-01\n---\n# Own\nText.", "Own", "Text."),
        ("---\nA text between lines\n---\n", "", "---\nA text between lines\n---"),
        ("---\ntitle: never closed", "", "---\ntitle: never closed"),
        ("Title\n=====\nText.\n\nPart\n---\nMore.", "Title", "Text.\n\n## Part\nMore."),
        ("Two lines\nof text\n---\n- item\n---\n\n---", "", None),
        ("```\na\n---\n```\n| a |\n---\n    code\n---", "", None),
    ],
)
def test_front_matter_and_underlined_headings(
    page: str, title: str, text: str | None, tmp_path: Path
) -> None:
    write(tmp_path, "a.md", page)
    found = only(tmp_path)
    assert (found.text, found.title) == (page if text is None else text, title)


def test_what_else_front_matter_says_is_metadata(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.md",
        "---\nTitle: A\ndate: 2024-01-01\n# a comment\ntags:\n- c\n- d\n\nyear: 2024\n"
        "'draft': false\nnote: a: b\nlist: [1, 2.5]\nnull: x\nnone:\nlayout: {a: b}\n"
        "year: 2025\n---\nText.",
    )
    assert only(tmp_path).metadata == {
        "date": "2024-01-01",
        "tags": ["c", "d"],
        "year": 2024,
        "draft": False,
        "note": "a: b",
        "list": [1, 2.5],
        "null": "x",
    }


def test_headings_of_html_are_headings_of_passages(tmp_path: Path) -> None:
    words = "word " * 30
    write(
        tmp_path,
        "a.html",
        f"<title>Page</title><h1>Page</h1><p>{words}<h1>Top</h1><p>{words}<pre># rm -r /\n</pre>"
        "<h2 id=x><div>In <b>two</b></div>\n lines<a href=#x>¶</a></h2>"
        f"<p>{words}<h3></h3><h3>never closed<p>{words}<h4>{words * 3}</h4>",
    )
    document = only(tmp_path)
    lines = [line for line in document.text.splitlines() if "#" in line]
    assert lines == ["# Top", " # rm -r /", "## In two lines"]
    found = Cutter(Cut(length=40, overlap=0)).passages([document])
    assert [passage.heading for passage in found][:3] == ["", "Top", "Top › In two lines"]
    write(tmp_path, "a.html", "<h1>Only a heading</h1># and a text")
    assert only(tmp_path) == Document("a.html", "# and a text", "Only a heading")


def test_html_is_what_a_reader_sees(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.html",
        "<html><head><title>A &amp; B</title><style>p {color: red}</style></head><body>"
        "<script>var x = '<p>no</p>';</script><h1>Head</h1><p>One <b>bo</b>ld\nword.</p>"
        "<!-- hidden --><ul><li>first<li>second</ul>a &lt; b<br>end",
    )
    assert only(tmp_path) == Document(
        "a.html", "# Head\nOne bold word.\nfirst\nsecond\na < b\nend", "A & B"
    )


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a < b, a <3, x<y z>w", "a < b, a <3, x\nw"),
        ("<p title='a > b' data-x=\"'>\">one</p title='>'>two", "one\n'>two"),
        ("<p title=it's>one</p><P CLASS = x/y>two</P\n>", "one\ntwo"),
        ("<script src=x/>alert()</SCRIPT >one<script src='x'/>two", "onetwo"),
        ("<!doctype html><?xml version='1'?>one<![if IE]>two<![endif]-->", "onetwo"),
        ("one<!-- <p>no</p> -- no -->two<![CDATA[no > no]]>three", "onetwothree"),
        ("one<template>no<noscript>no</noscript>no</template>two", "onetwo"),
        ("&#65;&#x42;&copy;&nosuch;&amp;lt;\0&#0000000000067;", "AB\xa9&nosuch;&lt; C"),
        (f"one&#{'9' * 5_000};", "one\ufffd"),
        ("one<p class='two", "one"),
        ("one<!-- two", "one"),
        ("one<![<![", "one"),
        ("one</", "one"),
        ("one<style>two", "one"),
        ("one <", "one <"),
        ("<nav><h1>Site</h1>no</nav>one<button>no</button><footer>no</footer>", "one"),
        ("<nav>never closed<p>one", "never closed\none"),
        ("no<h1>Site<main class=x>one</main>no<main>no</main>", "one"),
        ("no<main>one<nav>no</nav>two", "one\ntwo"),
        ("one<main> </main>two", "one\ntwo"),
        ("one</main>two", "one\ntwo"),
    ],
)
def test_markup_is_no_text(page: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, "a.html", page)
    assert only(tmp_path) == Document("a.html", text)


def test_files_that_cannot_be_read_are_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"na\xefve")
    write(tmp_path, "b.txt", "good")
    write(tmp_path, "c.md", "x" * 50)
    write(tmp_path, "d.md", b"\x1f\x8b torn")
    (tmp_path / os.fsdecode(b"e\xff.txt")).write_text("good")
    problems = Problems(line_limit=30)
    assert [d.id for d in Folder(tmp_path, problems).documents()] == ["b.txt"]
    assert problems.counts == {"wrong encoding": 2, "too long": 1, "unreadable file": 1}
    assert problems.unread == {"a.txt", "c.md", "d.md", os.fsdecode(b"e\xff.txt")}
    assert not problems.without_id
    assert str(tmp_path / "a.txt") in problems.summary()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="whoever runs it may read all")
def test_a_file_without_permission_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "good")
    write(tmp_path, "b.txt", "secret")
    (tmp_path / "b.txt").chmod(0)
    before = Folder(tmp_path).fingerprint()
    assert only(tmp_path).id == "a.txt"
    with pytest.raises(InputError, match="no permission"):
        Folder(tmp_path, Problems("refuse")).fingerprint()
    (tmp_path / "b.txt").chmod(0o600)
    assert Folder(tmp_path).fingerprint() != before


_ACCENTS = "<p>na\xefve \u201ccaf\xe9\u201d \u2014 5 \u20ac"


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<?xml version="1.0" encoding="ISO-8859-1"?><html>', "cp1252"),
        ("<html><meta charset=latin1>", "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=Windows-1252">', "cp1252"),
        ("<!-- <meta charset=utf-8> --><META content='text/html;charset=us-ascii'>", "cp1252"),
        ("<meta charset='iso-8859-15'>", "iso8859-15"),
        ("<meta charset=iso-8859-1>", "utf-8"),  # many templates say so of what is UTF-8
        ("<meta charset=utf-16>", "utf-8"),  # as browsers: read so far, it is none
        ("<meta charset=unicode_escape>", "utf-8"),
        ("<meta charset=nonsense>", "utf-8"),
        ("<meta charset=latin1>", "utf-8-sig"),
        ("<meta charset=latin1>", "utf-16"),
        ("", "utf-16"),
        ("", "utf-8"),
    ],
)
def test_a_page_is_in_the_encoding_that_it_declares(
    head: str, encoding: str, tmp_path: Path
) -> None:
    body = _ACCENTS if encoding != "iso8859-15" else "<p>na\xefve caf\xe9 5 \u20ac"
    write(tmp_path, "a.html", (head + body).encode(encoding))
    assert only(tmp_path).text == body.removeprefix("<p>")


@pytest.mark.parametrize(
    ("charset", "encoding", "text"),
    [
        ("gb2312", "gb18030", "\u4f60\u597d"),
        ("shift_jis", "cp932", "\u3053\u3093\u306b\u3061\u306f"),
        ("iso-2022-jp", "iso2022_jp", "\u3053\u3093"),
        ("euc-kr", "cp949", "\uc548\ub155"),
        ("koi8-r", "koi8-r", "\u041f\u0440\u0438\u0432\u0435\u0442"),
        ("x-unknown", "utf-8", "\u041f"),
    ],
)
def test_other_scripts_are_read_as_declared(
    charset: str, encoding: str, text: str, tmp_path: Path
) -> None:
    page = f"<meta charset={charset}><title>{text}</title><p>{text}"
    write(tmp_path, "a.html", page.encode(encoding))
    assert only(tmp_path) == Document("a.html", text, text)


def test_every_byte_of_a_western_page_is_read(tmp_path: Path) -> None:
    page = b"<meta charset=iso-8859-1><p>" + bytes(range(0x80, 0x100))
    write(tmp_path, "a.html", page)
    text = only(tmp_path).text
    assert text.startswith("\u20ac\x81\u201a")
    assert text.endswith("\xfd\xfe\xff")
    write(tmp_path, "a.html", b"<meta charset=shift_jis><p>\x81")
    problems = Problems("skip")
    with pytest.raises(InputError, match="has no document"):
        list(Folder(tmp_path, problems).documents())
    assert "is not CP932" in problems.summary()


def test_a_text_in_utf_16_is_known_by_its_mark(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "na\xefve \u2014 text".encode("utf-16"))
    assert only(tmp_path).text == "na\xefve \u2014 text"


def test_endings_of_markdown_and_of_texts(tmp_path: Path) -> None:
    write(tmp_path, "a.markdown", "# Title\ntext")
    write(tmp_path, "b.rst", "Title\n=====\n\ntext")
    assert list(Folder(tmp_path).documents()) == [
        Document("a.markdown", "text", "Title"),
        Document("b.rst", "Title\n=====\n\ntext"),
    ]


def test_empty_files_are_left_out_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"a.txt": "", "b.md": " \n", "c.html": "<p> </p>"}.items():
        write(tmp_path, name, text)
    with pytest.raises(InputError, match="has no document"):
        list(Folder(tmp_path).documents())
    write(tmp_path, "d.txt", "text")
    write(tmp_path, "e.md", "# Only a title")
    write(tmp_path, "f.png", "")
    assert [document.id for document in Folder(tmp_path).documents()] == ["d.txt", "e.md"]
    assert capfd.readouterr().err.splitlines() == [
        f"{tmp_path}: 3 empty files skipped, 'a.txt' first",
        f"{tmp_path}: 3 empty files skipped, 'a.txt' first; 1 file of another kind skipped: .png 1",
    ]


def test_what_is_not_read_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "a.PNG", "b/c.png", "d.pdf", "Makefile", ".git/x.png"):
        write(tmp_path, name, "text")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    for _ in range(2):
        list(Folder(tmp_path).documents())
    said = (
        f"{tmp_path}: 5 files of other kinds skipped: .png 2, without an ending 1, .pdf 1, broken "
        "links 1; convert them: pdftotext FILE.pdf\n"
    )
    assert capfd.readouterr().err == said


def test_the_fingerprint_follows_a_moved_file(tmp_path: Path) -> None:
    write(tmp_path, "one/a.txt", "text")
    before = Folder(tmp_path).fingerprint()
    (tmp_path / "two").mkdir()
    (tmp_path / "one/a.txt").rename(tmp_path / "two/a.txt")
    assert Folder(tmp_path).fingerprint() != before
    assert Folder(tmp_path).fingerprint().isalnum(), "plain texts are read as ever"
    write(tmp_path, "b.md", "text")
    assert not Folder(tmp_path).fingerprint().isalnum()
