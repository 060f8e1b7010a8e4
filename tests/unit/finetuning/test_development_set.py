"""The development measure: what is asked, among which documents, and which model becomes final."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tests.factories import bert, training_corpus, write_collection
from transformers import BertForMaskedLM, BertForSequenceClassification

from isthmus.collections import Problems, open_collection
from isthmus.config.output import read_snapshot
from isthmus.config.seen_queries import seen
from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import SettingsError
from isthmus.finetuning import train as stage
from isthmus.finetuning.candidates import TrainingCorpus
from isthmus.finetuning.development import (
    Development,
    DevelopmentSet,
    development_split,
    draw_development_set,
)
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, labelled_queries
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import DevelopmentSettings, FinetuneSettings
from isthmus.finetuning.stages import resolve_stage
from isthmus.finetuning.summary import result
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import Classifier
from isthmus.text.tokenizer import Tokenizer, new_tokenizer
from isthmus.training.trainer import STOPPED_EARLY

pytestmark = pytest.mark.usefixtures("no_plots", "one_thread")
DOCUMENTS = 150
COPY = "copy"  # of the text that answers the first query of dev
STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A BEIR folder with the splits train and dev, `model`, and the cache."""
    generator = random.Random(0)
    syllables = ["ba", "do", "ke", "li", "mu", "na", "po", "ri", "su", "te"]
    words = ["".join(generator.choices(syllables, k=2)) for _ in range(90)]
    texts = {
        f"d{n}": " ".join(generator.choices(words, k=generator.randint(4, 12)))
        for n in range(DOCUMENTS)
    }
    queries, judged = {}, {"train": [], "dev": []}
    for number in range(80):
        queries[f"q{number}"] = " ".join(generator.sample(texts[f"d{number}"].split(), k=2))
        judged["train" if number < 40 else "dev"].append((f"q{number}", f"d{number}", 1))
    judged["dev"] += [("q41", "d99", 2), ("q42", "d98", 0)]
    folder = tmp_path_factory.mktemp("development") / "collection"
    write_collection(folder, texts | {COPY: texts["d40"]}, queries, judged)
    tokenizer = new_tokenizer(words * 2, 150)
    torch.manual_seed(0)
    Backbone(BertForMaskedLM(bert(len(tokenizer), num_labels=1))).save(folder / "model")
    tokenizer.save(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTHMUS_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(str(folder / "model"))


@pytest.fixture(scope="module")
def corpus(folder: Path, tokenizer: Tokenizer) -> TrainingCorpus:
    return training_corpus(folder, tokenizer)


Draw = Callable[..., DevelopmentSet]


@pytest.fixture(scope="module")
def draw(corpus: TrainingCorpus) -> Draw:
    labelled = labelled_queries(corpus.collection, "dev", corpus.rows, Problems())

    def drawn(seed: int = 0, **values: Any) -> DevelopmentSet:
        settings = DevelopmentSettings.parse(values, "test")
        return draw_development_set(corpus, "dev", labelled, settings, seed)

    return drawn


def test_what_is_judged_0_is_no_positive(corpus: TrainingCorpus) -> None:
    labelled = labelled_queries(corpus.collection, "dev", corpus.rows, Problems())
    positives = {q.id: rows for q, rows in zip(labelled.queries, labelled.positives, strict=True)}
    assert (positives["q41"], positives["q42"]) == ([41, 99], [42])


def ids(corpus: TrainingCorpus, chosen: DevelopmentSet) -> list[str]:
    return [corpus.tokenised[row].id for row in chosen.rows]


def test_relevant_documents_are_there_and_their_copies_are_not(
    corpus: TrainingCorpus, draw: Draw
) -> None:
    everything = ids(corpus, draw())
    assert sorted(everything) == sorted(f"d{n}" for n in range(DOCUMENTS))
    chosen = draw(queries=12, documents=40, bm25=3)
    found = ids(corpus, chosen)
    assert len(chosen.queries) == len(chosen.judgements) == len(chosen.own) == 12
    needed = {place for places in chosen.own for place in places.tolist()}
    assert len(found) == len(set(found)) == len(needed) + 40, "beside what the queries need"
    for query, places in zip(chosen.queries, chosen.own, strict=True):
        number = query.id[1:]
        own = {found[place] for place in places}
        assert f"d{number}" in own
        assert 1 <= len(own) <= 5
    assert any(len(places) > 1 for places in chosen.own), "BM25 found others"


def test_bm25s_best_are_among_the_documents(corpus: TrainingCorpus, draw: Draw) -> None:
    few = draw(queries=12, documents=0, bm25=0)
    hard = draw(queries=12, documents=0, bm25=5)
    assert len(few.rows) == 12
    assert set(few.rows) < set(hard.rows)
    words = {query.id: set(query.text.split()) for query in hard.queries}
    texts = {document.id: document.text.split() for document in corpus.collection.documents()}
    found = ids(corpus, hard)
    for query, places in zip(hard.queries, hard.own, strict=True):
        for place in places:
            assert words[query.id] & set(texts[found[place]]), "what BM25 finds shares a word"


def reciprocal_rank(scores: dict[str, float], judged: dict[str, int], depth: int) -> float:
    order = sorted(scores, key=lambda name: (-scores[name], name))[:depth]
    ranks = [rank for rank, name in enumerate(order, 1) if judged.get(name, 0) > 0]
    return 1 / ranks[0] if ranks else 0.0


@pytest.mark.parametrize("kind", ["dense", "sparse", "cross"])
def test_it_is_the_measure_of_the_models_own_scores(
    kind: str, corpus: TrainingCorpus, draw: Draw, tokenizer: Tokenizer
) -> None:
    torch.manual_seed(1)
    config = bert(len(tokenizer), num_labels=1)
    lengths = {"query_max_length": 8, "document_max_length": 12}
    model: DenseEncoder | SparseEncoder | CrossEncoder
    if kind == "dense":
        model = DenseEncoder(
            Backbone(BertForMaskedLM(config)), tokenizer, DenseSettings.parse(lengths, "test")
        )
    elif kind == "sparse":
        model = SparseEncoder(
            Backbone(BertForMaskedLM(config)), tokenizer, SparseSettings.parse(lengths, "test")
        )
    else:
        classifier = Classifier(BertForSequenceClassification(config))
        model = CrossEncoder(classifier, tokenizer, CrossSettings.parse(lengths, "test"))
    model.backbone.eval()
    chosen = draw(queries=20, documents=80, bm25=12)
    documents = {document.id: document for document in corpus.collection.documents()}
    found = ids(corpus, chosen)
    expected: dict[str, list[float]] = {"RR": [], "RR@3": []}
    for query, places in zip(chosen.queries, chosen.own, strict=True):
        if isinstance(model, CrossEncoder):
            names = [found[place] for place in places]
            values = model.score([(query.text, documents[name]) for name in names])
        else:
            names = found
            asked = model.encode_queries([query.text])
            product: Any = asked @ model.encode_documents([documents[name] for name in names]).T
            values = product.toarray()[0] if kind == "sparse" else product[0]
        judged = dict(chosen.judgements[query.id])
        scores = dict(zip(names, values.tolist(), strict=True))
        for measure, depth in (("RR", 1000), ("RR@3", 3)):
            expected[measure].append(reciprocal_rank(scores, judged, depth))
    stage = FinetuneSettings(model="m", collection="c", output="o", encoder=kind)
    rank = partial(KINDS.load(kind)(stage.model_dump()).rank, model, corpus.tokenised, chosen)
    with torch.no_grad():
        for measure, found_by_hand in expected.items():
            settings = DevelopmentSettings(measure=f"M{measure}")  # as others call it
            development = Development(rank, corpus.tokenised, chosen, settings)
            assert development() == {measure: pytest.approx(np.mean(found_by_hand), abs=1e-6)}
        assert len(set(expected["RR"])) > 3
        weight = next(model.backbone.parameters())
        weight.fill_(math.nan)
        assert math.isnan(development()["RR@3"]), "a model that is lost is not a user's mistake"


@pytest.fixture
def settings(folder: Path, tmp_path: Path) -> Callable[..., FinetuneSettings]:
    def make(output: str = "run", **change: Any) -> FinetuneSettings:
        training = {
            "max_steps": STEPS, "per_device_train_batch_size": 8, "logging_steps": 1,
            "save_steps": 2, "save_total_limit": None, "report_to": [], "bf16": False,
            "learning_rate": 1e-3, **change.pop("training", {}),
        }  # fmt: skip
        development = {
            "queries": 20, "documents": 60, "bm25": 1, "every": 2, **change.pop("development", {}),
        }  # fmt: skip
        values = {
            "model": str(folder / "model"), "collection": str(folder), "training": training,
            "output": str(tmp_path / output), "development": development,
            "query_max_length": 8, "document_max_length": 12, **change,
        }  # fmt: skip
        return FinetuneSettings.parse(values, where="test")

    return make


Make = Callable[..., FinetuneSettings]


def script(patch: pytest.MonkeyPatch, values: list[float]) -> None:
    left = iter(values)
    patch.setattr(Development, "__call__", lambda self: {self.name: next(left)})


def run(written: FinetuneSettings) -> Path:
    return stage.train(resolve_stage(written, {}))


def results(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "isthmus.json").read_text("utf-8"))["results"]
    return found


def same(one: Path, two: Path) -> bool:
    left, right = (load_file(folder / "model.safetensors") for folder in (one, two))
    return all(torch.equal(left[name], right[name]) for name in left)


def test_the_best_model_becomes_final(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script(monkeypatch, [0.2, 0.3, 0.5, 0.4])
    final = run(settings())
    output = tmp_path / "run"
    assert same(final, output / "checkpoint-4")
    assert not same(final, output / "checkpoint-6")
    found = results(output)
    asked = found["development"].pop("documents")
    assert 60 + 20 <= asked <= 60 + 2 * 20, "drawn ones, one right one a query, BM25's best"
    assert found["development"] == {
        "measure": "RR@10", "queries": 20, "step": 4, "value": 0.5,
    }  # fmt: skip
    assert [line.get("development/RR@10") for line in found["log"]].count(0.5) == 1
    table = (output / "development.tsv").read_text(encoding="utf-8").split()
    assert table == ["step", "RR@10", "0", "0.2", "2", "0.3", "4", "0.5", "6", "0.4"]
    assert "final: the best by RR@10, step 4" in capsys.readouterr().err


def test_a_classifier_that_knows_nothing_is_never_the_best(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be lucky, and would teach others; a re-ranker that goes on may well be best."""
    change: dict[str, Any] = {
        "encoder": "cross", "negatives": {"name": "bm25", "num_negatives": 2},
        "development": {"bm25": 5, "patience": 2},
    }  # fmt: skip
    script(monkeypatch, [0.9, 0.3, 0.5, 0.4])
    run(settings("fresh", **change))
    assert results(tmp_path / "fresh")["development"]["step"] == 4
    script(monkeypatch, [0.9, 0.3, 0.5, 0.4])
    run(settings("again", model=str(tmp_path / "fresh"), **change))
    assert results(tmp_path / "again")["development"]["step"] == 0


@pytest.mark.parametrize(("target", "best"), [({}, 2), ({"documents": 5}, 4)])
def test_a_model_that_is_not_sparse_yet_is_never_the_best(
    target: dict[str, float], best: int, settings: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With all its terms it ranks best; such evaluations keep no model and use no patience up."""
    script(monkeypatch, [0.9, 0.5, 0.3, 0.2])
    regularizers = {"flops": {"documents": 1e-3, "target": target}}
    run(settings(encoder="sparse", regularizers=regularizers, development={"patience": 3}))
    found = results(tmp_path / "run")
    assert found["development"]["step"] == best
    assert not any(STOPPED_EARLY in line for line in found["log"])


def test_a_sparse_encoder_starts_with_few_terms(
    settings: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = {"encoder": "sparse", "training": {"max_steps": 1, "learning_rate": 1e-9}}
    run(settings("as-it-is", start_terms=None, **change))
    assert "bias is lowered" not in capsys.readouterr().err
    run(settings("few", start_terms=3, **change))
    assert "which leaves 3 (start_terms)" in capsys.readouterr().err
    before, after = (
        next(line for line in results(tmp_path / name)["log"] if "active_terms/documents" in line)
        for name in ("as-it-is", "few")
    )
    assert before["active_terms/documents"] > 20
    assert 1 < after["active_terms/documents"] < 6, "of other documents than those of the draw"


def test_training_stops_when_it_gets_no_better(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, [0.2, 0.3, 0.1, 0.1, 0.9, 0.9, 0.9])
    run(settings(development={"every": 1, "patience": 2}))
    log = results(tmp_path / "run")["log"]
    assert [line[STOPPED_EARLY] for line in log if STOPPED_EARLY in line] == [3.0]
    assert results(tmp_path / "run")["development"]["step"] == 1


def test_measuring_changes_nothing_of_training(settings: Make, tmp_path: Path) -> None:
    run(settings("with", development={"every": 1}))
    run(settings("without").model_copy(update={"development": None}))
    assert same(tmp_path / "with" / f"checkpoint-{STEPS}", tmp_path / "without" / "final")
    assert "development" not in results(tmp_path / "without")


@pytest.mark.parametrize(
    ("development", "what", "allowed"),
    [
        ({"measure": "nDGC@10"}, "no measure named 'nDGC@10'", "nDCG"),
        ({"split": "train"}, "'train' is the split that is trained on", "dev"),
        ({"split": "test"}, "'test' is no split of the collection", "dev"),
        ({"every": 2.5}, "development.every = 2.5 cannot be used: a whole number", ""),
    ],
)
def test_what_cannot_be_measured(
    settings: Make, tmp_path: Path, development: dict[str, Any], what: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        run(settings(development=development))
    assert what in caught.value.what
    assert caught.value.expected.startswith(allowed)
    assert "development" in caught.value.what
    assert not (tmp_path / "run").exists()


class Splits:
    """A collection that has these splits and nothing else."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def splits(self) -> list[str]:
        return self.names


def test_the_usual_splits_are_found_and_a_missing_one_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = DevelopmentSettings()

    def chosen(*names: str, wanted: DevelopmentSettings | None = settings) -> str | None:
        return development_split(wanted, Splits(*names), "train")  # type: ignore[arg-type]

    assert chosen("train", "dev", "test") == "dev"
    assert chosen("test", "train", "validation") == "validation"
    assert chosen("train", "test", wanted=DevelopmentSettings(split="test")) == "test"
    assert chosen("train", "dev", wanted=None) is None
    assert capsys.readouterr().err == ""
    assert chosen("train", "test") is None
    told = capsys.readouterr().err
    assert "no split dev or validation" in told
    assert "development.held_out=0.1" in told
    assert chosen("train", "test", "mine") is None
    assert "development.split=NAME" in capsys.readouterr().err
    with pytest.raises(SettingsError, match="patience has nothing to watch") as caught:
        chosen("train", "Test-2", "mine", wanted=DevelopmentSettings(patience=2))
    assert caught.value.expected == "mine"


@pytest.mark.parametrize(("name", "split"), [("own", "test"), ("own", "dev"), ("msmarco", "dev")])
def test_a_model_chosen_by_a_split_that_others_report_on(
    folder: Path, settings: Make, name: str, split: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    own = shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("cache"))
    (own / "qrels" / "test.tsv").write_bytes((own / "qrels" / "dev.tsv").read_bytes())
    final = run(settings(collection=str(own), development={"split": split}))
    told = " ".join(capsys.readouterr().err.split())
    assert ("'test': the model is chosen by these queries" in told) == (split == "test")
    assert ("papers report their results on MS MARCO" in told) == (name == "msmarco")
    results = read_snapshot(final.parent)["results"]
    reported = "MS MARCO" if name == "msmarco" else None
    assert results["selection"] == {
        "split": split, "held_out": False, "drawn": False, "reported": reported,
    }  # fmt: skip
    assert f"'split': '{split}'" in (final / "README.md").read_text()
    console = Console(width=500)
    with console.capture() as printed:
        console.print(result(final.parent))
    said = printed.get()
    assert f"Models are chosen by the split '{split}'" in said
    assert ("on MS MARCO: NOT COMPARABLE" in said) == (name == "msmarco")
    fingerprint = open_collection(str(own)).fingerprint()
    assert "was chosen by the split" in str(seen(str(final), fingerprint, split))
    assert "trained on the split 'train'" in str(seen(str(final.parent), fingerprint, "train"))
    assert seen(str(final), fingerprint, "other") is None
    assert seen(str(final), "of another collection", split) is None
    known = {"collection": fingerprint, "trained": "train", "chosen": split}
    assert results["seen"] == [known]


def test_held_out_queries_are_measured_by_and_not_trained_on(
    folder: Path, settings: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own = shutil.copytree(folder, tmp_path / "own", ignore=shutil.ignore_patterns("cache"))
    (own / "qrels" / "dev.tsv").unlink()
    lines = (own / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    everyone = {line.split("\t")[0] for line in lines}
    asked, trained = [], []
    draw, make = stage.draw_development_set, PairExamples.__init__

    def drawn(*given: Any) -> DevelopmentSet:
        asked.append({query.id for query in given[2].queries})
        return draw(*given)

    def made(self: PairExamples, labelled: LabelledQueries, *more: Any, **named: Any) -> None:
        trained.append({query.id for query in labelled.queries})
        make(self, labelled, *more, **named)

    monkeypatch.setattr(stage, "draw_development_set", drawn)
    monkeypatch.setattr(PairExamples, "__init__", made)
    for seed in (1, 2):
        change = {"development": {"held_out": 0.2}, "training": {"seed": seed}}
        run(settings(f"run{seed}", collection=str(own), **change))
        assert results(tmp_path / f"run{seed}")["development"]["queries"] == len(asked[-1])
    assert "training queries are held out to measure by" in capsys.readouterr().err
    assert asked[0] == asked[1], "whatever the seed"
    assert len(asked[0]) == round(0.2 * len(everyone))
    assert asked[0] | trained[0] == everyone
    assert not asked[0] & trained[0]
