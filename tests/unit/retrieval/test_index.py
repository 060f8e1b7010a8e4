"""The verb `index`: what it builds, reuses, resumes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.config.output import only_writer, read_snapshot, write_snapshot
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.verification import read_manifest
from isthmus.inspection.doctor import doctor
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import search


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


def test_titles_are_the_encoders_choice(corpus: str, tmp_path: Path, encoder: object) -> None:
    with pytest.raises(MismatchError) as caught:
        index(corpus, tmp_path / "index", "model", settings=IndexSettings(titles=False))
    assert (
        "titles = False, but the encoder 'model' was trained with titles = True"
    ) in caught.value.what


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


def test_another_index_is_overwritten_and_nothing_else_is(corpus: str, tmp_path: Path) -> None:
    folder = index(corpus, tmp_path / "index")
    built = (folder / "manifest.json").read_bytes()
    index(corpus, folder, overwrite=True)
    assert (folder / "manifest.json").read_bytes() == built, "the same index is left as it is"
    other = {"bm25.k1": 2.0}
    with pytest.raises(OutputError, match="another index") as caught:
        index(corpus, folder, settings=other)
    assert "--overwrite" in caught.value.fix
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


def test_what_isthmus_made_is_overwritten_even_where_it_is_damaged(
    corpus: str, tmp_path: Path, encoder: object
) -> None:
    folder = tmp_path / "index"
    both, other = ["bm25", "model"], {"bm25.k1": 2.0}
    index(corpus, folder, both)
    with pytest.raises(OutputError, match="indexes of several retrievers") as caught:
        index(corpus, folder)
    assert "--overwrite" in caught.value.fix
    index(corpus, folder, overwrite=True)
    assert read_manifest(folder).kind == "bm25"
    for damage in (["manifest.json"], ["manifest.json", "isthmus.json"]):
        for name in damage:
            (folder / name).write_text("{", encoding="utf-8")
        index(corpus, folder, overwrite=True)
        assert read_manifest(folder).documents == 5
    (folder / "manifest.json").unlink()
    with pytest.raises(OutputError, match="a damaged index") as caught:
        index(corpus, folder)
    assert "--overwrite" in caught.value.fix
    index(corpus, folder, both, overwrite=True)
    for damaged in ("hybrid.json", "000001/bm25/manifest.json"):
        (folder / damaged).write_text("{", encoding="utf-8")
        (wrong,) = (one for one in doctor([folder]) if not one.ok)
        assert "--overwrite" in wrong.fix
        index(corpus, folder, both, overwrite=True, settings=other)
        assert len(search(folder, "river")) == 5
    (folder / "000001" / "bm25" / "mine.txt").write_text("mine", encoding="utf-8")
    for models in ("bm25", both):
        with pytest.raises(OutputError, match=r"more than an index: 000001/bm25/mine\.txt"):
            index(corpus, folder, models, overwrite=True)


def test_hidden_files_and_outputs_of_other_verbs_are_not_overwritten(
    corpus: str, tmp_path: Path
) -> None:
    folder = index(corpus, tmp_path / "index")
    (folder / ".git").mkdir()
    with pytest.raises(OutputError, match=r"more than an index: \.git"):
        index(corpus, folder, overwrite=True, settings={"bm25.k1": 2.0})
    run = tmp_path / "run"
    run.mkdir()
    write_snapshot(run, "finetune", {}, {})
    with pytest.raises(OutputError, match="not an index"):
        index(corpus, run, overwrite=True)


def test_a_language_is_named_kept_and_refused_without_bm25(
    tmp_path: Path, encoder: object, capsys: pytest.CaptureFixture[str]
) -> None:
    def language(folder: Path) -> str:
        bm25 = read_manifest(folder).bm25
        assert bm25 is not None
        return bm25.language

    texts = [
        "Das System fragt Sie an diesem Punkt, ob Sie einen Benutzer anlegen wollen.",
        "Die Häuser an der Straße sind nicht mit dem Auto zu erreichen.",
    ]
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    assert language(index(str(corpus), tmp_path / "unnamed")) == "english"
    assert "looks German: --language german stems" in " ".join(capsys.readouterr().err.split())
    german = index(str(corpus), tmp_path / "german", language="german")
    assert [hit.id for hit in search(german, "haus")] == ["d1"]
    index(str(corpus), german)  # the index knows it
    assert language(german) == "german"
    for models in ("model", ["model", "other"]):
        with pytest.raises(SettingsError, match="--language de is of BM25"):
            index(str(corpus), tmp_path / "dense", models, language="de")
