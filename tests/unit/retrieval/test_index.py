"""The verb `index`: what it builds, reuses, resumes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.config.output import only_writer, read_snapshot
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.manifest import workplace
from isthmus.indexes.verification import read_manifest
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import SearchSettings, search


def test_bm25_without_a_model(corpus: str, tmp_path: Path) -> None:
    folder = index(corpus, tmp_path / "index")
    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.documents, manifest.encoder) == ("bm25", 5, None)
    assert index(corpus, tmp_path / "named", "bm25") == tmp_path / "named"
    snapshot = read_snapshot(folder)
    assert snapshot["verb"] == "index"
    assert snapshot["complete"]
    assert snapshot["identity"]["corpus"] == corpus
    assert snapshot["identity"]["model"] == "bm25"
    assert IndexSettings.parse(snapshot["identity"]["settings"], "rerun") == IndexSettings()


@pytest.mark.parametrize("model", [None, "bm25"])
def test_bm25_has_no_backend_to_choose(corpus: str, tmp_path: Path, model: str | None) -> None:
    settings = IndexSettings.parse({"encoding": {"backend": "onnx-int8"}}, "test")
    with pytest.raises(SettingsError, match="encodes nothing") as caught:
        index(corpus, tmp_path / "index", model, settings=settings)
    assert "--model" in caught.value.remedy
    assert not (tmp_path / "index").exists()


def test_dense_index_remembers_its_encoder(corpus: str, tmp_path: Path, encoder: object) -> None:
    (tmp_path / "model").mkdir()
    folder = index(corpus, tmp_path / "index", f"{tmp_path}/./model")
    manifest = read_manifest(folder)
    assert manifest.encoder is not None
    assert manifest.encoder.name == str(tmp_path / "model")
    assert (manifest.documents, manifest.dimension, manifest.titles) == (5, 97, True)


@pytest.mark.parametrize(("common", "alike"), [(200, True), (3, False)])
def test_vectors_that_hardly_differ_are_told(
    common: int, alike: bool, tmp_path: Path, encoder: object, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{'the ' * common}w{number}" for number in range(20)]
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    index(str(tmp_path / "corpus.jsonl"), tmp_path / "index", "model")
    told = " ".join(capsys.readouterr().err.split())
    assert ("20 documents have nearly the same vector" in told) == alike
    assert ("encoding.backend=torch-float32" in told) == alike


def test_same_index_is_reused(
    corpus: str, tmp_path: Path, encoder: object, capsys: pytest.CaptureFixture[str]
) -> None:
    index(corpus, tmp_path / "index", "model")
    index(corpus, tmp_path / "index", "model")
    assert encoder.encoded == 5  # type: ignore[attr-defined]
    assert "nothing to do" in " ".join(capsys.readouterr().err.split())


def test_changed_corpus_is_not_the_same_index(corpus: str, tmp_path: Path) -> None:
    index(corpus, tmp_path / "index")
    with Path(corpus).open("a") as stream:
        stream.write('{"_id": "d9", "text": "more"}\n')
    with pytest.raises(OutputError, match="differs in corpus"):
        index(corpus, tmp_path / "index")


def test_interrupted_indexing_goes_on(
    corpus: str, tmp_path: Path, encoder: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = IndexSettings(block_size=2)
    index(corpus, tmp_path / "whole", "model", settings=settings)
    plain = encoder.encode_documents  # type: ignore[attr-defined]
    encoder.encoded = 0  # type: ignore[attr-defined]

    def interrupted(documents: list[object]) -> np.ndarray:
        if encoder.encoded == 4:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return plain(documents)

    monkeypatch.setattr(encoder, "encode_documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index(corpus, tmp_path / "index", "model", settings=settings)
    assert workplace(tmp_path / "index").is_dir()
    assert not (tmp_path / "index").exists()
    monkeypatch.setattr(encoder, "encode_documents", plain)
    index(corpus, tmp_path / "index", "model", settings=settings)
    assert encoder.encoded == 5  # type: ignore[attr-defined]
    for name in ("vectors.npy", "documents.arrow", "order.npy", "manifest.json"):
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "index" / name).read_bytes() == whole


def test_titles_are_the_encoders_choice(corpus: str, tmp_path: Path, encoder: object) -> None:
    with pytest.raises(MismatchError) as caught:
        index(corpus, tmp_path / "index", "model", settings=IndexSettings(titles=False))
    assert caught.value.what == (
        "titles = False, but the encoder 'model' was made with titles = True"
    )


def test_bad_corpora_and_outputs(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        index(str(tmp_path / "missing.jsonl"), tmp_path / "index")
    with pytest.raises(OutputError, match="already holds something"):
        index(corpus, tmp_path)
    with pytest.raises(OutputError, match="is a file"):
        index(corpus, corpus)


def test_skipped_documents_are_counted(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(corpus).open("a") as stream:
        stream.write('{"_id": "d0", "text": "again"}\n')
    with pytest.raises(InputError, match="duplicate id"):
        index(corpus, tmp_path / "index")
    index(corpus, tmp_path / "index", settings=IndexSettings(problems="skip"))
    assert "skipped 1 x duplicate id" in " ".join(capsys.readouterr().err.split())
    assert read_manifest(tmp_path / "index").documents == 5


def test_approximation_beside_the_index(
    corpus: str, tmp_path: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    index(corpus, tmp_path / "index", "model")
    settings = IndexSettings.parse({"approximate": {"name": "hnsw"}}, "--set")
    index(corpus, tmp_path / "index", "model", settings=settings)
    assert encoder.encoded == 5  # no document again
    assert "hnsw: finds 100.0% of the 5 nearest documents" in capsys.readouterr().err
    found = search(tmp_path / "index", "snow", settings=SearchSettings(backend="hnsw"))
    assert found == search(tmp_path / "index", "snow")
    bare = IndexSettings.parse({"approximate": {"name": "ivf"}, "texts": False}, "--set")
    index(corpus, tmp_path / "bare", "model", settings=bare)
    assert "ivf: finds" in capsys.readouterr().err


def test_approximation_is_refused_before_anything_is_encoded(corpus: str, tmp_path: Path) -> None:
    settings = IndexSettings.parse({"approximate": {"name": "hnsw"}}, "--set")
    with pytest.raises(SettingsError, match="hnsw is not for bm25"):
        index(corpus, tmp_path / "index", settings=settings)
    assert not (tmp_path / "index").exists()


def test_codes_reach_the_index(corpus: str, tmp_path: Path, encoder: Any) -> None:
    settings = IndexSettings.parse({"codes": "int8"}, "--set")
    folder = index(corpus, tmp_path / "index", "model", settings=settings)
    assert (folder / "codes.npy").is_file()
    assert search(folder, "snow") == search(index(corpus, tmp_path / "plain", "model"), "snow")


def test_another_index_is_overwritten_and_nothing_else_is(corpus: str, tmp_path: Path) -> None:
    folder = index(corpus, tmp_path / "index")
    built = (folder / "manifest.json").read_bytes()
    index(corpus, folder, overwrite=True)
    assert (folder / "manifest.json").read_bytes() == built, "the same index is left as it is"
    other = {"bm25.k1": 2.0}
    with pytest.raises(OutputError, match="another index") as caught:
        index(corpus, folder, settings=other)
    assert "--overwrite" in caught.value.remedy
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"more than an index: notes\.txt"):
        index(corpus, folder, overwrite=True, settings=other)
    (folder / "notes.txt").unlink()
    with only_writer(folder), pytest.raises(OutputError):
        index(corpus, folder, overwrite=True, settings=other)
    assert (folder / "manifest.json").read_bytes() == built
    index(corpus, folder, overwrite=True, settings=other)
    assert (bm25 := read_manifest(folder).bm25) is not None
    assert bm25.k1 == 2.0
    (folder / "order.npy").write_bytes(b"damaged")
    index(corpus, folder, overwrite=True, settings=other)
    assert read_manifest(folder).documents
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "manifest.json").write_text("{}", encoding="utf-8")
    (mine / "notes.npy").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match="not an index"):
        index(corpus, mine, overwrite=True)
    assert len(list(mine.iterdir())) == 2
