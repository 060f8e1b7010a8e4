"""The main job: documents in; an encoder adapted to them, an index and a report out."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from isthmus.collections import Collection, Corpus, open_collection, open_corpus
from isthmus.collections.in_memory import called
from isthmus.config import Overrides
from isthmus.config.encoding import SparseForm
from isthmus.config.model_card import finish_model
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import (
    claimed,
    is_complete,
    notice_changes,
    read_snapshot,
    refuse_inside,
    whole_folder,
)
from isthmus.config.recipes import earlier_run, merged
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings, per_text, stored_settings
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation import Report
from isthmus.evaluation.tables import Shown, Table
from isthmus.finetuning.pipeline import train_all
from isthmus.finetuning.stages import Pipeline, assemble, check_outside
from isthmus.indexes.manifest import Bm25Settings
from isthmus.progress import notice
from isthmus.retrieval.index import IndexSettings, index
from isthmus.training.parallel import main_process_first
from isthmus.workflows.adapt_report import (
    LABELLED,
    REPORT,
    AdaptReport,
    question,
    read_report,
    survey,
    systems_of,
)
from isthmus.workflows.adapt_settings import AdaptSettings
from isthmus.workflows.evaluate import EvaluateSettings, measured, opened
from isthmus.workflows.systems import systems

if TYPE_CHECKING:
    from isthmus.encoders import AnyEncoder

MODEL, INDEX = "model", "index"
_TRAINING = "training"
_SPLITS = ("test", "dev", "validation", "valid")
_DEPTH = 100


@dataclass(frozen=True, repr=False)
class Adaptation(Shown):
    """The output of an adaptation: the encoder, the index and the report, opened when used."""

    folder: Path
    query: str = "a query"
    """What the suggested next command searches for."""

    @cached_property
    def encoder(self) -> AnyEncoder:
        """The adapted encoder."""
        return load_encoder(str(self.folder / MODEL))

    @cached_property
    def index(self) -> Any:
        """The index of the documents: BM25 and the adapted encoder, fused."""
        return import_module("isthmus").open_index(self.folder)  # a layer above

    @cached_property
    def found(self) -> AdaptReport:
        """What was trained on what, and what it changed."""
        return read_report(self.folder)

    @property
    def report(self) -> Report | None:
        """The original and the adapted encoder compared; None without judged queries."""
        return self.found.report

    @property
    def next(self) -> str:
        """The command to go on with."""
        return self.found.next_command(self.folder, self.query)

    def tables(self) -> list[str | Table]:
        """The tables of the report, and what they say in sentences."""
        return [*(self.report.tables() if self.report else ()), *self.found.sentences()]

    def to_json(self) -> str:
        """What report.json holds, and the command to go on with."""
        found = json.loads((self.folder / REPORT).read_text(encoding="utf-8"))
        return json.dumps({**found, "next": self.next}, ensure_ascii=False, indent=2)


def adapt(
    documents: str,
    model: str,
    output: str | Path,
    *,
    eval_on: str | Sequence[str] = (),
    train_on: str | None = None,
    recipe: str | Path | None = None,
    overwrite: bool = False,
    settings: AdaptSettings | Overrides = None,
) -> Adaptation:
    """The output of an adaptation; as `isthmus.adapt`."""
    if recipe is None:
        recipe = "adapt" if torch.cuda.is_available() else "adapt-quick"
    flags = {
        "documents": documents, "model": model, "output": str(output), "train_on": train_on,
        "eval_on": ([eval_on] if isinstance(eval_on, str) else list(eval_on)) or None,
    }  # fmt: skip
    chosen = AdaptSettings.given(settings, flags, str(recipe))
    return run(chosen, overwrite, earlier_run(str(recipe), "adapt"))


def run(
    settings: AdaptSettings, overwrite: bool = False, earlier: Mapping[str, Any] | None = None
) -> Adaptation:
    """Runs an adaptation from complete settings, which may repeat an earlier one."""
    began = time.monotonic()
    output = Path(settings.output)
    with named_at("--model"):
        model_folder(settings.model)
        known = encoder_settings(settings)
    with _under_finetune():
        pipeline = stages(settings, known)
        check_outside(pipeline)
    corpus = open_corpus(settings.documents, settings.account())
    judged = _judged(settings, corpus)
    with ExitStack() as claims:
        with main_process_first():
            sentence = survey(corpus, called(settings.documents))
            identity = _identity(settings, corpus)
            notice_changes(earlier, identity)
            if overwrite:
                refuse_inside(output, {"documents": settings.documents, "model": settings.model})
            claims.enter_context(claimed(output, "adapt", identity, overwrite))
            if is_complete(output):
                notice(f"{output} is complete already")
                return Adaptation(output)
        notice(sentence)
        folders = train_all(pipeline.stages, pipeline.output)
        if os.environ.get("RANK", "0") != "0":
            return Adaptation(output)  # of several processes, the first does the rest
        _say(began, "index the documents")
        trained = {name: folders[name] for name in folders if pipeline.stages[name].kind.retrieves}
        last = pipeline.last_retriever
        if not (output / MODEL).is_dir():
            with whole_folder(output / MODEL) as partial:
                shutil.copytree(trained[last] / "final", partial, dirs_exist_ok=True)
        made = index(
            settings.documents,
            output / INDEX,
            str(output / MODEL),
            settings=_index_settings(settings),
        )
        original = _original(settings.model, known, output / _TRAINING / "original")
        models = {name: str(folder) for name, folder in trained.items()}
        models[last] = str(output / MODEL)
        merges = {name: _merge(folder) for name, folder in trained.items()}
        found = AdaptReport(
            documents=settings.documents,
            survey=sentence,
            model=settings.model,
            seed=pipeline.stages[last].settings.training.seed,
            merges=merges,
            report=_compared(settings, judged, original, models, made),
        )
        found.write(output)
        results = {"seconds": time.monotonic() - began, "merge": merges}
        finish_model(output, results, [trained[last]], MODEL)
    _say(began, f"done: {output / 'report.md'}")
    return Adaptation(output)


def _say(began: float, message: str) -> None:
    notice(f"\n[{time.monotonic() - began:5.0f} s] {message}")


def _index_settings(settings: AdaptSettings) -> IndexSettings:
    words = settings.bm25 or Bm25Settings()
    return IndexSettings(passages=settings.passages, bm25=words, **dict(settings.reading))


def _compared(
    settings: AdaptSettings,
    judged: Sequence[tuple[str, str]],
    original: str,
    models: Mapping[str, str],
    made: Path,
) -> Report | None:
    """The original and the trained encoders on every collection; None where there is none."""
    if not judged:
        return None
    values = {**dict(settings.evaluation), **dict(settings.reading)}
    how = EvaluateSettings(**values, index=_index_settings(settings))
    tokens = isinstance(encoder_settings(settings), DenseSettings)
    rows = systems(systems_of(original, models, tokens))
    problems = settings.account()
    sources = opened(judged, rows, how, _DEPTH, problems, [made])
    return measured(
        sources, rows, how, pairs=question(list(models)[-1], [one.name for one in rows])
    )


def _identity(settings: AdaptSettings, corpus: Corpus) -> dict[str, Any]:
    model = model_fingerprint(model_folder(settings.model)) or settings.model
    described = settings.model_dump(exclude={"output"})
    return {"settings": described, "data": {"documents": corpus.fingerprint(), "model": model}}


def encoder_settings(settings: AdaptSettings) -> DenseSettings | SparseSettings:
    """How the encoder reads texts: what its files say, and what settings say instead."""
    chosen = settings.chosen()
    stated = settings.encoder == "sparse" or {"pooling", "similarity"} <= set(chosen)
    if known_settings(settings.model) is None and not stated:
        raise InputError(
            f"--model {settings.model!r} does not say how it makes vectors of texts",
            "--set pooling=mean --set similarity=cosine (or encoder=sparse), as its authors say, "
            "or choose another model",
        )
    found = per_text(stored_settings(settings.model, chosen).settings)
    if found is None:
        raise InputError(
            f"--model {settings.model!r} has a vector for each token, and is not trained here",
            "index the documents with it as it is, or adapt a dense or sparse encoder",
        )
    return found


def _original(model: str, known: DenseSettings | SparseSettings, folder: Path) -> str:
    """The encoder before training, by name; a copy with what settings say of it, if they do."""
    if known == known_settings(model):
        return model
    if not folder.is_dir():
        with whole_folder(folder) as partial:
            load_encoder(model, known, exact=True).save(partial)
    return str(folder)


@contextmanager
def _under_finetune() -> Iterator[None]:
    """Lets the advice of errors about stages name settings where `adapt` has them."""
    try:
        yield
    except SettingsError as error:
        error.fix = error.fix.replace("--set ", "--set finetune.")
        raise


def stages(settings: AdaptSettings, known: DenseSettings | SparseSettings) -> Pipeline:
    """The stages of training: what the recipe has, for this encoder and these documents.

    The stage `labelled` is trained on the labels of `train_on`, and left out where there are none.
    """
    own: dict[str, Any] = {"encoder": "dense", **known.model_dump()}
    if isinstance(known, SparseSettings):
        form = {key: own.pop(key) for key in SparseForm.model_fields if key in own}
        own |= {"encoder": "sparse", "sparse": form, "start_terms": None}  # it has few already
    own |= {name: getattr(settings, name) for name in ("problems", "line_limit", "passages")}
    for key in own.keys() & settings.finetune.keys():
        raise SettingsError(
            f"finetune.{key} = {settings.finetune[key]!r} would be lost: the model, and `adapt` "
            f"itself, say {own[key]!r}",
            f"leave it out of `finetune`; {key}=… may be set next to it",
        )
    own |= {"model": settings.model, "collection": settings.documents}
    values = merged(settings.finetune, {**own, "output": str(Path(settings.output) / _TRAINING)})
    if LABELLED in values["stages"]:
        labels = settings.train_on and {"collection": settings.train_on}
        values = merged(values, {"stages": {LABELLED: labels}})
    return assemble(values, where="adapt")


def _judged(settings: AdaptSettings, corpus: Corpus) -> list[tuple[str, str]]:
    """The collections and splits that the report measures."""
    named = {spec: open_collection(spec, settings.account()) for spec in settings.eval_on}
    if not named and isinstance(corpus, Collection) and corpus.splits():
        usual = any(split in corpus.splits() for split in _SPLITS)
        named = {settings.documents: corpus} if usual or settings.split else {}
    found = []
    for spec, collection in named.items():
        splits = collection.splits()
        split = settings.split or next((one for one in _SPLITS if one in splits), splits[0])
        if split not in splits:
            raise InputError(
                f"{spec} has no split {split!r} to report on",
                f"--set split={splits[0]}",
                ", ".join(splits),
            )
        found.append((spec, split))
    return found


def _merge(folder: Path) -> dict[str, Any] | None:
    """What merging a finished stage returned; None where it is not merged."""
    found: dict[str, Any] | None = read_snapshot(folder)["results"].get("merge")
    return found
