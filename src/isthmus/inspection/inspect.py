"""The command `isthmus inspect`: what vectors of texts hold, and what a recipe masks in texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from isthmus.collections import Problems, open_corpus
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import claimed, finish, writing
from isthmus.encoders.dense import DenseEncoder
from isthmus.encoders.light_dense import QuickEncoder
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.inspection.coverage import Coverage, coverage_of, lines_of
from isthmus.inspection.inspected import (
    InspectedText,
    Inspection,
    NamedToken,
    NamedTokens,
)
from isthmus.inspection.masked_words import masked_texts, no_tokens
from isthmus.inspection.probe import measured_rows
from isthmus.inspection.vocabulary_view import VocabularyView, no_own_head, special_tokens
from isthmus.nn.pretrained import lacks_head
from isthmus.pretraining.examples import check_texts
from isthmus.pretraining.probes.coverage import ranked_tokens
from isthmus.pretraining.settings import MeasurementSettings
from isthmus.progress import notice, said_once
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer

Model = str | DenseEncoder | SparseEncoder
"""A folder or name, or an encoder that is loaded already."""
Views = Mapping[str, VocabularyView]


class InspectSettings(EncodingChoice, ReadingSettings):
    """How many tokens are shown, and on what coverage is measured."""

    verb = "inspect"

    top: int = Field(20, ge=1, description="tokens of each vector that are shown")
    k: list[Annotated[int, Field(ge=1)]] = Field(
        [1, 5, 10, 20, 50, 100, 200, 500],
        min_length=1,
        description="numbers of tokens at which coverage is measured",
    )
    documents: int = Field(
        300,
        ge=1,
        description="on which coverage is measured: those that a training of this seed holds out, "
        "at most a twentieth of the corpus; of a corpus too small for that, any",
    )
    draws: int = Field(1000, ge=1, description="of each masking of a recipe, to count chances")
    seed: int = Field(42, ge=0, description="draws the documents")


def inspect(
    model: Model,
    texts: Sequence[str] | str = (),
    *,
    beside: Sequence[Model] | Model = (),
    coverage: str | None = None,
    documents: int | None = None,
    top: int | None = None,
    queries: bool = False,
    recipe: str | Path | None = None,
    corpus: str | None = None,
    output: str | Path | None = None,
    settings: InspectSettings | Overrides = None,
) -> Inspection:
    """What the vectors of texts name, of a model and others `beside` it.

    A dense vector is projected to the vocabulary by the masked-LM head of its model; a sparse one
    has terms of the text and expansions. With `coverage`, a corpus, also the share of a text's
    tokens among the first k that its vector names, over so many `documents` of it. A dense model
    without a head is refused. Texts are read as documents, or as `queries`. With `output`, that
    folder holds everything as JSON, tables and the plot of the coverage.

    With a pre-training `recipe`, instead how often each of its maskings takes each word of the
    texts; of the model, the tokenizer alone is loaded. A recipe that masks by importance weighs
    words by the n-grams of `corpus`.
    """
    chosen = InspectSettings.given(settings, {"documents": documents, "top": top})
    asked = [texts] if isinstance(texts, str) else list(texts)
    if recipe is not None and (not asked or beside or coverage is not None):
        raise SettingsError(
            "what a recipe masks is asked of texts alone",
            'isthmus inspect MODEL "a text" … --recipe NAME, without --beside and --coverage',
        )
    if not asked and coverage is None:
        raise SettingsError(
            "there is neither a text to inspect nor a corpus to measure coverage on",
            'isthmus inspect MODEL "a text" …, or MODEL --coverage CORPUS',
        )
    if recipe is None:
        run = partial(_inspected, _models(model, beside), asked, coverage, queries, chosen)
    else:
        run = partial(_masked, model, asked, str(recipe), corpus, chosen)
    if output is None:
        return run()
    source = None if coverage is None else open_corpus(coverage, chosen.account()).fingerprint()
    identity = {
        "settings": chosen.model_dump(mode="json"),
        "models": list(map(_identity, _models(model, beside))),
        "texts": asked,
        "coverage": source,
        "queries": queries,
        "recipe": recipe and str(recipe),
        "corpus": corpus,
    }
    with claimed(Path(output), "inspect", identity):
        found = run()
        with writing(Path(output)):
            _save(found, Path(output))
            finish(Path(output))
    return found


def _models(model: Model, beside: Sequence[Model] | Model) -> list[Model]:
    """All models, each once."""
    others = [beside] if isinstance(beside, str | DenseEncoder | SparseEncoder) else list(beside)
    return list({_name(one): one for one in (model, *others)}.values())


def _name(model: Model) -> str:
    return model if isinstance(model, str) else model.name


def _identity(model: Model) -> str:
    if not isinstance(model, str):
        return model.fingerprint
    return model_fingerprint(model_folder(model, "MODEL")) or model


def _inspected(
    models: Sequence[Model],
    texts: Sequence[str],
    coverage: str | None,
    queries: bool,
    settings: InspectSettings,
) -> Inspection:
    _check_heads(models, settings)
    measured: Sequence[Document] = ()
    if coverage is not None:
        # The first model's tokenizer decides which documents, as in a training of it.
        first = _loaded(models[0], settings)
        models = [first, *models[1:]]
        measured, frequent = _held_out(coverage, first, settings)
    views = _views(models, settings)
    named = _named(views, texts, queries, settings.top)
    if coverage is None:
        return Inspection(named)
    return Inspection(named, _coverage(views, coverage, measured, frequent, settings.k))


def _masked(
    model: Model, texts: list[str], recipe: str, corpus: str | None, settings: InspectSettings
) -> Inspection:
    tokenizer = (
        Tokenizer.load(model_folder(model, "MODEL")) if isinstance(model, str) else model.tokenizer
    )
    return Inspection(masked=masked_texts(tokenizer, texts, recipe, corpus, settings.draws))


def _loaded(model: Model, settings: InspectSettings) -> DenseEncoder | SparseEncoder:
    if isinstance(model, QuickEncoder):
        return model.loaded
    if not isinstance(model, str):
        return model
    with named_at("MODEL"):
        return load_encoder(model, settings.chosen(), exact=True)


def _check_heads(models: Sequence[Model], settings: InspectSettings) -> None:
    """Refuses, before weights are loaded, models by name that have no head."""
    for name in (model for model in models if isinstance(model, str)):
        with named_at("MODEL"):
            sparse = isinstance(known_settings(name), SparseSettings)
            if not (sparse or settings.encoder == "sparse") and lacks_head(model_folder(name)):
                raise _unreadable(f"{name} has no masked-LM head")


def _unreadable(reason: str) -> InputError:
    return InputError(
        f"{reason}: what its vectors hold cannot be named",
        "inspect a sparse encoder, or a model with its masked-LM head (a run of `isthmus pretrain` "
        "keeps it)",
    )


@said_once()
def _views(models: Sequence[Model], settings: InspectSettings) -> Views:
    """What each model names, by its name."""
    views = {}
    for encoder in (_loaded(model, settings) for model in models):
        if reason := no_own_head(encoder):
            raise _unreadable(reason)
        views[encoder.name] = VocabularyView(encoder)
    if len({view.encoder.tokenizer.fingerprint for view in views.values()}) > 1:
        notice("the models have different tokenizers: what their vectors cover is not comparable")
    return views


def _held_out(
    corpus: str, encoder: DenseEncoder | SparseEncoder, settings: InspectSettings
) -> tuple[list[Document], torch.Tensor]:
    """The documents that coverage is measured on, and all tokens, the most frequent first."""
    source = open_corpus(corpus, settings.account())
    tokenised = tokenise(
        source.documents(),
        f"{source.fingerprint()} {settings.kept}",
        encoder.tokenizer.serialised,
        encoder.settings.titles,
    )
    check_texts(tokenised, corpus)
    measured = MeasurementSettings(documents=settings.documents)
    rest, rows = measured_rows(tokenised, measured, settings.seed)
    wanted = set(rows.tolist())
    again = open_corpus(corpus, Problems("skip", settings.line_limit)).documents()
    documents = enumerate(islice(again, max(wanted) + 1))
    return (
        [document for row, document in documents if row in wanted],
        ranked_tokens(tokenised, rest, special_tokens(encoder)),
    )


def _named(
    views: Views, texts: Sequence[str], queries: bool, top: int
) -> tuple[InspectedText, ...]:
    for number, text in enumerate(texts, start=1):
        if not all(view.encoder.has_tokens(text) for view in views.values()):
            raise no_tokens(number, text)
    return tuple(
        InspectedText(text, tuple(_tokens(view, text, queries, top) for view in views.values()))
        for text in texts
    )


def _tokens(view: VocabularyView, text: str, queries: bool, top: int) -> NamedTokens:
    encoder, sparse = view.encoder, isinstance(view.encoder, SparseEncoder)
    own = set(torch.nonzero(view.sets([text], queries)[0]).flatten().tolist())
    (named,) = view.named([text], encoder.dimension if sparse else top, queries)
    shown, expansion = named, 0
    if sparse:
        others = [token for token in named if token not in own]
        expansion = len(others)
        shown = {token: named[token] for token in named if token in own or token in others[:top]}
    hits = own & set(named)
    names = encoder.tokenizer.names
    return NamedTokens(
        encoder.name,
        "sparse" if sparse else "dense",
        len(hits) / max(len(own), 1),
        tuple(
            NamedToken(name, weight, token in own)
            for name, (token, weight) in zip(names(shown), shown.items(), strict=True)
        ),
        len(hits) if sparse else None,
        expansion if sparse else None,
        tuple(names(sorted(own - hits))) if sparse else None,
    )


def _coverage(
    views: Views,
    corpus: str,
    documents: Sequence[Document],
    frequent: torch.Tensor,
    k: Sequence[int],
) -> Coverage:
    lengths = {view.encoder.settings.document_max_length for view in views.values()}
    if len(lengths) > 1:
        notice(
            f"the models read texts to different lengths, {min(lengths)} to {max(lengths)} tokens: "
            f"--set document_max_length={min(lengths)} compares them on the same"
        )

    def texts(view: VocabularyView) -> list[str]:
        return [document.contents(view.encoder.settings.titles) for document in documents]

    first = next(iter(views.values()))
    ordered = tuple(sorted(set(k)))
    return Coverage(
        corpus,
        len(documents),
        ordered,
        {name: coverage_of(view, texts(view), ordered) for name, view in views.items()},
        **lines_of(first, texts(first), frequent, ordered),
    )


def _save(found: Inspection, folder: Path) -> None:
    (folder / "inspection.json").write_text(f"{found.to_json()}\n", encoding="utf-8")
    if tables := [one.markdown() for one in Inspection(found.texts, None, found.masked).tables()]:
        (folder / "texts.md").write_text("\n".join(tables), encoding="utf-8")
    if found.coverage is not None:
        found.coverage.save(folder)
