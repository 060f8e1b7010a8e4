"""The verb: teach an encoder a corpus, without labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.config import resolve
from isthmus.config.output import START, claim, finish, is_complete, writing
from isthmus.nn.backbone import Backbone
from isthmus.nn.loading import model_fingerprint, model_folder
from isthmus.pretrain.recipe import PretrainSettings, assemble
from isthmus.pretrain.scratch import start_from_nothing
from isthmus.pretrain.step import PretrainExamples, PretrainTask
from isthmus.progress import notice
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.launch import main_process_first, wait_for_everyone
from isthmus.training.trainer import Trainer


def pretrain(
    corpus: str | None = None,
    output: str | None = None,
    model: str | None = None,
    init: str | None = None,
    recipe: str | None = "bow",
    overrides: Mapping[str, Any] | Iterable[str] = (),
) -> Path:
    """Trains an encoder on a corpus; returns the folder `final`, which AutoModel loads.

    Run again after an interruption, it goes on from the last checkpoint.
    """
    flags = {"corpus": corpus, "output": output, "model": model, "init": init}
    settings = PretrainSettings.parse(
        resolve("pretrain", recipe, flags, overrides), where=f"recipe {recipe}"
    )
    return run(settings)


def run(settings: PretrainSettings) -> Path:
    """The same, from settings that are already complete."""
    parts = assemble(settings)
    problems = Problems(settings.problems)
    texts = open_corpus(settings.corpus, problems)
    output = Path(settings.output)
    final = output / "final"
    with main_process_first():
        data = {"corpus": texts.fingerprint()}
        if settings.model is not None:
            data["model"] = model_fingerprint(model_folder(settings.model)) or settings.model
        # Not the output: the folder may move, and be named in several ways.
        identity = {"settings": settings.model_dump(exclude={"output"}), "data": data}
        claim(output, "pretrain", identity)
        if is_complete(output):
            notice(f"{output} is complete already")
            return final
        tokenizer, backbone = _start(settings, texts)
        backbone.check_length(settings.max_length, "max_length")
        # What is skipped changes the corpus, and what is refused must be refused again.
        source = f"{texts.fingerprint()} {settings.problems}"
        tokenised = tokenise(texts.documents(), source, tokenizer.serialised, settings.titles)
        if summary := tokenised.remember(problems.summary()):
            notice(summary)
    task = PretrainTask(backbone, tokenizer, parts)
    examples = PretrainExamples(
        tokenised, parts.view, tokenizer, settings.max_length, settings.training.seed
    )
    trainer = Trainer(task, examples, settings.training, output, description="pre-train")
    history = trainer.fit()
    if trainer.is_world_process_zero():
        with writing(final):
            task.save(final)
        finish(output, {"documents": len(tokenised), "log": history})
    wait_for_everyone()
    return final


def _start(settings: PretrainSettings, texts: Corpus) -> tuple[Tokenizer, Backbone]:
    training = settings.training
    if settings.model is not None:
        name = model_folder(settings.model)
    else:
        assert settings.init is not None
        contents = (document.contents(settings.titles) for document in texts.documents())
        start = Path(settings.output) / START
        name = str(
            start_from_nothing(contents, settings.init, settings.vocabulary, start, training.seed)
        )
    return Tokenizer.load(name), Backbone.load(name, "add", training.dropout, training.seed)
