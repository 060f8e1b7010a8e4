"""How a pre-trained encoder is meant to be used: with the vector that was trained."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from isthmus.config.encoding import Pooling
from isthmus.config.models import model_folder
from isthmus.config.output import read_snapshot
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.model_settings import known_settings, per_text
from isthmus.encoders.modules import projecting
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.objectives import Objective
from isthmus.pretraining.probes import LEXICON_TERMS
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.registries import OBJECTIVES
from isthmus.pretraining.settings import PretrainSettings
from isthmus.progress import notice
from isthmus.text.tokenizer import Tokenizer


def describe(
    folder: Path,
    backbone: Backbone,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    parts: Parts,
) -> None:
    """Writes the encoder's settings for `isthmus index` and sentence-transformers."""
    chosen = _encoding(settings, parts)
    if isinstance(chosen, SparseSettings):
        SparseEncoder(backbone, tokenizer, chosen).describe(folder)
    else:
        DenseEncoder(backbone, tokenizer, chosen).describe(folder)


def say_what_changes(settings: PretrainSettings, parts: Parts) -> None:
    """Prints a notice where the model was made for another pooling than this recipe trains."""
    before, after = _known(settings), _encoding(settings, parts)
    if any(after.prompts()):
        notice(
            f"{settings.model} has prompts: pre-training reads texts without them; fine-tuning, "
            "indexing and searching use them"
        )
    if settings.size is None and projecting(model_folder(settings.model)):
        notice(f"{settings.model} has modules after its pooling: they are left out")
    if not isinstance(before, DenseSettings) or not isinstance(after, DenseSettings):
        return
    if before.pooling != after.pooling:
        notice(
            f"{settings.model} was made with pooling={before.pooling}; this recipe trains "
            f"{after.pooling}, which the trained encoder uses"
            f"{_how_to_keep(before.pooling, parts)}"
        )


def next_recipe_of(output: Path) -> str | None:
    """The recipe to fine-tune with that a part of a pre-training names; None: the default."""
    values = {**read_snapshot(output)["identity"]["settings"], "output": str(output)}
    parts = assemble(PretrainSettings.parse(values, where=str(output)))
    return next(filter(None, (part.finetune_with for part in parts)), None)


def _how_to_keep(pooling: Pooling, parts: Parts) -> str:
    """The setting that trains the vector which a model was made for, the recipe's own first."""
    for name in (*parts.objectives, *OBJECTIVES.names()):
        objective: type[Objective] = OBJECTIVES.load(name)
        ways = dict[str, str](objective.setting_to_train.items())
        if setting := ways.get(pooling):
            return f" (--set objectives.{name}.{setting} trains {pooling})"
    return ""


def _encoding(settings: PretrainSettings, parts: Parts) -> DenseSettings | SparseSettings:
    vector, before, similarity = parts.vector, _known(settings), "dot"
    read = {
        "query_max_length": min(64, settings.max_length),
        "document_max_length": settings.max_length,
        "titles": settings.titles,
        **(before.model_dump(include={"query_prompt", "document_prompt"}) if before else {}),
    }
    if vector == "lexicon":
        kept = {"form": "lexmae", "query_terms": LEXICON_TERMS, "document_terms": LEXICON_TERMS}
        return SparseSettings.parse({**kept, **read}, where="pretrain")
    if isinstance(before, DenseSettings):
        read |= before.model_dump(include={"include_prompt"})
        if before.pooling == vector:
            similarity = before.similarity
    similarity = settings.similarity or similarity
    return DenseSettings.parse(
        {"pooling": vector, "similarity": similarity, **read}, where="pretrain"
    )


def _known(settings: PretrainSettings) -> DenseSettings | SparseSettings | None:
    if settings.size is None:
        with suppress(InputError):  # pooled in a way that isthmus does not know
            return per_text(known_settings(settings.model))
    return None
