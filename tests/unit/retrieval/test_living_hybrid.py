"""Several indexes that change together: what an interrupted change keeps."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest

from isthmus.indexes.segments.writer import IndexWriter
from isthmus.retrieval.hybrid_folder import read_hybrid
from isthmus.retrieval.living_hybrid import changing, tidy
from isthmus.retrieval.verbs.index import index


def test_an_interrupted_change_goes_on_where_it_stopped(
    corpus: str, encoder: object, tmp_path: Path
) -> None:
    folder = index(corpus, tmp_path / "index", ["bm25", "model"])
    changed: list[str] = []

    def change(place: Path) -> tuple[int, ...]:
        changed.append(place.name)
        if len(changed) == 2:
            raise KeyboardInterrupt
        with IndexWriter(place) as writer:
            writer.delete(["d0"])
            return astuple(writer.commit())

    with pytest.raises(KeyboardInterrupt), changing(folder, "job") as job:
        job.each(change)
    assert read_hybrid(folder).state == "000001"
    with changing(folder, "job") as job:
        first, second = job.each(change)
    assert changed == ["bm25", "model", "model"], "what was done is not done again"
    assert first == second
    assert first[2] == 1
    assert read_hybrid(folder).state == "000002"
    (folder / "000003").mkdir()
    (folder / ".isthmus.json.partial").touch()
    tidy(folder)
    left = {"000002", "hybrid.json", "isthmus.json"}
    assert {entry.name for entry in folder.iterdir()} == left
