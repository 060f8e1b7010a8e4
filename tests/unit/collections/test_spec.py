from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections import open_corpus
from isthmus.errors import InputError, SettingsError


def test_an_unknown_scheme_suggests_the_nearest() -> None:
    with pytest.raises(SettingsError, match="no collection format named 'bier'") as caught:
        open_corpus("bier:scifact")
    assert caught.value.expected.startswith("beir")


@pytest.mark.parametrize(
    ("name", "content", "format_name"),
    [
        ("corpus.jsonl", '{"_id": "1", "text": "t"}\n', "Beir"),
        ("collection.tsv", "1\tt\n", "Msmarco"),
        ("data/psgs_w100.tsv", "1\tt\ta title\n", "Dpr"),
        ("deep/er/notes.md", "t\n", "Folder"),
        ("page.html", "t\n", "Folder"),
    ],
)
def test_folders_speak_for_themselves(
    name: str, content: str, format_name: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    found = open_corpus(str(tmp_path))
    assert type(found).__name__ == format_name
    assert [d.text for d in found.documents()] == ["t"]


@pytest.mark.parametrize(
    ("name", "content", "format_name"),
    [("docs.jsonl", '{"_id": "1", "text": "t"}\n', "Jsonl"), ("docs.tsv", "1\tt\n", "Msmarco")],
)
def test_files_speak_for_themselves(
    name: str, content: str, format_name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    found = open_corpus(str(tmp_path / name))
    assert type(found).__name__ == format_name
    assert [d.text for d in found.documents()] == ["t"]


def test_an_existing_path_with_a_colon_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes:old.jsonl").write_text('{"_id": "1", "text": "t"}\n')
    assert len(list(open_corpus("notes:old.jsonl").documents())) == 1


def test_a_folder_without_texts_says_what_it_holds_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recognises: it holds nothing"):
        open_corpus(str(tmp_path))
    for name in ("a.pdf", "b.pdf", "c.odt", "d.png"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"it holds \.pdf 2, \.odt 1, \.png 1") as caught:
        open_corpus(str(tmp_path))
    assert ".txt, .md, .rst or .html" in caught.value.expected
    expected = "convert them: pandoc FILE.odt -o FILE.md; pdftotext FILE.pdf"
    assert caught.value.fix == expected
    with pytest.raises(InputError, match="no corpus") as caught:
        open_corpus(str(tmp_path / "a.pdf"))
    assert "pdftotext" in caught.value.fix


def test_a_beir_folder_without_its_documents_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name in ("queries.jsonl", "README.md"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=r"holds queries\.jsonl but no corpus\.jsonl"):
        open_corpus(str(tmp_path))
    assert len(list(open_corpus(f"folder:{tmp_path}").documents())) == 1


def test_a_broken_link_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to("elsewhere")
    with pytest.raises(InputError, match="is a link to 'elsewhere', which does not exist"):
        open_corpus(str(tmp_path / "docs"))
