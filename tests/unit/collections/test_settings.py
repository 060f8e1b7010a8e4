from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from isthmus.collections.problems import LINE_LIMIT
from isthmus.collections.settings import ReadingSettings
from isthmus.errors import InputError
from isthmus.inspection.settings import VERBS, settings_class
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.update import DeleteSettings, delete


def test_a_default_limit_leaves_no_trace() -> None:
    """Outputs described before there was a limit are found again."""
    assert "line_limit" not in IndexSettings().model_dump()
    assert IndexSettings(line_limit=5).model_dump(mode="json")["line_limit"] == 5
    assert IndexSettings.parse(IndexSettings(line_limit=5).model_dump(), "").line_limit == 5


def test_caches_of_documents_within_another_limit_have_another_name() -> None:
    assert ReadingSettings().kept == "refuse"
    assert ReadingSettings(line_limit=5).kept == "refuse"
    assert ReadingSettings(problems="skip").kept == "skip"
    assert ReadingSettings(problems="skip", line_limit=5).kept == "skip 5"
    assert LINE_LIMIT >= 2**20


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"quickstart"}))
def test_a_verb_that_is_told_what_to_do_with_bad_input_is_told_the_limit(verb: str) -> None:
    settings = settings_class(verb)
    assert ("problems" in settings.model_fields) == issubclass(settings, ReadingSettings)
    assert "Problems(settings.problems)" not in inspect.getsource(inspect.getmodule(settings))


def test_the_limit_reaches_the_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "short"}\n{"_id": "b", "text": "a longer text"}\n')
    with pytest.raises(InputError, match="too long: more than 30 bytes"):
        index(str(corpus), tmp_path / "index", settings={"line_limit": 30})
    skipping = {"line_limit": 30, "problems": "skip"}
    folder = index(str(corpus), tmp_path / "index", settings=skipping)
    ids = tmp_path / "ids.txt"
    ids.write_text("a" * 100 + "\n")
    with pytest.raises(InputError, match="too long: more than 30 bytes"):
        delete(folder, ids=ids, settings=DeleteSettings(line_limit=30))
