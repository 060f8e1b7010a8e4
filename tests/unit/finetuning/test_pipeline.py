"""Stages as one job: what is refused before any of them starts, and what is done again when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import write_collection

from isthmus.collections import open_collection
from isthmus.config import resolve
from isthmus.config.output import claimed, finish, is_complete, read_snapshot
from isthmus.errors import IsthmusError, OutputError, SettingsError
from isthmus.finetuning import pipeline
from isthmus.finetuning import stages as staging
from isthmus.finetuning.finetune import finetune
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stages import Stage, references, with_folders

FLAGS = {"model": "m", "collection": "c", "output": "o"}


def assemble(stages: Any, **common: Any) -> staging.Pipeline:
    return staging.assemble({**FLAGS, **common, "stages": stages}, where="test")


def refused(stages: Any, **common: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        assemble(stages, **common)
    return caught.value


def mined(model: str, **more: Any) -> dict[str, Any]:
    return {"negatives": {"name": "retriever", "model": model, **more}}


def test_what_stands_beside_the_stages_is_common_to_all() -> None:
    found = assemble(
        {"one": {}, "two": {"training": {"seed": 7}, **mined("stage:one", num_negatives=3)}},
        negatives={"name": "bm25", "num_negatives": 9, "range_min": 5},
        training={"seed": 1, "learning_rate": 0.5},
        temperature=0.1,
    )
    one, two = (stage.settings for stage in found.stages.values())
    assert one.negatives == {"name": "bm25", "num_negatives": 9, "range_min": 5}
    assert two.negatives == {"name": "retriever", "model": "stage:one", "num_negatives": 3}
    assert (one.training.seed, two.training.seed) == (1, 7)
    assert one.training.learning_rate == two.training.learning_rate == 0.5
    assert one.temperature == two.temperature == 0.1


def test_common_settings_reach_only_the_kinds_they_are_meant_for() -> None:
    common: dict[str, Any] = {
        "encoder": "sparse",
        "sparse": {"form": "lexmae"},
        "regularizers": {"flops": {"documents": 0.1}},
        "temperature": 2.0,
        "negatives": "bm25",
        "losses": {"contrastive": {"weight": 2.0}},
    }
    kinds = {"sparse": {}, "dense": {"encoder": "dense"}, "cross": {"encoder": "cross"}}
    found = {name: each.settings for name, each in assemble(kinds, **common).stages.items()}
    assert found["sparse"].regularizers == {"flops": {"documents": 0.1}}
    assert found["sparse"].losses == found["dense"].losses == {"contrastive": {"weight": 2.0}}
    for other in ("dense", "cross"):
        assert not found[other].regularizers
        assert found[other].sparse == FinetuneSettings.model_fields["sparse"].default
    assert found["dense"].temperature == 2.0
    assert list(found["cross"].losses) == ["listwise"]
    # What a stage says itself is not passed over in silence.
    own = {"encoder": "dense", "regularizers": {"flops": {"documents": 0.1}}}
    assert "has no effect on a dense encoder" in refused({"one": own}, **common).what


def test_the_last_retriever_is_the_result() -> None:
    reranker = {"encoder": "cross", "negatives": "bm25"}
    assert assemble({"a": {}, "b": {}, "c": reranker}).last_retriever == "b"
    assert assemble({"a": reranker, "b": reranker}).last_retriever == "b"


REFUSED: list[tuple[Any, str, str]] = [
    # stages, a part of where, a part of what
    ({}, "stages", "holds no stage"),
    ({"a b": {}}, "stages", "a stage cannot be named 'a b'"),
    ({1: {}, "../up": {}}, "stages", "a stage cannot be named '../up'"),
    ({"a": 3}, "stages.a", "stages.a = 3 is not a mapping"),
    ({"a": {"output": "x"}}, "stages.a.output", "belongs to the whole pipeline"),
    ({"a": {"temprature": 1}}, "stage a", "unknown key 'stages.a.temprature'"),
    ({"a": {}, "b": {"negatives": "bm52"}}, "stage b: negatives", "'bm52'"),
    ({"a": mined("stage:a")}, "stage a: negatives.model", "'stage:a' is the stage itself"),
    ({"a": mined("stage:b"), "b": {}}, "stage a: negatives.model", "'stage:b' comes later"),
    ({"a": {}, "b": mined("stage:c")}, "stage b: negatives.model", "'stage:c' is no stage"),
    ({"a": {}, "b": {"model": "./no/such/model"}}, "stage b: model", "no model folder"),
    (
        {"a": {}, "b": {"negatives": ["bm25", mined("stage:x")["negatives"]]}},
        "stage b: negatives.1.model", "'stage:x' is no stage",
    ),
    (
        {"a": {"encoder": "cross", "negatives": "bm25"}, "b": mined("stage:a")},
        "stage b: negatives.model", "is a cross encoder, not a retriever",
    ),
    (
        {"a": {}, "b": {
            "negatives": "bm25", "losses": {"kl": {}},
            "teacher": {"name": "cross_encoder", "model": "stage:a"},
        }},
        "stage b: teacher.model", "is a dense encoder, not a re-ranker",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("stages", "where", "what"), REFUSED)
def test_every_stage_is_checked_before_the_first_starts(
    stages: Any, where: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "train", None)  # nothing may start
    with pytest.raises(IsthmusError) as caught:
        staging.assemble({**FLAGS, "stages": stages}, where="test")
    assert where in caught.value.what
    assert what in caught.value.what
    assert caught.value.fix


def test_references_are_found_wherever_they_stand() -> None:
    found = (
        assemble(
            {
                "a": {},
                "b": {"model": "stage:a", "negatives": ["bm25", mined("stage:a")["negatives"]]},
            }
        )
        .stages["b"]
        .settings
    )
    assert references(found) == {"model": "a", "negatives.1.model": "a"}
    resolved = with_folders(found, {"a": Path("runs/a-1")})
    assert resolved.model == "runs/a-1"
    assert resolved.negatives == [{"name": "bm25"}, {"name": "retriever", "model": "runs/a-1"}]
    assert found.model == "stage:a"


@pytest.mark.parametrize("overrides", [["stages.mind.temperature=2.0"], {"stages.mind": {}}])
def test_an_override_of_a_stage_that_is_none(overrides: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        finetune("c", "m", tmp_path, recipe="three-stage", settings=overrides)
    assert "the recipe has no stage 'mind'" in caught.value.what
    assert caught.value.expected.startswith("mined")


def test_overrides_reach_into_stages() -> None:
    overrides = ["stages.mined.negatives.num_negatives=7", "stages.reranker=null"]
    values = resolve("finetune", "three-stage", FLAGS, [*overrides, "temperature=0.5"])
    with pytest.raises(SettingsError, match="'stage:reranker' is no stage"):
        staging.assemble(values, "test")
    values["stages"]["distilled"]["teacher"]["model"] = "some/reranker"
    stages = staging.assemble(values, "test").stages
    found = {name: stage.settings for name, stage in stages.items()}
    assert list(found) == ["bm25", "mined", "distilled"]
    assert found["mined"].negatives == {
        "name": "retriever", "model": "stage:bm25", "num_negatives": 7, "range_max": 200,
    }  # fmt: skip
    assert found["bm25"].negatives == {"name": "bm25", "num_negatives": 15, "range_max": 1000}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    return write_collection(
        tmp_path / "collection", {"d": "some text"}, {"q": "a query"}, {"train": [("q", "d")]}
    )


class Stages:
    """In the place of training: leaves what a stage leaves, and remembers which ones ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.rounding = 0

    def __call__(self, stage: Stage) -> Path:
        output = stage.output
        source = open_collection(stage.settings.collection)
        described = stage.identity(source.fingerprint())
        with claimed(output, "finetune", described):
            pass
        if not is_complete(output):
            self.ran.append(output.name.rpartition("-")[0])
            (output / "final").mkdir()
            weights = output / "final" / "model.safetensors"
            weights.write_text(json.dumps([described, self.rounding]), encoding="utf-8")
            looked = {"measure": "RR@10", "value": 0.25, "step": int("bm25" in output.name)}
            chosen = {"split": "dev", "drawn": False, "held_out": False, "reported": None}
            made = {"queries": 1, "seconds": 61.0, "development": looked, "selection": chosen}
            finish(output, made)
        return output / "final"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    fake = Stages()
    monkeypatch.setattr(pipeline, "train", fake)
    monkeypatch.setattr(pipeline.gc, "collect", int)  # half a second each time
    return fake


@pytest.fixture
def go(collection: Path, stages: Stages, tmp_path: Path) -> Any:
    """Runs the three stages with some overrides; which of them ran, and the stages' folders."""

    def run(*overrides: str, overwrite: bool = False) -> tuple[list[str], dict[str, str]]:
        stages.ran.clear()
        output = tmp_path / "out"
        again = {"recipe": "three-stage", "overwrite": overwrite}
        assert finetune(collection, "m", output, **again, settings=overrides) == output / "final"
        return list(stages.ran), read_snapshot(output)["results"]["stages"]

    return run


ALL = ["bm25", "mined", "reranker", "distilled"]


def test_only_what_a_change_concerns_is_done_again(go: Any, tmp_path: Path) -> None:
    ran, first = go()
    assert ran == ALL
    out = tmp_path / "out"
    before = (out / "final" / "model.safetensors").read_bytes()
    assert go() == ([], first)
    with pytest.raises(OutputError) as caught:
        go("stages.mined.negatives.relative_margin=0.05")
    assert "differs in settings.stages.mined.negatives.relative_margin" in caught.value.what
    assert "--overwrite" in caught.value.fix
    ran, second = go("stages.mined.negatives.relative_margin=0.05", overwrite=True)
    assert ran == ["mined", "reranker", "distilled"]
    assert second["bm25"] == first["bm25"]
    assert {*first.values()} & {*second.values()} == {first["bm25"]}
    assert all((out / folder / "final").is_dir() for folder in first.values()), "the old ones stay"
    last = out / second["distilled"] / "final" / "model.safetensors"
    assert (out / "final" / "model.safetensors").read_bytes() == last.read_bytes() != before
    ran, third = go("stages.distilled.losses.contrastive.weight=0.5", overwrite=True)
    assert ran == ["distilled"]
    assert third["reranker"] == first["reranker"]
    assert go(overwrite=True) == ([], first), "back to where it was"
    assert (out / "final" / "model.safetensors").read_bytes() == before
    ran, _ = go("training.seed=7", overwrite=True)
    assert ran == ALL
    ran, _ = go("training.seed=7", overwrite=True)
    assert ran == ALL, "a finished one is replaced"


def test_how_training_is_watched_and_saved_makes_no_other_stages(go: Any) -> None:
    _, first = go()
    assert go("training.save_steps=7", "training.logging_steps=3") == ([], first)


def test_other_data_is_another_pipeline(go: Any, collection: Path) -> None:
    _, first = go()
    (collection / "corpus.jsonl").write_text('{"_id": "d", "text": "another text"}\n')
    with pytest.raises(OutputError, match="differs in data"):
        go()
    ran, second = go(overwrite=True)
    assert ran == ALL
    assert not {*first.values()} & {*second.values()}


def test_the_snapshot_says_what_is_in_final_until_the_next_is_whole(
    go: Any, stages: Stages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _, first = go()
    before = read_snapshot(out)

    def killed(stage: Stage) -> Path:
        if "distilled" in stage.output.name:
            raise KeyboardInterrupt
        return stages(stage)

    monkeypatch.setattr(pipeline, "train", killed)
    change = "stages.mined.negatives.range_min=3"
    with pytest.raises(KeyboardInterrupt):
        go(change, overwrite=True)
    assert read_snapshot(out) == before
    assert is_complete(out)
    monkeypatch.setattr(pipeline, "train", stages)
    ran, second = go(change, overwrite=True)
    assert ran == ["distilled"], "what was done before the interruption is kept"
    after = read_snapshot(out)
    assert after["results"] == {"stages": second, "final": "distilled"}
    chosen = after["identity"]["settings"]["stages"]["mined"]["negatives"]
    assert chosen["range_min"] == 3
    assert "range_min" not in before["identity"]["settings"]["stages"]["mined"]["negatives"]
    assert {*first.values()} - {*second.values()}


def test_a_folder_with_something_else_is_not_touched(go: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out, "finetune", {"settings": {"model": "m"}}):
        pass
    finish(out)
    (out / "final").mkdir()
    with pytest.raises(OutputError, match="already holds another job"):
        go()
    assert not list((out / "final").iterdir())


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """All that is read of a model before the first stage: one of three labels."""
    folder = tmp_path / "three-labels"
    folder.mkdir()
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    config["id2label"] = {0: "no", 1: "maybe", 2: "yes"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_what_later_stages_name_is_looked_for_before_the_first(
    go: Any, stages: Stages, classifier: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (encoder / "config.json").write_text(json.dumps(config))
    teacher = "stages.distilled.teacher.model"
    outside = {
        "stages.mined.split=tran": ("mined", "no split 'tran'"),
        "stages.mined.development.split=deb": ("mined", "no split of the collection"),
        f"stages.mined.negatives.model={empty}": ("mined", "without a model"),
        "stages.reranker.negatives={name: run, file: no.trec}": ("reranker", "no file 'no.trec'"),
        f"stages.distilled.model={empty}": ("distilled", "without a model"),
        f"{teacher}={tmp_path / 'none'}": ("distilled", "no model folder"),
        f"{teacher}={classifier}": ("distilled", "a re-ranker has one label, this model 3"),
        f"{teacher}={encoder}": ("distilled", "scores no pairs"),
        "stages.distilled.teacher={name: scores, file: no.tsv}": ("distilled", "no file 'no.tsv'"),
    }
    for override, (name, what) in outside.items():
        with pytest.raises(IsthmusError) as caught:
            go(override)
        assert what in caught.value.what
        assert f"stage {name}: " in caught.value.what
    assert not stages.ran
    assert not (tmp_path / "out").exists()
    ran, _ = go(f"stages.mined.negatives.model={classifier}")
    assert ran == ALL, "labels matter to a teacher only"


def test_files_of_another_collection_are_found_before_the_first_stage(
    go: Any, stages: Stages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "other-documents": "q Q0 z 1 2.5 x\n",
        "other-queries": "z Q0 d 1 2.5 x\n",
        "broken": "q Q0 d\n",
        "some-queries": "q Q0 d 1 2.5 x\nz Q0 z 1 2.5 x\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    run = "stages.mined.negatives={{name: run, file: {}}}"
    scores = "stages.distilled.teacher={{name: scores, file: {}}}"
    outside = {
        (run, "other-documents"): "is of another corpus: 1 of the 1 documents",
        (run, "other-queries"): "ranks documents for none of the 1 training queries",
        (run, "broken"): "broken",
        (scores, "other-documents"): "none of the 1 documents scored in",
        (scores, "other-queries"): "1 of 1 pairs have no score in",
        (scores, "broken"): "broken line",
    }
    for (setting, name), what in outside.items():
        with pytest.raises(IsthmusError) as caught:
            go(setting.format(tmp_path / name))
        assert what in f"{caught.value.what}"
        assert f"stage {setting.split('.')[1]}: " in caught.value.what
    assert not stages.ran
    ran, _ = go(*(setting.format(tmp_path / "some-queries") for setting in (run, scores)))
    assert ran == ALL
    assert capsys.readouterr().err.count("read the ids of the corpus") == len(outside) + 1, "once"


def test_a_pipeline_is_repeated_with_all_its_stages(
    go: Any, stages: Stages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, first = go("stages.mined.negatives.num_negatives=7")
    stages.ran.clear()
    stages.rounding = 1  # as on a device whose sums depend on the weather
    finetune(None, None, tmp_path / "again", recipe=tmp_path / "out")
    assert stages.ran == ALL
    again = read_snapshot(tmp_path / "again")
    assert again["results"]["stages"]["bm25"] == first["bm25"]
    assert again["identity"] == read_snapshot(tmp_path / "out")["identity"]
    assert "fingerprint differs" not in capsys.readouterr().err
