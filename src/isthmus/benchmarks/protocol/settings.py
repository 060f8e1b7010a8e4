"""The protocol of a benchmark: methods x retrievers x tasks x seeds, and what tests them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from isthmus.benchmarks.protocol.claims import Claim, ExpectedTable
from isthmus.benchmarks.protocol.runs import Run
from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, choices
from isthmus.evaluation.measures import parse_measure

PROTOCOL = "protocol.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_ELSEWHERE = {
    "documents": "corpus of a method or of a collection",
    "collection": "collection of a task",
    "output": "--output",
    "model": "model or init of the base, or model of a method",
    "queries": "queries of a task",
    "training.seed": "seeds",
}
Seed = Annotated[int, Field(ge=0, lt=10_000)]
Values = dict[str, Any]
T = TypeVar("T")


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} becomes part of file names: use small letters, digits, - and _")
    return name


def _free(values: Values) -> Values:
    """Refuses settings that would have no effect, since another key of the protocol sets them."""
    training = values.get("training")
    named = {*values, *(f"training.{key}" for key in training or ())} if isinstance(
        training, Mapping) else {*values}  # fmt: skip
    for name in sorted(named & _ELSEWHERE.keys()):
        raise ValueError(f"{name} has no effect: set {_ELSEWHERE[name]}")
    return values


def _distinct(values: list[T]) -> list[T]:
    if len({*values}) != len(values):
        raise ValueError("one of them is listed twice")
    return values


def _spelt(measure: str) -> str:
    return str(parse_measure(measure, answers=True))


Name = Annotated[str, AfterValidator(_plain)]
Overrides = Annotated[Values, AfterValidator(_free)]
Model = Annotated[str, Field(min_length=1)]
Measures = Annotated[
    list[Annotated[str, AfterValidator(_spelt)]], Field(min_length=1), AfterValidator(_distinct)
]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]


def _end(what: str, name: str, following: Callable[[str], str | None]) -> None:
    """Raises where names that follow each other never end."""
    names = [name]
    while (other := following(names[-1])) is not None:
        if other in names:
            raise ValueError(f"{what} itself: {' → '.join(names)}")
        names.append(other)


class BaseSettings(Settings):
    """The model that all methods begin with: a checkpoint, or a model trained on texts first."""

    model: Model | None = Field(None, description="Folder, hub name or package:NAME")
    texts: list[str] = Field(
        [], description="Corpora to train it on instead, cut into paragraphs and joined"
    )
    paragraph: int = Field(300, ge=1, description="Minimum number of characters of a paragraph")
    init: str = Field("6x384", description="Size before training: tiny, …, or LAYERSxWIDTH")
    recipe: str = Field("mlm", description="Recipe it is pre-trained with")
    settings: Values = Field({}, description="Settings over the recipe's")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.model is None) == (not self.texts):
            raise ValueError("give either model (a checkpoint) or texts (to train one on)")
        return self


class RecipeSettings(Settings):
    """A recipe of the protocol's own: what it says over another."""

    base: str = Field(description="Shipped recipe, or another of the protocol")
    settings: Values = Field(description="Settings over those of the base")


class MethodSettings(Settings):
    """How a model is pre-trained: the base as it is, after a recipe, or another checkpoint."""

    recipe: str | None = Field(None, description="Pre-training recipe (default: none)")
    settings: Overrides = Field({}, description="Settings over the recipe's")
    corpus: str | None = Field(
        None, description="Collection or corpus to pre-train on (default: the task's collection)"
    )
    after: str | None = Field(None, description="Method that comes first (default: the base)")
    model: Model | None = Field(None, description="Checkpoint instead of the base")
    finetuning: Overrides = Field({}, description="Settings of fine-tuning for this method alone")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.model is not None and self.after is not None:
            raise ValueError("give either model or after")
        if self.recipe is None and (self.settings or self.corpus or self.after):
            raise ValueError("settings, corpus and after need a recipe")
        return self


class RetrieverSettings(Settings):
    """What a model becomes: a dense or sparse retriever, by a fine-tuning recipe."""

    recipe: str = Field(description="Fine-tuning recipe")
    settings: Overrides = Field({}, description="Settings over the recipe's")


class TeacherSettings(Settings):
    """The re-ranker that all runs of a task learn from: a checkpoint, or one trained first."""

    model: Model | None = Field(None, description="Re-ranker (default: one is trained)")
    trained_from: Model | None = Field(
        None, description="Checkpoint it is trained from (default: the base)"
    )
    recipe: str = Field("dense", description="Recipe whose negatives and lengths it takes")
    settings: Values = Field({}, description="Settings over the recipe's")


class SeedSettings(Settings):
    """Everything is run for each pair of seeds; lists may grow later."""

    pretraining: Seeds = Field(
        [1], description="Seeds of pre-training; a method without any is fine-tuned as often"
    )
    finetuning: Seeds = Field([1], description="Seeds of fine-tuning, for each of those")


class TaskSettings(Settings):
    """One way to fine-tune: a collection, how many of its queries, with a teacher or without."""

    collection: str = Field(description="Collection to train on and to test on")
    queries: int | float | None = Field(
        None, gt=0, description="Number of training queries (default: all)"
    )
    finetune: bool = Field(True, description="Whether to fine-tune; false tests the model as it is")
    retrievers: list[str] = Field([], description="Retrievers that it is run for (default: all)")
    methods: list[str] = Field([], description="Methods that it is run for (default: all)")
    teacher: TeacherSettings | None = Field(None, description="Teacher (default: no distillation)")
    settings: Overrides = Field({}, description="Settings over those of the retriever")
    recipes: dict[Name, str] = Field({}, description="Recipes by retriever, instead of its own")
    seeds: SeedSettings | None = Field(
        None, description="Seeds (default: the protocol's); a list that is left out is [1]"
    )


class CollectionSettings(Settings):
    """Documents with queries and judgements, of which one split tests."""

    spec: str = Field(description="beir:PATH, irds:ID, …; {data} stands for --data")
    split: str = Field("test", min_length=1, description="Split whose queries test")
    corpus: str | None = Field(
        None, description="Corpus that methods are pre-trained on (default: its documents)"
    )
    pretraining: Overrides = Field({}, description="Settings of every pre-training on it")


class Protocol(Settings):
    """Everything that a benchmark compares."""

    verb = "benchmark"

    data: str = Field("data", description="Folder that {data} in specs stands for")
    scale: Literal["paper", "small"] = Field(
        "small", description="Whether the papers' numbers can be compared: paper, or not: small"
    )
    base: BaseSettings = Field(description="Model that all methods begin with")
    collections: dict[Name, CollectionSettings] = Field(
        min_length=1, description="By name: spec, split, corpus, pretraining"
    )
    methods: dict[Name, MethodSettings] = Field(
        min_length=1, description="By name: recipe, settings, corpus, after, model, finetuning"
    )
    recipes: dict[Name, RecipeSettings] = Field(
        {}, description="Recipes of its own, by name: base, settings"
    )
    retrievers: dict[Name, RetrieverSettings] = Field(
        min_length=1, description="By name: recipe, settings"
    )
    tasks: dict[Name, TaskSettings] = Field(
        min_length=1,
        description="By name: collection, queries, finetune, retrievers, methods, teacher, "
        "settings, recipes, seeds",
    )
    zero_shot: list[str] = Field([], description="Collections that every run is tested on too")
    pretraining: Overrides = Field({}, description="Settings of every method's recipe")
    equal_tokens: bool = Field(
        True, description="Refuse methods that see different numbers of tokens of one corpus"
    )
    finetuning: Overrides = Field({}, description="Settings of every fine-tuning")
    measures: Measures = Field(
        ["RR@10", "nDCG@10", "R@100"], description="Measures, the main one first"
    )
    seeds: SeedSettings = Field(
        SeedSettings(), description="Seeds of every task that names none itself"
    )
    keep: bool = Field(False, description="Whether to keep the models of finished runs")
    claims: dict[Name, Claim] = Field({}, description="Claims that the report decides")
    expected: list[ExpectedTable] = Field([], description="Numbers that papers report")

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for place, key, name in self._named():
            known: Mapping[str, Any] = getattr(self, key)
            if name not in known:
                raise ValueError(
                    f"{place} names {name!r}, which is none of {key}: {choices(name, known)}"
                )
        for name, claim in self.claims.items():
            if claim.measure is not None and claim.measure not in self.measures:
                raise ValueError(f"claims.{name}.measure names {claim.measure!r}, which is none of "
                                 f"measures: {choices(claim.measure, self.measures)}")  # fmt: skip
        for name in self.methods:
            _end(f"methods.{name} comes after", name, lambda one: self.methods[one].after)
        for name in self.recipes:
            _end(f"recipes.{name} builds on", name, self._base)
        return self

    def _base(self, recipe: str) -> str | None:
        base = self.recipes[recipe].base
        return base if base in self.recipes else None

    def _named(self) -> Iterator[tuple[str, str, str]]:
        """Every name that the protocol uses: where, of which key it must be, and the name."""
        for name, task in self.tasks.items():
            yield f"tasks.{name}.collection", "collections", task.collection
            for used in task.methods:
                yield f"tasks.{name}.methods", "methods", used
            for used in (*task.retrievers, *task.recipes):
                yield f"tasks.{name}", "retrievers", used
        for other in self.zero_shot:
            yield "zero_shot", "collections", other
        for name, method in self.methods.items():
            if method.after is not None:
                yield f"methods.{name}.after", "methods", method.after
        for name, claim in self.claims.items():
            for key, used in claim.names():
                yield f"claims.{name}", key, used
        for number, table in enumerate(self.expected):
            yield f"expected.{number}.retriever", "retrievers", table.retriever
            yield f"expected.{number}.task", "tasks", table.task
            for value in table.values() if self.scale == "paper" else ():  # else of other data
                yield f"expected.{number}.columns", "collections", value.collection

    @property
    def depth(self) -> int:
        """The number of documents per test query: as many as the measures look at, or 100."""
        parsed = (parse_measure(name, answers=True) for name in self.measures)
        return max(100, *(int(measure.params.get("cutoff", 0)) for measure in parsed))

    def retrievers_of(self, task: str) -> list[str]:
        """The retrievers that a task is run for."""
        return self.tasks[task].retrievers or list(self.retrievers)

    def methods_of(self, task: str) -> list[str]:
        """The methods that a task is run for."""
        return self.tasks[task].methods or list(self.methods)

    def seeds_of(self, task: str) -> list[tuple[int, int]]:
        """The pairs of seeds that a task is run for: of pre-training, of fine-tuning."""
        seeds = self.tasks[task].seeds or self.seeds
        tuned = seeds.finetuning if self.tasks[task].finetune else seeds.finetuning[:1]
        return [(pretraining, one) for pretraining in seeds.pretraining for one in tuned]

    def runs(self) -> Iterator[Run]:
        """Every run of the grid, in the order in which they are done: by seeds, then by task."""
        pairs = {task: self.seeds_of(task) for task in self.tasks}
        for pair in dict.fromkeys(chain(*pairs.values())):
            for task in self.tasks:
                for method in self.methods_of(task) if pair in pairs[task] else ():
                    for retriever in self.retrievers_of(task):
                        yield Run(
                            method=method, retriever=retriever, task=task,
                            pretraining_seed=pair[0], finetuning_seed=pair[1],
                        )  # fmt: skip

    def spec(self, collection: str) -> str:
        """The spec of a collection of the protocol, or a spec itself, with the folder of data."""
        known = self.collections.get(collection)
        return (known.spec if known else collection).replace("{data}", self.data)


def write_protocol(folder: Path, protocol: Protocol, name: str) -> None:
    """Keeps the protocol with the results of its runs, for reports."""
    write_json(folder / PROTOCOL, {"name": name, **protocol.model_dump(mode="json")})


def read_protocol(folder: Path) -> tuple[str, Protocol]:
    """The name of the protocol whose results a folder holds, and the protocol."""
    try:
        values = read_mapping(folder / PROTOCOL)
    except UnreadableError as error:
        raise InputError(
            f"{str(folder)!r} holds no benchmark: {PROTOCOL}: {error}",
            "give the --output of a benchmark; running it again writes the file again",
        ) from None
    return str(values.pop("name", "")), Protocol.parse(values, where=str(folder / PROTOCOL))
