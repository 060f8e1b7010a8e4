"""The command `pretrain`: an encoder trained on documents, without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.cluster import connected
from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.config.model_card import finish_model
from isthmus.config.models import model_fingerprint, model_folder
from isthmus.config.output import (
    START,
    claimed,
    is_complete,
    notice_changes,
    refuse_inside,
    whole_folder,
    writing,
)
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.pretraining.examples import PretrainExamples, check_texts
from isthmus.pretraining.handover import describe, say_what_changes
from isthmus.pretraining.probes import (
    FEWEST,
    TOPIC,
    HeldOut,
    Probing,
    Rows,
    assemble_probes,
    report_probes,
    split,
)
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import PretrainSettings, ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.progress import notice, track
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer
from isthmus.training.checkpoints import restoring
from isthmus.training.evaluation import BEST, best_evaluation
from isthmus.training.parallel import main_process_first, wait_for_everyone
from isthmus.training.trainer import Trainer, check_trackers

Snapshot = Mapping[str, Any]


def run(
    settings: PretrainSettings, overwrite: bool = False, earlier: Snapshot | None = None
) -> Path:
    """Trains an encoder from complete settings; returns the folder `final`.

    `earlier` is the snapshot of a run that the settings are of.
    """
    with ExitStack() as claims:
        return _run(settings, claims, overwrite, earlier)


def _run(
    settings: PretrainSettings, claims: ExitStack, overwrite: bool, earlier: Snapshot | None
) -> Path:
    parts = assemble(settings)
    probes = assemble_probes(settings.probes, parts)
    check_trackers(settings.training)
    problems = settings.account()
    texts = open_corpus(settings.documents, problems)
    output = Path(settings.output)
    final = output / "final"
    with main_process_first(), connected(settings.cluster):
        identity = _identity(settings, parts, texts)
        notice_changes(earlier, identity)
        if overwrite:
            refuse_inside(output, {"documents": settings.documents, "model": settings.model})
        claims.enter_context(claimed(output, "pretrain", identity, overwrite))
        if is_complete(output):
            notice(f"{output} is complete already (--overwrite does it again)")
            return final
        tokenizer, backbone = _start(settings, texts)
        say_what_changes(settings, parts)
        backbone.check_length(settings.max_length, "max_length")
        # Parts refuse a model that they cannot work with: before the corpus is read.
        task = PretrainTask(backbone, tokenizer, parts, settings.training.seed)
        # What is skipped changes the corpus, and what is refused must be refused again.
        source = f"{texts.fingerprint()} {settings.kept}"
        tokenised = tokenise(texts.documents(), source, tokenizer.serialised, settings.titles)
        if summary := tokenised.remember(problems.summary()):
            notice(summary)
        check_texts(tokenised, settings.documents)
        columns = parts.columns(tokenised, tokenizer)
    if settings.size is None:
        task.continue_from(Path(model_folder(settings.model)))
    seed = settings.training.seed
    rows, held_out = split(tokenised, settings.probes, seed)
    examples = PretrainExamples(
        tokenised, parts.view, tokenizer, settings.max_length, seed, columns, rows
    )
    trainer = Trainer(task, examples, settings.training, output, description="pre-train")
    if len(held_out):
        notice(f"{len(held_out):,} documents are held out for the probes")
        prepare = partial(_held_out, settings, examples, held_out, task)
        trainer.add_callback(Probing(trainer, probes, prepare, settings.probes))
    elif settings.probes.documents:
        _say_why_none(settings.probes, len(tokenised))
    history = trainer.fit()
    if trainer.is_world_process_zero():
        results: dict[str, Any] = {"documents": len(tokenised), "held_out": len(held_out)}
        told = report_probes(history, probes, output)
        if (output / BEST).is_dir():  # not where the chosen probe never gave a number
            results["best_step"] = _take_best(task, output)
            told += _say_which_is_final(settings.probes, results["best_step"])
        if told:
            notice(told)
        with writing(final):
            task.save(final)
            describe(final, backbone, tokenizer, settings, parts)
        after = [settings.model] if settings.size is None else []
        finish_model(output, {**results, "log": history}, after)
    wait_for_everyone()
    return final


def _identity(settings: PretrainSettings, parts: Parts, texts: Corpus) -> dict[str, Any]:
    data = {"documents": texts.fingerprint()}
    if settings.size is None:
        data["model"] = model_fingerprint(model_folder(settings.model)) or settings.model
    for part in parts:
        data |= part.data()
    # Not the output: the folder may move, and be named in several ways. Not the cluster: with it
    # and without, the same is learnt.
    return {"settings": settings.model_dump(exclude={"output", "cluster"}), "data": data}


def _held_out(
    settings: PretrainSettings, examples: PretrainExamples, rows: Rows, task: PretrainTask
) -> HeldOut:
    corpus = open_corpus(settings.documents, Problems("skip", settings.line_limit))
    return HeldOut(examples, rows, corpus.documents(), task, settings.probes)


def _take_best(task: PretrainTask, output: Path) -> int:
    """Restores the best model into the task; returns its step."""
    with restoring(output / BEST):
        task.restore(output / BEST)
        return int(best_evaluation(output, TOPIC)["step"])


def _say_which_is_final(probes: ProbeSettings, step: int) -> str:
    trained = "" if step else ": NOT TRAINED, the model was best before the first step"
    return f"\nfinal: the best by {probes.best_by}, step {step:,}{trained}"


def _say_why_none(probes: ProbeSettings, documents: int) -> None:
    reason = f"they need {FEWEST} held-out documents, a twentieth of {20 * FEWEST:,}; "
    if probes.documents < FEWEST:
        reason += f"probes.documents = {probes.documents}"
    else:
        reason += f"there are {documents:,}"
    if probes.best_by is not None:
        raise SettingsError(
            f"probes.best_by = {probes.best_by!r} cannot be followed: {reason}",
            "--set probes.best_by=null --set probes.patience=null",
        )
    notice(f"no probes: {reason}")


def _start(settings: PretrainSettings, texts: Corpus) -> tuple[Tokenizer, Backbone]:
    training = settings.training
    if settings.size is None:
        name = model_folder(settings.model)
    else:
        start = Path(settings.output) / START
        name = str(
            start_from_nothing(
                lambda: (document.contents(settings.titles) for document in texts.documents()),
                settings.size,
                settings.vocabulary,
                start,
                training.seed,
            )
        )
    return Tokenizer.load(name), Backbone.load(name, "add", training.dropout, training.seed)


@dataclass(frozen=True)
class _Texts:
    """Texts that can be iterated several times; each pass reads them anew."""

    read: Callable[[], Iterable[str]]

    def __iter__(self) -> Iterator[str]:
        return track(self.read(), "train tokenizer", unit="documents")


def start_from_nothing(
    read: Callable[[], Iterable[str]], size: str, vocabulary: int, folder: Path, seed: int
) -> Path:
    """The folder of an untrained model, made once, from the texts that `read` gives each time."""
    if not folder.is_dir():
        tokenizer = new_tokenizer(_Texts(read), vocabulary)
        backbone = new_backbone(size, len(tokenizer), tokenizer.pad_id, seed=seed)
        tokenizer.pretrained.model_max_length = backbone.positions
        with whole_folder(folder) as partial:
            tokenizer.save(partial)
            backbone.save(partial)
    return folder
