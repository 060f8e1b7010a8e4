from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isthmus.collections import open_collection
from isthmus.collections.formats.docstrings import Docstrings
from isthmus.errors import SettingsError

FILLER = " ".join(f"word{'abcdefghij'[i % 10]}{'klmnopqrst'[i // 10]}" for i in range(25))
SIDE_EFFECT = "raise SystemExit('documentation must never run')\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for packages, with a distribution that lists what is put there.

    No other distribution is on the path: to read what they all list takes most of a second.
    """
    standard = [folder for folder in sys.path if "site-packages" not in folder]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *standard])
    return tmp_path


def install(folder: Path, sources: dict[str, str | bytes]) -> None:
    for name, source in sources.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source if isinstance(source, bytes) else (SIDE_EFFECT + source).encode())
    information = folder / "isthmus_sample-1.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Name: isthmus_sample\nVersion: 1\n")
    (information / "RECORD").write_text("".join(f"{name},,\n" for name in sources))


def function(name: str, documentation: str) -> str:
    return f"def {name}():\n    {documentation!r}\n"


def read(**settings: object) -> Docstrings:
    return Docstrings(packages=["alpha", "beta"], **settings)  # type: ignore[arg-type]


def test_the_first_sentence_becomes_the_query_and_leaves_the_text(installed: Path) -> None:
    text = f"Split an array into equal chunks, e.g. four.\n\n{FILLER}"
    install(installed, {"alpha.py": function("chunks", text)})
    found = read()
    (document,) = found.documents()
    (query,) = found.queries()
    assert (document.id, document.title, document.text) == ("alpha.chunks", "alpha.chunks", FILLER)
    assert query.text == "Split an array into equal chunks, e.g. four."
    assert found.judgements("train") == {query.id: {"alpha.chunks": 1}}
    assert query.id != document.id
    assert found.count() == 1


@pytest.mark.parametrize(
    "text",
    [
        f"Too short.\n\n{FILLER}",
        "A real sentence of several words. But little is left after it.",
        f"Alias for field number 0 of this tuple.\n\n{FILLER}",
        f"chunks(array, size, axis, number of parts)\n\n{FILLER}",
        f"size (`int`, optional): The number of parts to make.\n\n{FILLER}",
        f">>> chunks the array in four parts\n\n{FILLER}",
        f"The four parts of it\n====================\n\n{FILLER}",
        f"The following things are all there is:\n\n{FILLER}",
    ],
)
def test_documents_whose_first_sentence_is_no_query_stay_whole(text: str, installed: Path) -> None:
    install(installed, {"alpha.py": function("chunks", text)})
    found = read()
    assert [d.text for d in found.documents()] == [text]
    assert list(found.queries()) == []


def test_a_sentence_of_several_documents_is_nobodys_query(installed: Path) -> None:
    sentence = "Return the shape of this object."
    source = function("one", f"{sentence} One {FILLER}") + function("two", f"{sentence} {FILLER}")
    install(installed, {"alpha.py": source})
    found = read()
    assert list(found.queries()) == []
    assert all(document.text.startswith(sentence) for document in found.documents())


def test_only_public_objects(installed: Path) -> None:
    source = (
        '"""The module alpha."""\n'
        "if True:\n    class Public:\n        'A class.'\n"
        "        def method(self):\n            'A method.'\n"
        "            def inner(): 'Not reachable.'\n"
        "        def _hidden(self): 'Hidden.'\n"
        "        def __init__(self): 'Initialised.'\n"
        "async def coroutine(): 'A coroutine.'\n"
        "class _Private:\n    def method(self): 'Of a private class.'\n"
    )
    install(
        installed,
        {
            "alpha/__init__.py": source.encode(),
            "alpha/_inner.py": function("hidden", "In a private module."),
            "alpha/tests/test_it.py": function("test_it", "A test."),
            "alpha/conftest.py": function("fixture", "A fixture."),
            "alpha/open.py": function("shown", "In a public module."),
        },
    )
    assert [d.id for d in read().documents()] == [
        "alpha",
        "alpha.Public",
        "alpha.Public.method",
        "alpha.coroutine",
        "alpha.open.shown",
    ]


def test_what_private_modules_define_is_found_where_it_is_offered(installed: Path) -> None:
    install(
        installed,
        {
            "alpha/__init__.py": "from .linear import norm\nfrom ._core import *\n",
            "alpha/linear/__init__.py": "from ._linear import *\n",
            "alpha/linear/_linear.py": "__all__ = ['norm']\n"
            + function("norm", "The norm.")
            + function("secret", "Not offered."),
            "alpha/_core/__init__.py": "from .shapes import reshape as shape\n"
            "from alpha import *\n",
            "alpha/_core/shapes.py": function("reshape", "The shape."),
            "alpha/plain.py": "from ._tools import tool\n" + function("used", "Uses a tool."),
            "alpha/_tools.py": function("tool", "A tool."),
        },
    )
    assert [d.id for d in read().documents()] == ["alpha.norm", "alpha.plain.used", "alpha.shape"]


def test_splits_go_by_package_and_share_nothing(installed: Path) -> None:
    one = function("one", f"Count the words of a text. {FILLER} one")
    two = function("two", f"Turn a page of a book. {FILLER} two")
    install(installed, {"alpha.py": one, "beta.py": two})
    found = read(splits={"test": ["beta"]})
    assert found.splits() == ["train", "test"]
    assert found.judgements("train") == {"query:alpha.one": {"alpha.one": 1}}
    assert found.judgements("test") == {"query:beta.two": {"beta.two": 1}}
    with pytest.raises(SettingsError, match="no split named 'dev'"):
        found.judgements("dev")
    assert found.fingerprint() != read(splits={"test": ["alpha"]}).fingerprint()


def test_broken_sources_are_counted_and_absent_packages_named(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        installed,
        {
            "alpha/__init__.py": function("good", "A good one."),
            "alpha/broken.py": "def (",
            "alpha/latin.py": b"'''na\xefve'''\n",
        },
    )
    found = Docstrings(packages=["alpha", "not_installed_anywhere"])
    assert [d.id for d in found.documents()] == ["alpha.good"]
    assert found.problems.counts == {"broken source": 2}
    assert "not_installed_anywhere" in capsys.readouterr().err


def test_the_standard_library_is_read_without_importing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    found = open_collection("docstrings:json, statistics, tabnanny")
    documents = {document.id: document for document in found.documents()}
    assert {"json.loads", "json.JSONDecoder", "statistics.median", "tabnanny"} <= documents.keys()
    assert "statistics._sum" not in documents
    queries = {query.id: query.text for query in found.queries()}
    sentence = queries["query:statistics.median"]
    assert sentence == "Return the median (middle value) of numeric data."
    assert sentence not in documents["statistics.median"].text
    assert "tabnanny" not in sys.modules
