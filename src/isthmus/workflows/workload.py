"""How much work the steps of an adaptation are, relative to each other: for the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.collections import open_collection
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.workflows.adapt_settings import AdaptSettings

_TOKENS = 1.4  # of a word
_TRAINED = 4.0  # passes over a text: forwards and backwards, and the encoder as it was
_BM25 = 0.01  # of an encoder's work on a text
_SEARCH = 0.1  # of the work of indexing, about: how many queries there are is not known


def work(
    settings: AdaptSettings,
    trained: Mapping[str, FinetuneSettings],
    words: Sequence[int],
    judged: bool,
    guards: int,
) -> list[tuple[str, float]]:
    """The bars that take long, in order, with the tokens that pass the encoder in each.

    `words` are those of every document, `guards` the documents of the guard collection.
    """
    parts = [("fine-tune", _training(stage, words)) for stage in trained.values()]
    length = next(iter(trained.values())).document_max_length
    indexed = _tokens(words, None if settings.passages else length)
    bar = f"indexing {settings.documents}"
    encoders = len(trained) + 1 if judged else 1
    parts += [(bar, indexed * _BM25), *[(bar, indexed)] * encoders]
    if judged:
        parts.append(("search", indexed * _SEARCH))
    if guards:
        guarded = indexed * guards / len(words)
        parts += [(f"indexing {settings.guard}", guarded)] * 2
        parts.append(("search", guarded * _SEARCH))
    return parts


def _training(stage: FinetuneSettings, words: Sequence[int]) -> float:
    document = _tokens(words, stage.training_max_length or stage.document_max_length) / len(words)
    negatives = stage.negatives or []
    listed = [negatives] if isinstance(negatives, dict) else negatives
    texts: int = 1 + sum(one.get("num_negatives", 1) for one in listed)
    batch = stage.training.per_device_train_batch_size
    steps: float = stage.training.max_steps or 0
    if not steps:
        queries = len(open_collection(stage.collection).judgements(stage.split))
        steps = stage.training.num_train_epochs * queries / batch
    return steps * batch * _TRAINED * (texts * document + stage.query_max_length / 2)


def _tokens(words: Sequence[int], most: int | None) -> float:
    return sum(min(number * _TOKENS, most or float("inf")) for number in words)
