"""Two writers of one output: the second is refused before it touches anything, then it works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.config.output import only_writer, reserved
from isthmus.errors import OutputError
from isthmus.retrieval.change import add, delete, sync
from isthmus.retrieval.index import index
from isthmus.retrieval.search import search_file

# What each verb writes to, and whether the lock lies beside it.
VERBS: dict[str, tuple[str, bool, Callable[[dict[str, str], Path], object]]] = {
    "index": ("new", False, lambda f, o: index(f["corpus"], o)),
    "a field": ("words", False, lambda f, o: index(f["corpus"], o, "model")),
    "replacing": ("index", False, lambda f, o: index(f["more"], o, overwrite=True)),
    "search": ("new.trec", True, lambda f, o: search_file(f["index"], f["queries"], o)),
    "add": ("index", False, lambda f, o: add(o, f["more"])),
    "delete": ("index", False, lambda f, o: delete(o, ["d1"])),
    "sync": ("index", False, lambda f, o: sync(o, f["rest"])),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_refused_while_another_writes(
    verb: str, corpus: str, more: str, folder: Path, tmp_path: Path
) -> None:
    files = {"corpus": corpus, "more": more, "index": str(folder)}
    index(corpus, tmp_path / "words")
    for name, text in (
        ("queries", "q1\triver bank\nq2\tsnow\n"),
        ("rest", "".join(Path(corpus).read_text().splitlines(keepends=True)[1:])),
    ):
        files[name] = str(tmp_path / f"{name}.{'tsv' if name == 'queries' else 'jsonl'}")
        Path(files[name]).write_text(text)

    def snapshot() -> dict[Path, bytes]:
        every = [file for file in tmp_path.rglob("*") if file.is_file()]
        return {file: file.read_bytes() for file in every if not file.name.endswith(".lock")}

    name, beside, run = VERBS[verb]
    output = tmp_path / name
    with reserved(output) if beside else only_writer(output):
        before = snapshot()
        with pytest.raises(OutputError, match="another process is writing into") as caught:
            run(files, output)
        assert str(output) in caught.value.what
        assert snapshot() == before, "nothing was touched"
    run(files, output)
    assert snapshot() != before
