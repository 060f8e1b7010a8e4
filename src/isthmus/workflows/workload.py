"""How much work the steps of an adaptation are, relative to each other: for the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from isthmus.collections import open_collection
from isthmus.finetuning.merge import TRYING
from isthmus.finetuning.negatives._base import listed
from isthmus.finetuning.pseudo_queries._base import HELD_OUT_DOCUMENTS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.progress import Part
from isthmus.text.passages import PassageSettings
from isthmus.workflows.adapt_settings import AdaptSettings

_FULL = 2 / 3  # of an average passage: many end at a heading
_TRAINED = 4.0  # passes over a text: forwards and backwards, and the encoder as it was
_BM25 = 0.01  # of an encoder's work on a text
_SEARCH = 0.1  # of the work of indexing, about: how many queries there are is not known
_TRIES = 5  # shares of what was learnt, and none of it


def work(
    settings: AdaptSettings,
    trained: Mapping[str, FinetuneSettings],
    tokens: Sequence[float],
    in_passages: bool,
    judged: bool,
    guards: int,
) -> list[Part]:
    """The bars that take long, in order, with the tokens that pass the encoder in each.

    `tokens` are those of every document, `guards` the documents of the guard collection.
    """
    length = next(iter(trained.values())).document_max_length
    lengths = [min(one, length) for one in tokens]
    if in_passages:
        cut = settings.passages
        longest = (cut.length if isinstance(cut, PassageSettings) else None) or length
        counts = [max(1, ceil(one / (longest * _FULL))) for one in tokens]
        lengths = [one / n for one, n in zip(tokens, counts, strict=True) for _ in range(n)]
    parts = [part for stage in trained.values() for part in _trained(stage, lengths)]
    bar, indexed, rows = f"indexing {settings.documents}", sum(lengths), len(lengths)
    encoders = len(trained) + 1 if judged else 1
    parts += [Part(bar, indexed * _BM25), *[Part(bar, indexed, rows)] * encoders]
    if judged:
        parts.append(Part("search", indexed * _SEARCH))
    if guards:
        guarded = indexed * guards / len(tokens)
        parts += [Part(f"indexing {settings.guard}", guarded)] * 2
        parts.append(Part("search", guarded * _SEARCH))
    return parts


def _trained(stage: FinetuneSettings, lengths: Sequence[float]) -> list[Part]:
    """Training, and the search for how much of it is taken over."""
    training = Part("fine-tune", _training(stage, lengths))
    if stage.merge is None or stage.merge.share is not None:
        return [training]
    rows, drawn = len(lengths), stage.pseudo_queries
    kept = min(HELD_OUT_DOCUMENTS if drawn is None else drawn.held_out, rows / 10)
    passes, tries = _TRIES * kept, _TRIES
    if drawn is not None and stage.development is not None:
        passes += 2 * min(stage.development.documents + kept, rows)
        tries += 2
    return [training, Part(TRYING, passes * sum(lengths) / rows, tries)]


def _training(stage: FinetuneSettings, lengths: Sequence[float]) -> float:
    most = stage.training_max_length or stage.document_max_length
    document = sum(min(one, most) for one in lengths) / len(lengths)
    texts: int = 1 + sum(one.get("num_negatives", 1) for one in listed(stage.negatives))
    batch = stage.training.per_device_train_batch_size
    steps: float = stage.training.max_steps or 0
    if not steps:
        queries = len(open_collection(stage.collection).judgements(stage.split))
        steps = stage.training.num_train_epochs * queries / batch
    return steps * batch * _TRAINED * (texts * document + stage.query_max_length / 2)
