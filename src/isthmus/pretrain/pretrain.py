"""The verb: teach an encoder a corpus, without labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.config import resolve
from isthmus.config.output import claim, finish, is_complete, whole_folder
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.loading import model_folder
from isthmus.nn.sizes import new_backbone
from isthmus.pretrain.recipe import PretrainSettings, assemble
from isthmus.pretrain.step import PretrainExamples, PretrainTask
from isthmus.progress import notice, track
from isthmus.text.corpus import tokenise
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.launch import main_process_first
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
        identity = {"settings": settings.model_dump(), "data": {"corpus": texts.fingerprint()}}
        claim(output, "pretrain", identity)
        if is_complete(output):
            notice(f"{output} is complete already")
            return final
        tokenizer, backbone = _start(settings, texts)
        tokenised = tokenise(
            texts.documents(), texts.fingerprint(), tokenizer.serialised, settings.titles
        )
    if problems.counts:
        notice(problems.summary())
    _check_length(settings, backbone)
    task = PretrainTask(backbone, tokenizer, parts)
    examples = PretrainExamples(
        tokenised, parts.view, tokenizer, settings.max_length, settings.training.seed
    )
    trainer = Trainer(task, examples, settings.training, output, description="pre-train")
    history = trainer.fit()
    if trainer.is_world_process_zero():
        task.save(final)
        finish(output, {"documents": len(tokenised), "log": history})
    return final


def _start(settings: PretrainSettings, texts: Corpus) -> tuple[Tokenizer, Backbone]:
    training = settings.training
    if settings.model is not None:
        name = model_folder(settings.model)
        tokenizer = Tokenizer.load(name)
        return tokenizer, Backbone.load(name, "add", training.dropout, training.seed)
    assert settings.init is not None
    tokenizer = _learnt_tokenizer(settings, texts)
    dropout = 0.1 if training.dropout is None else training.dropout
    return tokenizer, new_backbone(
        settings.init, len(tokenizer), tokenizer.pad_id, dropout=dropout, seed=training.seed
    )


def _learnt_tokenizer(settings: PretrainSettings, texts: Corpus) -> Tokenizer:
    # Kept from the moment it exists: learning it again could break ties another way, and
    # everything that was tokenised or trained so far would be lost.
    folder = Path(settings.output) / "tokenizer"
    if not folder.is_dir():
        contents = (document.contents(settings.titles) for document in texts.documents())
        learnt = new_tokenizer(
            track(contents, "learn tokenizer", unit="documents"), settings.vocabulary
        )
        with whole_folder(folder) as partial:
            learnt.save(partial)
    return Tokenizer.load(str(folder))


def _check_length(settings: PretrainSettings, backbone: Backbone) -> None:
    limit = getattr(backbone.config, "max_position_embeddings", None)
    if limit is not None and settings.max_length > limit:
        raise SettingsError(
            f"max_length = {settings.max_length} is more than the model has positions for",
            where="max_length",
            allowed=f"at most {limit}",
            remedy=f"--set max_length={limit}",
        )
