from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections.problems import LINE_LIMIT, ReadingSettings
from isthmus.errors import InputError
from isthmus.retrieval.index import index


def test_caches_of_documents_that_were_skipped_otherwise_have_another_name() -> None:
    names = [
        ReadingSettings(problems=problems, line_limit=limit).kept
        for problems in (None, "skip", "refuse")
        for limit in (5, LINE_LIMIT)
    ]
    assert len({*names}) == 6


def test_the_limit_reaches_the_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "short"}\n{"_id": "b", "text": "a longer text"}\n')
    with pytest.raises(InputError, match="too long: more than 30 bytes"):
        index(str(corpus), tmp_path / "index", settings={"line_limit": 30})
    skipping = {"line_limit": 30, "problems": "skip"}
    index(str(corpus), tmp_path / "index", settings=skipping)
