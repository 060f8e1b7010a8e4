"""What vectors of texts hold, and what a pre-training recipe masks in texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.collections import open_corpus
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.encoders.dense import DenseEncoder
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings, stored_settings
from isthmus.encoders.multi_vector import MultiVectorEncoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation.tables import Cell, Shown, Table
from isthmus.inspection.probe import probe, saved
from isthmus.nn.loading import lacks_head
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.pretraining.views import Same
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_LONGEST = 300  # characters of a text that a caption shows
_DRAWS, _AT_ONCE = 1000, 64  # of each mask, and of those together


class InspectSettings(EncodingChoice, ReadingSettings):
    """How many tokens are shown, and on what coverage is measured."""

    verb = "research inspect"

    top: int = Field(20, ge=1, description="number of tokens shown of each vector")
    k: list[Annotated[int, Field(ge=1)]] = Field(
        [1, 5, 10, 20, 50, 100, 200, 500],
        min_length=1,
        description="numbers of tokens at which coverage is measured",
    )
    documents: int = Field(300, ge=1, description="maximum number of documents for coverage")
    seed: int = Field(42, ge=0, description="draws the documents")


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token that a vector predicts, its weight, and whether the text has it."""

    token: str
    weight: float
    in_text: bool


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """What the vector that one model makes of a text predicts, largest weights first.

    `coverage` is the fraction of the text's distinct tokens among them. Of a sparse vector,
    `tokens` are all terms of the text that have a weight and the heaviest others, `expansion` is
    the number of all others, and `dropped` are tokens of the text without a weight.
    """

    model: str
    kind: Literal["dense", "sparse"]
    coverage: float
    tokens: tuple[NamedToken, ...]
    expansion: int | None = None
    dropped: tuple[str, ...] | None = None

    def cells(self) -> Iterator[Cell]:
        """A column of a table: ✓ is a token of the text, ✗ another, + an expansion."""
        other = "✗" if self.dropped is None else "+"
        for one in self.tokens:
            mark = "✓" if one.in_text else other
            yield Cell(f"{mark} {one.token} {one.weight:.2f}", quiet=not one.in_text)
        more = ""
        if self.dropped is not None:
            more = f", {self.expansion} expansions, dropped: {', '.join(self.dropped) or 'nothing'}"
        yield Cell(f"coverage {self.coverage:.0%}{more}")


@dataclass(frozen=True, slots=True)
class InspectedText:
    """A text, and what its vector predicts, by model."""

    text: str
    models: tuple[NamedTokens, ...]

    def table(self) -> Table:
        """A column per model."""
        columns = zip_longest(*(one.cells() for one in self.models), fillvalue=Cell(""))
        shown = " ".join(self.text.split())
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} …"
        names = tuple(one.model for one in self.models)
        return Table(names, tuple(columns), f"“{shown}”", names=len(names))


@dataclass(frozen=True, slots=True)
class MaskedText:
    """The words of a text in their order, each with its chance of being masked, by setting."""

    text: str
    words: tuple[tuple[str, dict[str, float]], ...]

    def table(self) -> Table:
        """A row per word, a column per setting that masks."""
        rows = tuple(
            (Cell(word), *(Cell(f"{chance:.0%}") for chance in chances.values()))
            for word, chances in self.words
        )
        caption = f"How often, in {_DRAWS:,} draws, the recipe masks a word."
        return Table(("word", *self.words[0][1]), rows, caption)


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """What the vectors of texts predict, their coverage over documents, and what is masked.

    `coverage` has, by model, the mean fraction of a text's tokens among the first k that its vector
    predicts, for every k; also those of the k `most frequent` tokens, and the `ceiling` of k.
    """

    texts: tuple[InspectedText, ...] = ()
    coverage: dict[str, dict[int, float]] | None = None
    masked: tuple[MaskedText, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    def to_json(self) -> str:
        """Everything, as a text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def tables(self) -> Iterator[Table]:
        """A table per text, and that of the coverage."""
        yield from (one.table() for one in self.texts)
        yield from (one.table() for one in self.masked)
        if self.coverage is not None:
            rows = tuple(
                (Cell(name), *(Cell(f"{share:.3f}".removeprefix("0")) for share in found.values()))
                for name, found in self.coverage.items()
            )
            columns = ("k", *map(str, next(iter(self.coverage.values()))))
            caption = "Coverage: fraction of a text's tokens among the first k of its vector."
            yield Table(columns, rows, caption)


def inspect(
    model: str,
    texts: Sequence[str] | str = (),
    *,
    compare: Sequence[str] | str = (),
    coverage: str | None = None,
    output: str | Path | None = None,
    recipe: str | Path | None = None,
    settings: InspectSettings | Overrides = None,
) -> Inspection:
    """What the vectors of texts hold: which tokens they predict, and how many of the text's own.

    A dense vector is projected to the vocabulary by the masked-LM head of its model; a sparse one
    has terms of the text and expansions. A dense model without a head is refused.
    """
    chosen = InspectSettings.given(settings)
    asked = [texts] if isinstance(texts, str) else list(texts)
    others = [compare] if isinstance(compare, str) else compare
    models = list(dict.fromkeys((model, *others)))
    if recipe is None and not asked and coverage is None:
        raise SettingsError(
            "there is neither a text to inspect nor documents to measure coverage on",
            'isthmus research inspect MODEL "a text", or MODEL --coverage DOCUMENTS',
        )
    if recipe is not None and (not asked or len(models) > 1):
        raise SettingsError(
            "a recipe shows what it masks in texts, with the tokenizer of one model",
            'isthmus research inspect MODEL "a text" --recipe RECIPE',
        )
    folders = {name: model_folder(name, "MODEL") for name in models}
    found = partial(_found, models, asked, coverage, recipe, chosen)
    if output is None:
        return found()
    opened = None if coverage is None else open_corpus(coverage, chosen.account())
    identity = {
        "settings": chosen.model_dump(mode="json"),
        "models": {name: model_fingerprint(folder) or name for name, folder in folders.items()},
        "texts": asked,
        "coverage": opened and opened.fingerprint(),
        "recipe": recipe and str(recipe),
    }
    return saved(found, Path(output), "inspect", identity)


def _found(
    models: Sequence[str],
    texts: Sequence[str],
    coverage: str | None,
    recipe: str | Path | None,
    settings: InspectSettings,
) -> Inspection:
    if recipe is not None:
        return Inspection(masked=tuple(_masked(models[0], texts, str(recipe), coverage)))
    with named_at("MODEL"):
        for name in models:  # before weights are loaded
            sparse = isinstance(known_settings(name), SparseSettings)
            if not (sparse or settings.encoder == "sparse") and lacks_head(model_folder(name)):
                raise _unreadable(f"{name} has no masked-LM head")
    columns = [_predicted(name, texts, settings) for name in models] if texts else []
    inspected = zip(texts, zip(*columns, strict=True), strict=False)
    found = tuple(InspectedText(text, named) for text, named in inspected)
    return Inspection(found, None if coverage is None else _coverage(models, coverage, settings))


def _unreadable(reason: str) -> InputError:
    return InputError(
        f"{reason}: its vectors cannot be projected to the vocabulary",
        "inspect a sparse encoder, or a model with its masked-LM head (a run of `isthmus pretrain` "
        "keeps it)",
    )


def _predicted(name: str, texts: Sequence[str], settings: InspectSettings) -> list[NamedTokens]:
    """What the vectors that a model makes of texts predict."""
    with named_at("MODEL"):
        encoder = load_encoder(name, settings.chosen(), exact=True)
    if isinstance(encoder, DenseEncoder):
        if not encoder.backbone.has_head:
            raise _unreadable(f"{name} has no masked-LM head")
        if encoder.projection is not None or encoder.settings.truncate_dim is not None:
            raise _unreadable(f"the vectors of {name} are not states as its head reads them")
    if isinstance(encoder, MultiVectorEncoder):
        raise _unreadable(f"{name} has a vector for each token")
    return [_tokens(name, encoder, text, settings.top) for text in texts]


def _tokens(name: str, encoder: DenseEncoder | SparseEncoder, text: str, top: int) -> NamedTokens:
    tokenizer = encoder.tokenizer
    (ids,) = (one.ids for one in tokenizer.split([text]))
    read = dict.fromkeys(ids[: encoder.settings.room(tokenizer)])  # neither prompt nor special ones
    own = set(read) - set(tokenizer.special_ids.tolist())
    if not ids:
        raise InputError(f"the text {text!r} has no tokens", "give a text of some words, in quotes")
    expansion: int | None = None
    if isinstance(encoder, DenseEncoder):
        (logits,) = encoder.vocabulary_logits(encoder.tokenise([Document("", text)]))
        values, places = logits[: len(tokenizer)].topk(min(top, len(tokenizer)))
        shown = dict(zip(places.tolist(), values.tolist(), strict=True))
    else:
        row = encoder.encode_documents([Document("", text)]).tocoo()
        pairs = sorted(zip(row.col.tolist(), row.data.tolist(), strict=True), key=_by_weight)
        others = [token for token, _ in pairs if token not in own]
        expansion, kept = len(others), own | set(others[:top])
        shown = {token: weight for token, weight in pairs if token in kept}
    marked = zip(tokenizer.names(shown), shown.items(), strict=True)
    return NamedTokens(
        name,
        encoder.kind,  # type: ignore[arg-type]
        len(own & shown.keys()) / max(len(own), 1),
        tuple(NamedToken(token, weight, number in own) for token, (number, weight) in marked),
        expansion,
        None if expansion is None else tuple(tokenizer.names(sorted(own - shown.keys()))),
    )


def _by_weight(pair: tuple[int, float]) -> tuple[float, int]:
    return -pair[1], pair[0]


def _coverage(
    models: Sequence[str], documents: str, settings: InspectSettings
) -> dict[str, dict[int, float]]:
    """The curve of each model, as the probe of pre-training measures it, and the lines of any."""
    ks = sorted(set(settings.k))
    lengths = [stored_settings(name).settings.document_max_length for name in models]
    vector = "lexicon" if settings.encoder == "sparse" else settings.pooling or "auto"
    report = probe(
        models,
        documents=documents,
        settings={
            "measure": {"coverage": {"curve": ks}},
            "vector": vector,
            "documents": settings.documents,
            "seed": settings.seed,
            "max_length": min(settings.document_max_length or 512, *lengths),
            **settings.reading.model_dump(),
        },
    )
    lines = {name: (name, "") for name in models}
    lines |= {"most frequent": (models[0], "constant_"), "ceiling": (models[0], "ceiling_")}
    return {
        name: {k: report.values[of][f"coverage/{line}at_{k}"] or 0.0 for k in ks}
        for name, (of, line) in lines.items()
    }


def _masked(
    model: str, texts: Sequence[str], recipe: str, documents: str | None
) -> Iterator[MaskedText]:
    """How often each mask of a recipe takes each word of texts; no model is loaded."""
    flags = {"documents": "-", "model": "-", "output": "-"}
    settings = PretrainSettings.given(None, flags, recipe)
    parts, tokenizer = assemble(settings), Tokenizer.load(model_folder(model))
    corpus = [Document(f"#{number}", text) for number, text in enumerate(texts)]
    if documents is not None:
        corpus += open_corpus(documents, settings.account()).documents()
    with TemporaryDirectory(prefix="isthmus-") as place:
        own = tokenise(corpus, "texts", tokenizer.serialised, settings.titles, cache=Path(place))
        columns = parts.columns(own, tokenizer)
        view, seed = Same(Same.Settings()), settings.training.seed
        examples = PretrainExamples(own, view, tokenizer, settings.max_length, seed, columns)
        for row, text in enumerate(texts):
            if not own.lengths[row]:
                raise InputError(f"the text {text!r} has no tokens", "give a text of some words")
            yield MaskedText(text, tuple(_words(examples, row, parts, tokenizer)))


def _words(
    examples: PretrainExamples, row: int, parts: Parts, tokenizer: Tokenizer
) -> Iterator[tuple[str, dict[str, float]]]:
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    sums: dict[str, Tensor] = {}
    for start in range(0, _DRAWS, _AT_ONCE):
        epochs = range(start, min(start + _AT_ONCE, _DRAWS))
        batch = examples.collate([examples[epoch, row] for epoch in epochs])
        for name, chances in _masks(parts, batch, vocabulary).items():
            sums[name] = sums.get(name, torch.zeros(())) + chances.sum(0)
    if not sums:
        fix = "choose a recipe with a corruption: isthmus recipes"
        raise SettingsError("the recipe masks nothing", fix)
    ids, numbers = batch["input_ids"][0], batch["words"][0].tolist()
    for number, places in groupby(range(len(numbers)), key=numbers.__getitem__):
        word = list(places)
        if number >= 0 and not vocabulary.is_special(ids[word]).all():
            mean = {name: float(total[word].mean()) / _DRAWS for name, total in sums.items()}
            yield tokenizer.backend.decode(ids[word].tolist()).strip(), mean


def _masks(parts: Parts, batch: Batch, vocabulary: Vocabulary) -> Mapping[str, Tensor]:
    """The chance of each token [texts, length], by the setting that masks it."""
    found: dict[str, Tensor] = {}
    step = Step(batch, vocabulary)
    if (corruption := parts.corruption) is not None:
        mask = corruption.choose(corruption.draw(step))
        step |= {"labels": torch.where(mask, batch["input_ids"], IGNORED)}
        found["corruption"] = mask.float()
    if (corruption := parts.decoder_corruption) is not None:
        found["decoder_corruption"] = corruption.choose(corruption.draw(step)).float()
    return found
