"""An index that follows a folder of files: nothing encoded twice, nothing half done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import MANIFEST


@pytest.fixture
def notes(words: list[str], tmp_path: Path) -> Path:
    """Sixty files, some with spaces in their names."""
    folder, generator = tmp_path / "notes", random.Random(5)
    (folder / "old notes").mkdir(parents=True)
    for number in range(60):
        place = folder / "old notes" if number % 3 == 0 else folder
        text = f"# Note {number}\n\n" + " ".join(generator.choices(words, k=12))
        (place / f"note {number}.md").write_text(text, encoding="utf-8")
    parts = [f"## Part {n}\n\n{' '.join(generator.choices(words, k=150))}." for n in range(5)]
    (folder / "note 58.md").write_text("# Long\n\n" + "\n\n".join(parts), encoding="utf-8")
    return folder


def change(notes: Path) -> dict[str, set[str]]:
    """Adds, changes, renames and deletes some files; what that is for an index."""
    (notes / "new.md").write_text("# New\n\nzebras graze", encoding="utf-8")
    (notes / "note 1.md").write_text("# Note 1\n\nlions sleep", encoding="utf-8")
    retitled = notes / "note 4.md"
    retitled.write_text(retitled.read_text().replace("# Note 4", "# Other"), encoding="utf-8")
    long = (notes / "note 58.md").read_text(encoding="utf-8")
    (notes / "note 58.md").write_text(long.replace("Part 3", "Part 7"), encoding="utf-8")
    (notes / "note 5.md").rename(notes / "renamed.md")
    (notes / "note 7.md").unlink()
    return {
        "added": {"new.md", "renamed.md"},
        "changed": {"note%201.md", "note%204.md", "note%2058.md"},
        "deleted": {"note%205.md", "note%207.md"},
    }


def found(report: isthmus.Sync) -> dict[str, set[str]]:
    return {name: set(getattr(report, name)) for name in ("added", "changed", "deleted")}


def documents(index: Path) -> set[str]:
    """The names of the files that an index has."""
    return set(Index.open(index).ids())


def names(folder: Path) -> set[str]:
    return {
        file.relative_to(folder).as_posix().replace(" ", "%20") for file in folder.rglob("*.md")
    }


def test_an_index_follows_a_folder(commands: Any, model: Path, notes: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    commands.succeed("index", notes, "-m", model, "--output", index)
    same = commands.succeed("sync", index, notes)
    assert "up to date: 60 documents are as they were" in same.stdout
    planned = change(notes)
    state = (index / MANIFEST).read_bytes()
    dry = commands.succeed("sync", index, notes, "--dry-run")
    assert "would add 2: new.md, renamed.md" in dry.stdout
    assert "would replace 3: note%201.md, note%204.md, note%2058.md" in dry.stdout
    assert "would delete 2: note%205.md, note%207.md" in dry.stdout
    assert (index / MANIFEST).read_bytes() == state
    done = commands.succeed("sync", index, notes)
    assert "deleted 2: note%205.md, note%207.md\nleft 55 as they were" in done.stdout
    assert done.stderr.count(f"adding {notes}: 5/5") == 1, "only five documents are encoded"
    assert documents(index) == names(notes)
    assert "up to date: 60" in commands.succeed("sync", index, notes).stdout
    assert planned["added"] < names(notes)
    assert "new.md" in commands.succeed("search", index, "zebras graze", "-k", "3").stdout


def test_what_cannot_be_followed_is_refused(notes: Path, tmp_path: Path) -> None:
    index, other = tmp_path / "index", tmp_path / "other"
    isthmus.index(str(notes), index)
    other.mkdir()
    (other / "foreign.md").write_text("a text", encoding="utf-8")
    with pytest.raises(isthmus.IsthmusError, match="not one of the 60 documents"):
        isthmus.open_index(index).sync(other)
    assert documents(index) == names(notes)
    planned = change(notes)
    assert found(isthmus.open_index(index).sync(notes, dry_run=True)) == planned
    assert found(isthmus.open_index(index).sync(notes)) == planned
    assert not isthmus.open_index(index).sync(notes)
    for file in list(notes.rglob("*.md"))[:3]:  # only deletions: no encoder is needed
        file.unlink()
    assert len(isthmus.open_index(index).sync(notes).deleted) == 3
    assert documents(index) == names(notes)


def test_only_what_cannot_be_read_is_kept(commands: Any, notes: Path, tmp_path: Path) -> None:
    """One bad file neither hides that another is gone, nor takes its own document away."""
    index = tmp_path / "index"
    (notes / "note 2.md").write_text("zebras graze", encoding="utf-8")
    isthmus.index(str(notes), index)
    bad, whole = notes / "note 1.md", (notes / "note 1.md").read_bytes()
    bad.write_bytes(b"\xff")
    (notes / "never read.txt").write_bytes(b"\xff")
    (notes / "note 2.md").unlink()
    ended = commands.run("sync", index, notes)
    assert ended.returncode == 1
    assert "deleted 1: note%202.md\nleft 58 as they were" in ended.stdout
    assert "could not read, and left in the index, 1: note%201.md" in ended.stdout
    assert "up to date" not in ended.stdout
    assert f"{bad}:1: byte 0xff" in ended.stderr
    assert documents(index) == names(notes)
    assert "note%202.md" not in commands.succeed("search", index, "zebras graze").stdout
    again = isthmus.open_index(index).sync(notes, dry_run=True)
    assert (again.undecided, bool(again)) == (("note%201.md",), False)
    with pytest.raises(isthmus.IsthmusError, match="wrong encoding"):
        isthmus.open_index(index).sync(notes, settings={"problems": "refuse"})
    bad.write_bytes(whole)
    assert "up to date: 59" in commands.succeed("sync", index, notes).stdout


def test_a_line_that_cannot_be_read_may_have_been_any_document(
    commands: Any, tmp_path: Path
) -> None:
    corpus, index = tmp_path / "docs.jsonl", tmp_path / "index"
    lines = [f'{{"_id": "{name}", "text": "text {name}"}}\n' for name in "abcd"]
    corpus.write_text("".join(lines) + "broken\n")
    isthmus.index(str(corpus), index, settings={"problems": "skip"})
    same = commands.succeed("sync", index, corpus)  # reads as the index was read
    assert "up to date: 4" in same.stdout
    corpus.write_text("".join(lines[1:]) + "broken\n")
    ended = commands.run("sync", index, corpus)
    assert ended.returncode == 1
    assert "could not read, and left in the index, 1: a" in ended.stdout
    assert documents(index) == set("abcd")
    corpus.write_text("".join(lines[1:]))
    assert "deleted 1: a" in commands.succeed("sync", index, corpus).stdout
