"""A corpus, a tiny encoder, indexes of both, and clients of a server over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.factories import write_encoder

import isthmus
from isthmus.serving.serve import open_app

TEXTS = {
    "river": ("Rivers", "The river bank is wide, and boats go up the river to the old mill."),
    "money": ("Money", "A bank lends money for interest; loans are paid back by and by."),
    "snow": ("Snow", "Snow falls in the mountains, and the river freezes over in winter."),
    "script": ("<script>alert(1)</script>", "A text with <b>marks</b> of HTML & entities."),
    "tokyo": ("東京", "東京の天気は良いです"),
    "turned": ("Right to left", "\u202egnirts desrever\u202c and a river"),
}
METADATA: dict[str, dict[str, Any]] = {
    "river": {"year": 2019, "lang": "en", "tags": ["water", "boats"]},
    "money": {"year": 2024, "lang": "en"},
    "snow": {"year": 2021, "lang": "en", "tags": ["water"], "draft": True},
    "tokyo": {"year": 2022, "lang": "ja", "place": "/east of here"},
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, an encoder, and the index folder `both`, of BM25 and the encoder, with metadata."""
    place = tmp_path_factory.mktemp("served")
    records = [
        {"_id": i, "title": title, "text": text, **METADATA.get(i, {})}
        for i, (title, text) in TEXTS.items()
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (place / "corpus.jsonl").write_text(lines, encoding="utf-8")
    texts = [text for _, text in TEXTS.values()] * 9
    write_encoder(place / "encoder", texts, 150, document_max_length=64, pooling="mean")
    both = ["bm25", str(place / "encoder")]
    exact = {"encoding.backend": "torch-float32"}  # how bf16 rounds depends on the padding
    isthmus.index(str(place / "corpus.jsonl"), place / "both", both, settings=exact)
    return place


@pytest.fixture
def own(folders: Path, tmp_path: Path) -> Path:
    """A copy of the index folder, to be changed."""
    return Path(shutil.copytree(folders / "both", tmp_path / "both"))


@pytest.fixture
def open_client() -> Iterator[Callable[..., TestClient]]:
    """Opens a server and gives its client; all are closed when the test ends."""
    with ExitStack() as clients:

        def opened(index: Path, **options: Any) -> TestClient:
            app = open_app(index, **options)
            return clients.enter_context(TestClient(app, base_url="http://localhost"))

        yield opened


@pytest.fixture(scope="module")
def client(folders: Path) -> Iterator[TestClient]:
    """A client of a server that nothing changes."""
    app = open_app(folders / "both")
    with TestClient(app, base_url="http://localhost") as http:
        yield http
