"""The first day with files of one's own, from the command line: languages, kinds, what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import isthmus

TEXTS = json.loads(
    (Path(__file__).parents[1] / "unit" / "indexes" / "languages.json").read_text(encoding="utf-8")
)["texts"]
# Words of a section that it holds in another form, and what names or tells the language.
ASKED = {
    "russian": ("протоколами установки", ("--language", "ru"), ""),
    "german": ("Protokolldatei einer Installation", ("--language", "german"), ""),
    "chinese": ("保存安装记录", (), "read as chinese, in pairs of characters"),
    "japanese": ("ログを保存する", (), "read as japanese, in pairs of characters"),
}


@pytest.fixture(scope="module", params=ASKED)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sections of a book as files of all kinds, and some that cannot be read."""
    folder: Path = tmp_path_factory.mktemp("files") / request.param
    folder.mkdir()
    pages = {
        "save-logs": ("html", "<title>{}</title><h2>{}</h2><p>{}"),
        "graphical": ("md", "---\ntitle: '{}'\n---\n{}\n---\n{}"),
    }
    for name, (heading, text) in TEXTS[request.param].items():
        ending, page = pages.get(name, ("md", "# {}\n\n## {}\n\n{}"))
        content = page.format(heading, heading, text)
        (folder / f"{name}.{ending}").write_text(content, encoding="utf-8")
    (folder / "scan.pdf").touch()
    return folder


def test_a_folder_in_its_language(commands: Any, folder: Path, tmp_path: Path) -> None:
    query, named, said = ASKED[folder.name]
    index = tmp_path / "index"
    told = commands.succeed("index", "--corpus", folder, "--output", index, *named).stderr
    assert f"{folder}: 1 file of another kind skipped: .pdf 1" in told
    assert "pdftotext" in told
    assert said in told
    found = commands.succeed("search", index, query, "--json", "--quiet").stdout
    first, *_ = json.loads(found)["hits"]
    assert first["id"] == "save-logs.html"
    assert first["title"] == TEXTS[folder.name]["save-logs"][0]
    assert "no document holds a term" in commands.succeed("search", index, "qqq").stdout


def test_a_language_that_is_not_named_is_noticed(commands: Any, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name, (heading, text) in TEXTS["german"].items():
        (tmp_path / "docs" / f"{name}.txt").write_text(f"{heading}\n\n{text}", encoding="utf-8")
    given = ("index", "--corpus", tmp_path / "docs", "--output", tmp_path / "index")
    assert "read as German (--language names another)" in commands.succeed(*given).stderr


def test_folders_that_are_none(commands: Any, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.pdf").touch()
    refused = commands.run("index", "--corpus", tmp_path / "docs", "--output", tmp_path / "index")
    assert refused.returncode
    assert "it holds .pdf 1" in refused.stderr
    assert "pdftotext FILE.pdf" in refused.stderr
    for name in ("b.txt", "c.md"):
        (tmp_path / "docs" / name).write_bytes(b"\xff")
    refused = commands.run("index", "--corpus", tmp_path / "docs", "--output", tmp_path / "index")
    assert "2 files in all" in refused.stderr
    assert commands.succeed("--version").stdout.strip() == f"isthmus {isthmus.__version__}"
