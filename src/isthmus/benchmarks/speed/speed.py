"""The verb: times every recipe in turns with masked LM, the plain loop and a matrix product."""

from __future__ import annotations

import gc
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from isthmus.benchmarks.speed.contestants import (
    Contestant,
    MatrixProduct,
    Ours,
    Plain,
    Turn,
    settings_for,
)
from isthmus.benchmarks.speed.meter import device
from isthmus.benchmarks.speed.report import (
    PLAIN,
    REFERENCE,
    Round,
    Row,
    SpeedReport,
    measured,
)
from isthmus.benchmarks.speed.settings import SpeedSettings
from isthmus.benchmarks.speed.texts import corpus_of, starting_model
from isthmus.collections import open_corpus
from isthmus.config import Overrides, shipped_recipes
from isthmus.config.models import model_fingerprint, model_folder
from isthmus.config.output import claimed, finish, is_complete, writing
from isthmus.config.recipes import find_recipe
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.arithmetic import Texts
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.progress import Bar, notice
from isthmus.text.tokenizer import Tokenizer

_VERB = "benchmark speed"


def speed(
    output: str | None = None,
    recipes: Iterable[str] = (),
    *,
    init: str | None = None,
    model: str | None = None,
    corpus: str | None = None,
    lengths: Iterable[int] = (),
    batch: int | None = None,
    tokens: int | None = None,
    settings: SpeedSettings | Overrides = None,
) -> SpeedReport:
    """Times training with every recipe; returns a row for each, and for the plain loop.

    With an output, rows are kept as they come, and the same job goes on where it stopped.
    """
    flags = {
        "recipes": list(recipes) or None,
        "model": model,
        "init": init,
        "corpus": corpus,
        "lengths": list(lengths) or None,
        "batch": batch,
        "tokens": tokens,
    }
    settings = SpeedSettings.given(settings, flags)
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise SettingsError(
            f"there are {processes} processes: they would time each other",
            where="WORLD_SIZE",
            allowed="one process, without torchrun",
            remedy="isthmus benchmark speed …, with CUDA_VISIBLE_DEVICES to choose the device",
        )
    names = _chosen(settings)
    folder = None if output is None else Path(output)
    report = SpeedReport((), settings.rounds, _conditions(settings))
    if folder is None:
        return _timed(settings, names, report, None)
    with claimed(folder, _VERB, _identity(settings)) as known, writing(folder, lambda: True):
        if known:
            report = SpeedReport.read(folder) or report
        if known and is_complete(folder):
            notice(f"{folder} is complete already")
            return report
        report = _timed(settings, names, report, folder)
        report.write(folder)  # again: what was interrupted may lack the table of its last row
        report.plot(folder / "speed.svg")
        finish(folder, {"rows": len(report.rows)})
        return report


def _timed(
    settings: SpeedSettings, recipes: list[str], report: SpeedReport, folder: Path | None
) -> SpeedReport:
    """The report with the rows that it lacks, written into the folder as they come."""
    with tempfile.TemporaryDirectory(prefix="isthmus-") as scratch, _quick_collection():
        model = starting_model(settings, Path(scratch))
        _check(settings, recipes, model)
        with Bar("speed", len(recipes) * len(settings.lengths), unit="recipes") as bar:
            for length in settings.lengths:
                known = {row.recipe for row in report.rows if row.length == length}
                missing = [recipe for recipe in recipes if recipe not in known]
                bar.advance(len(recipes) - len(missing))
                for rows in _at_length(settings, length, missing, model, Path(scratch)):
                    report = replace(report, rows=(*report.rows, *rows))
                    if folder is not None:
                        report.write(folder)
                    bar.advance(1, [_told(row) for row in rows][-1])
    return report


def _chosen(settings: SpeedSettings) -> list[str]:
    """The recipes to time, masked LM first: all others are compared with it."""
    if settings.recipes:
        for name in settings.recipes:
            find_recipe(name, "pretrain")
        names = settings.recipes
    else:
        names = [
            recipe.name
            for recipe in shipped_recipes("pretrain")
            if not _lacks_settings(recipe.name)
        ]
    return list(dict.fromkeys([REFERENCE, *names]))


def _lacks_settings(recipe: str) -> bool:
    """Whether a part needs a setting that its recipe leaves to the user."""
    flags = dict.fromkeys(("corpus", "output", "model"), "-")
    settings = PretrainSettings.given(None, flags, recipe)
    return any(part.lack() for part in assemble(settings, to_train=False))


def _identity(settings: SpeedSettings) -> dict[str, Any]:
    data = {}
    if settings.corpus is not None:
        data["corpus"] = open_corpus(settings.corpus).fingerprint()
    if settings.model is not None:
        data["model"] = model_fingerprint(model_folder(settings.model)) or settings.model
    # Rows of two chips do not belong into one table.
    return {"settings": settings.model_dump(), "data": data, "chip": _chip()}


def _check(settings: SpeedSettings, recipes: list[str], model: str) -> None:
    """Raises on what cannot work, before anything is timed."""
    positions = Backbone.load(model, "add").positions
    for length in settings.lengths:
        if length > positions:
            raise SettingsError(
                f"texts of {length} tokens are longer than the model has positions for",
                where="--length",
                allowed=f"at most {positions}",
                remedy=f"--length {positions}",
            )
        for recipe in recipes:
            settings_for(recipe, model, (length, 1), settings.seed, settings.pretrain)


def _at_length(
    settings: SpeedSettings, length: int, recipes: list[str], model: str, scratch: Path
) -> Iterator[list[Row]]:
    """The rows of one recipe after the other; with the first, that of the plain loop.

    Only masked LM and the plain loop stay: they take turns with every recipe, so that each is
    compared with what they did in the same seconds, and memory holds three models at most.
    """
    if not recipes:
        return
    _free()  # what the previous length left
    torch._dynamo.reset()  # a second length would be given kernels for any
    corpus = corpus_of(settings, Tokenizer.load(model), length, scratch)
    texts = settings.texts(length, torch.cuda.is_available())

    def ours(recipe: str) -> Ours:
        chosen = settings_for(recipe, model, (length, texts), settings.seed, settings.pretrain)
        return Ours(chosen, corpus, settings.steps, scratch / "training")

    reference = ours(REFERENCE)
    bf16 = bool(reference.trainer.args.bf16)  # what the settings mean on this machine
    batches = reference.masked()
    counted = [Texts.of(batch, reference.task.vocabulary) for batch in batches]
    field = _Field(MatrixProduct(bf16), settings)
    field.enter(REFERENCE, lambda: reference)
    field.enter(PLAIN, partial(Plain, model, batches, counted, reference.shape, bf16))
    for recipe in recipes:
        if recipe != REFERENCE:
            field.enter(recipe, partial(ours, recipe))
        names = [PLAIN, recipe] if recipe == REFERENCE else [recipe]
        rounds = [] if set(names) <= set(field.errors) else field.race()
        yield [
            Row(length, texts, name, error=field.errors[name])
            if name in field.errors
            else measured(length, texts, name, rounds)
            for name in names
        ]
        if recipe != REFERENCE:
            field.leave(recipe)


class _Field:
    """The contestants that take turns; one that fails is out, with its error."""

    def __init__(self, matrix: MatrixProduct, settings: SpeedSettings) -> None:
        self.matrix = matrix
        self.settings = settings
        self.contestants: dict[str, Contestant] = {}
        self.errors: dict[str, str] = {}

    def enter(self, name: str, build: Callable[[], Contestant]) -> None:
        """Makes a contestant and warms it up."""
        self._attempt(name, partial(self._start, name, build))

    def leave(self, name: str) -> None:
        """Frees what a contestant holds."""
        self.contestants.pop(name, None)
        _free()

    def race(self) -> list[Round]:
        """The turns of all that are left, one round after the other."""
        rounds = []
        for _ in range(self.settings.rounds):
            turns: dict[str, Turn] = {}
            chip = self.matrix.rate()
            for name in list(self.contestants):
                self._attempt(name, partial(self._take_turn, name, turns))
            rounds.append(Round(turns, chip))
        return rounds

    def _start(self, name: str, build: Callable[[], Contestant]) -> None:
        self.contestants[name] = build()
        self.contestants[name].warm_up(self.settings.warm_up)

    def _take_turn(self, name: str, turns: dict[str, Turn]) -> None:
        turns[name] = self.contestants[name].turn()

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        # Whatever it is, out of memory above all: the others go on.
        try:
            action()
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if name in self.errors:  # the error is gone, and with it what its traceback held
            self.leave(name)


@contextmanager
def _quick_collection() -> Iterator[None]:
    """Takes existing objects out of garbage collection.

    A trainer collects whenever it starts, and looking through all of torch and transformers takes
    longer than a turn.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _told(row: Row) -> str:
    if row.rate is None:
        notice(f"{row.shape} {row.recipe} failed: {row.error}")
        return f"{row.recipe} failed"
    told = f"{row.recipe} {row.rate:,.1f} sequences/s"
    notice(f"{row.shape} {told}")
    return told


def _chip() -> str:
    if device().type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _conditions(settings: SpeedSettings) -> str:
    threads = "" if device().type == "cuda" else f", {torch.get_num_threads()} threads"
    size = settings.size(torch.cuda.is_available())
    name = settings.model or f"BERT {size}, random weights"
    texts = (
        f"the first {settings.documents:,} documents of {settings.corpus}"
        if settings.corpus is not None
        else "random tokens, every text of full length"
    )
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{_chip()}{threads}; {name}; {texts}; {versions}."
