"""The main job: documents in; a retriever that knows them, its indexes and a report out."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from isthmus.collections import Collection, Problems, open_collection, open_corpus, write_run
from isthmus.collections.settings import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.model_card import finish_model
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import claimed, read_snapshot, whole_folder, writing
from isthmus.config.recipes import merged
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings, stored_settings
from isthmus.encoders.sparse import SparseForm, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation import EvaluationSettings, Report, evaluate
from isthmus.finetuning.merge import summary
from isthmus.finetuning.resolved import resolve_stage
from isthmus.finetuning.run_stage import run as run_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stage_data import check_split
from isthmus.progress import notice, track
from isthmus.records import Run
from isthmus.retrieval.cutting import Chosen
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.training.launch import main_process_first
from isthmus.workflows.survey import survey

BEFORE, AFTER, LABELLED = "as it was", "adapted", "adapted + labels"
_DEPTH = 100
_CANDIDATES = 1000  # that are fused, as `search --with` fuses them
# Settings that runs from before 2026-11-18 do not know: left out of their identity where not set.
_LATER = (
    "encoder", "query_prompt", "document_prompt", "include_prompt", "truncate_dim", "passages",
)  # fmt: skip
_SPLITS = ("test", "dev", "validation", "valid")


class AdaptSettings(ReadingSettings, EncodingChoice):
    """Which documents, which encoder, how it learns them, and what the report measures."""

    verb = "adapt"

    documents: str = Field(description="what to learn: a path, beir:PATH, hf:NAME, irds:ID, …")
    model: str = Field(description="a finished retriever: a folder, hub name or package:NAME")
    output: str = Field(description="the folder to write")
    collection: str | None = Field(
        None, description="judged queries to report on; null: those of the documents, if any"
    )
    split: str | None = Field(None, description="of the collection; null: test, or else dev")
    guard: str | None = Field(
        None, description="another collection, on which the report checks that nothing is lost"
    )
    labels: str | None = Field(
        None, description="a judged collection whose training split is learnt from afterwards"
    )
    passages: Chosen = Field(
        None,
        description="whether long documents are learnt and indexed by passages, or how these are "
        "cut; null: yes for a folder of files, no otherwise",
    )
    dense: dict[str, Any] = Field(description="settings of `isthmus finetune`, without labels")
    dot: dict[str, Any] = Field({}, description="what differs where inner products compare")
    sparse: dict[str, Any] = Field({}, description="what differs for a sparse encoder, besides")
    finetune: dict[str, Any] = Field({}, description="what differs where labels are learnt from")
    evaluation: EvaluationSettings = EvaluationSettings(
        measures=("RR@10", "nDCG@10", "R@100"), correction="holm"
    )


def adapt(
    documents: str,
    model: str,
    output: str,
    recipe: str | None = None,
    *,
    collection: str | None = None,
    guard: str | None = None,
    labels: str | None = None,
    settings: AdaptSettings | Overrides = None,
) -> Report | None:
    """Teaches a finished retriever its documents, without labels; returns the comparison.

    OUTPUT holds the retriever (final), its indexes and the report. Without judged queries there
    is no comparison, and None is returned. Run again after an interruption, it goes on. Without a
    recipe, it is `adapt` on a GPU and `adapt-quick` elsewhere.
    """
    if recipe is None:
        recipe = "adapt" if torch.cuda.is_available() else "adapt-quick"
    flags = {
        "documents": documents, "model": model, "output": output, "collection": collection,
        "guard": guard, "labels": labels,
    }  # fmt: skip
    return run(AdaptSettings.given(settings, flags, recipe))


def run(settings: AdaptSettings) -> Report | None:
    """Runs an adaptation from complete settings; returns the comparison, if queries are judged."""
    began = time.monotonic()
    output = Path(settings.output)
    with named_at("--model"):
        model_folder(settings.model)
        known = encoder_settings(settings)
    plain = known != known_settings(settings.model)
    start = str(output / "start") if plain else settings.model
    trained = stages(settings, known, start)
    judged = _judged(settings)
    guard = _checked(settings, trained)
    with ExitStack() as claims:
        with main_process_first():
            found = survey(open_corpus(settings.documents, settings.account()), settings.documents)
            claims.enter_context(claimed(output, "adapt", _identity(settings)))
            if plain:
                _save_start(settings.model, known, output / "start")
        notice(found)
        for number, (name, stage) in enumerate(trained.items(), start=1):
            _say(began, f"{number}/{len(trained) + 2} {name}: learn {stage.collection}")
            run_stage(stage)
        if os.environ.get("RANK", "0") != "0":
            return None  # of several processes, the first does the rest
        last = Path(list(trained.values())[-1].output) / "final"
        if not (output / "final").is_dir():
            with whole_folder(output / "final") as partial:
                shutil.copytree(last, partial, dirs_exist_ok=True)
        models = {BEFORE: start, **{name: stage.output for name, stage in trained.items()}}
        _say(began, f"{len(trained) + 1}/{len(trained) + 2} index the documents")
        report = _report(settings, judged, models)
        last_name = list(models)[-1]
        both = {name: models[name] for name in (BEFORE, last_name)}
        guarded = _guard(settings, guard, both)
        merges = {name: _merge(stage) for name, stage in trained.items()}
        verdict = _verdict(merges, report, guarded)
        _write(output, verdict, report, guarded)
        seconds = time.monotonic() - began
        finish_model(output, {"seconds": seconds, "verdict": verdict, "merge": merges})
    _say(began, f"{len(trained) + 2}/{len(trained) + 2} done: {output / 'report.md'}")
    return report


def _say(began: float, message: str) -> None:
    notice(f"\n[{time.monotonic() - began:5.0f} s] {message}")


def _identity(settings: AdaptSettings) -> dict[str, Any]:
    fingerprint = open_corpus(settings.documents, Problems("skip")).fingerprint()
    model = model_fingerprint(model_folder(settings.model)) or settings.model
    later = {name for name in _LATER if getattr(settings, name) in (None, False)}
    described = settings.model_dump(exclude={"output", *later})
    return {"settings": described, "data": {"documents": fingerprint, "model": model}}


def encoder_settings(settings: AdaptSettings) -> DenseSettings | SparseSettings:
    """How the encoder reads texts: what lies beside the model, and what settings say instead."""
    chosen = settings.chosen()
    stated = settings.encoder == "sparse" or {"pooling", "similarity"} <= set(chosen)
    if known_settings(settings.model) is None and not stated:
        raise InputError(
            f"nothing beside {settings.model!r} says how it makes vectors of texts",
            where="--model",
            allowed="a retriever of isthmus or sentence-transformers, or one whose name tells; or "
            "pooling and similarity (or encoder=sparse), as its authors say",
            remedy="--set pooling=mean --set similarity=cosine, or another model",
        )
    return stored_settings(settings.model, chosen).settings


def _save_start(model: str, known: DenseSettings | SparseSettings, folder: Path) -> None:
    """The encoder as it was, with what settings say of it beside its weights."""
    if not folder.is_dir():
        with whole_folder(folder) as partial:
            load_encoder(model, known, exact=True).save(partial)


@contextmanager
def _under(key: str) -> Iterator[None]:
    """Lets the advice of errors about a stage name its settings where `adapt` has them."""
    try:
        yield
    except SettingsError as error:
        error.remedy = error.remedy.replace("--set ", f"--set {key}.")
        raise


def _checked(
    settings: AdaptSettings, trained: Mapping[str, FinetuneSettings]
) -> tuple[Collection, str] | None:
    """The guard collection and its split, if any; raises on what would fail after training."""
    for name, stage in trained.items():
        with _under("dense" if name == AFTER else "finetune"):
            resolve_stage(stage)
    if settings.labels is not None:
        labelled = open_collection(settings.labels, settings.account())
        check_split(labelled, trained[LABELLED])
    if settings.guard is None:
        return None
    collection = open_collection(settings.guard, settings.account())
    splits = collection.splits()
    return collection, next((split for split in _SPLITS if split in splits), splits[0])


def stages(
    settings: AdaptSettings, known: DenseSettings | SparseSettings, start: str
) -> dict[str, FinetuneSettings]:
    """What is trained: on queries drawn from the documents, then on labels where there are any."""
    own = known.model_dump()
    for key in type(known).model_fields.keys() & settings.dense.keys():
        said = getattr(known, key)
        raise SettingsError(
            f"dense.{key} = {settings.dense[key]!r} would be lost: the model says {said!r}",
            where=f"dense.{key}",
            allowed="pooling, similarity, lengths and prompts beside dense, not in it",
            remedy=f"--set {key}={settings.dense[key]}",
        )
    values = settings.dense
    if isinstance(known, SparseSettings) or known.similarity == "dot":
        values = merged(values, settings.dot)
    if isinstance(known, SparseSettings):
        values = merged(values, settings.sparse)
        own["sparse"] = {key: own.pop(key) for key in SparseForm.model_fields if key in own}
    values = merged(values, own)
    values |= {name: getattr(settings, name) for name in ("problems", "line_limit", "passages")}
    output = Path(settings.output)
    places = {"model": start, "collection": settings.documents, "output": str(output / "adapted")}
    found = {AFTER: FinetuneSettings.parse({**values, **places}, where="adapt", under="dense")}
    if settings.labels is not None:
        places = {
            "model": str(output / "adapted"),
            "collection": settings.labels,
            "output": str(output / "labelled"),
        }
        labelled = {**merged(values, settings.finetune), **places}
        found[LABELLED] = FinetuneSettings.parse(labelled, where="adapt", under="finetune")
    return found


def _judged(settings: AdaptSettings) -> tuple[Collection, str] | None:
    """The collection and split that the report measures; None where no queries are judged."""
    named = settings.collection
    corpus = open_corpus(named or settings.documents, settings.account())
    splits = corpus.splits() if isinstance(corpus, Collection) else []
    if not splits and named is None:
        return None
    usual = next((split for split in _SPLITS if split in splits), None)
    split = settings.split or usual
    if split is None and named is None:
        return None
    if split not in splits:
        raise InputError(
            f"the collection has no split {split or _SPLITS[0]!r} to report on",
            where="split",
            allowed=", ".join(splits),
            remedy=f"--set split={splits[0]}" if splits else "another --collection",
        )
    assert isinstance(corpus, Collection), "it has splits"
    return corpus, split


def _report(
    settings: AdaptSettings, judged: tuple[Collection, str] | None, models: Mapping[str, str]
) -> Report | None:
    """Builds the indexes that are needed; compares the systems where queries are judged."""
    output, chosen = Path(settings.output), _index_settings(settings)
    systems = {"BM25": "bm25", **(models if judged else dict(list(models.items())[-1:]))}
    folders = {
        name: index(settings.documents, output / "index" / _slug(name), model, settings=chosen)
        for name, model in systems.items()
    }
    if judged is None:
        return None
    searchers = {name: open_searcher(folder) for name, folder in folders.items()}
    return _compared(settings, *judged, searchers, output / "report")


def _index_settings(settings: AdaptSettings) -> IndexSettings:
    return IndexSettings(passages=settings.passages, **dict(settings.reading))


def _compared(
    settings: AdaptSettings,
    collection: Collection,
    split: str,
    systems: Mapping[str, Searcher],
    folder: Path,
) -> Report:
    """The report of systems on a split, and of each fused with BM25 where that is among them."""
    judgements = collection.judgements(split)
    queries = [query for query in collection.queries() if query.id in judgements]
    found = {
        name: searcher.search(queries, _CANDIDATES, Problems("skip"))
        for name, searcher in track(systems.items(), "search", len(systems), "systems")
    }
    if "BM25" in found:
        fusion = fusions.load("weighted_sum")
        found |= {
            f"{name} + BM25": [
                fuse(pair, (1.0, 1.0), fusion)
                for pair in zip(found[name], found["BM25"], strict=True)
            ]
            for name in systems
            if name != "BM25"
        }
    runs = [
        Run(name, {one.query_id: one.top(_DEPTH) for one in rankings})
        for name, rankings in found.items()
    ]
    for run in runs:
        file = folder.parent / "runs" / f"{_slug(run.name)}.trec"
        with writing(file):
            file.parent.mkdir(exist_ok=True, parents=True)
            write_run(file, run)
    return evaluate(runs, judgements, settings=settings.evaluation, output=folder)


def _guard(
    settings: AdaptSettings, guard: tuple[Collection, str] | None, models: Mapping[str, str]
) -> Report | None:
    """The encoder before and after on another collection."""
    if guard is None or settings.guard is None:
        return None
    place = Path(settings.output) / "guard"
    chosen = IndexSettings(**dict(settings.reading))
    searchers = {
        name: open_searcher(index(settings.guard, place / _slug(name), model, settings=chosen))
        for name, model in models.items()
    }
    return _compared(settings, *guard, searchers, place / "report")


def _merge(stage: FinetuneSettings) -> dict[str, Any] | None:
    """What merging a finished stage returned; None where it is not merged."""
    found: dict[str, Any] | None = read_snapshot(Path(stage.output))["results"].get("merge")
    return found


def _verdict(
    merges: Mapping[str, dict[str, Any] | None], report: Report | None, guarded: Report | None
) -> list[str]:
    """Sentences: what was changed, and whether it helped, as far as can be known."""
    lines = [
        f"{name}: {'all of what was learnt is taken over.' if merge is None else summary(merge)}"
        for name, merge in merges.items()
    ]
    if report is None:
        lines.append("No judged queries: whether real queries gain is NOT MEASURED.")
    else:
        for name in merges:
            lines.append(_sentence(report, name, BEFORE))
            lines.append(_sentence(report, f"{name} + BM25", f"{BEFORE} + BM25"))
    if guarded is not None:
        last = guarded.systems[-1]
        lines.append(f"On the guard collection, {_sentence(guarded, last, BEFORE)}")
    return lines


def _sentence(report: Report, now: str, then: str) -> str:
    measure = report.measures[0]
    for pair in report.comparisons[measure].pairs:
        if {pair.first, pair.second} == {now, then}:
            change = pair.difference if pair.first == now else -pair.difference
            word = "NO SIGNIFICANT CHANGE"
            if pair.significant:
                word = "better" if change > 0 else "WORSE: use the encoder as it was"
            means = report.means[measure]
            return (
                f"{now}: {measure} {means[then]:.3f} before, {means[now]:.3f} after "
                f"({change:+.3f}, p {pair.corrected_p_value:.2g} after correction): {word}."
            )
    raise AssertionError((now, then))


def _write(output: Path, verdict: list[str], report: Report | None, guarded: Report | None) -> None:
    parts = ["# Before and after", *verdict]
    for title, found in (("## The documents", report), ("## The guard collection", guarded)):
        if found is not None:
            parts += [title, found.table().markdown()]
    with writing(output):
        (output / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _slug(name: str) -> str:
    return name.replace(" + ", "-").replace(" ", "-").lower()
