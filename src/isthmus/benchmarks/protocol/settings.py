"""The protocol of a benchmark: starting points x kinds x tasks x seeds, and what tests them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from isthmus.benchmarks.protocol.cells import Cell
from isthmus.benchmarks.protocol.claims import Claim, ExpectedTable
from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, SettingsError, choices

PROTOCOL = "protocol.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
Seed = Annotated[int, Field(ge=0, lt=10_000)]
Values = dict[str, Any]


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name: it becomes part of file names, so small letters, digits, - and _"
        )
    return name


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) != len(seeds):
        raise ValueError("a seed stands there twice")
    return seeds


Name = Annotated[str, AfterValidator(_plain)]
Model = Annotated[str, Field(min_length=1)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]


class BaseSettings(Settings):
    """The common starting point: a checkpoint, or a model trained on texts first."""

    model: Model | None = Field(None, description="a folder, hub name or package:NAME")
    texts: list[str] = Field(
        [], description="or corpora to train it on, cut into paragraphs and joined"
    )
    paragraph: int = Field(300, ge=1, description="characters that a paragraph has at least")
    init: str = Field("6x384", description="its size before training: tiny, …, or LAYERSxWIDTH")
    recipe: str = Field("mlm", description="the recipe it is pre-trained with")
    settings: Values = Field({}, description="settings over the recipe's")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.model is None) == (not self.texts):
            raise ValueError("give either model (a checkpoint) or texts (to train one on)")
        return self


class StartSettings(Settings):
    """A starting point: the base as it is, after a pre-training recipe, or another checkpoint."""

    recipe: str | None = Field(None, description="pre-training from the base; null: none")
    settings: Values = Field({}, description="settings over the recipe's")
    corpus: str | None = Field(
        None, description="a collection or spec; null: the collection that the task trains on"
    )
    after: str | None = Field(None, description="another start to go on from; null: the base")
    model: Model | None = Field(None, description="a checkpoint in the place of the base")
    finetuning: Values = Field({}, description="settings of fine-tuning for this start alone")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.model is not None and self.after is not None:
            raise ValueError("give either model or after")
        if self.recipe is None and (self.settings or self.corpus or self.after):
            raise ValueError("settings, corpus and after need a recipe")
        return self


class KindSettings(Settings):
    """What a start becomes: a dense or sparse retriever, by a fine-tuning recipe."""

    recipe: str = Field(description="the fine-tuning recipe")
    settings: Values = Field({}, description="settings over the recipe's")


class TeacherSettings(Settings):
    """The re-ranker that all cells of a task learn from: a checkpoint, or one trained first."""

    model: Model | None = Field(None, description="a re-ranker; null: it is trained")
    start: Model | None = Field(
        None, description="the checkpoint it is trained from; null: the base"
    )
    recipe: str = Field("dense", description="the recipe whose negatives and lengths it takes")
    settings: Values = Field({}, description="settings over the recipe's")


class SeedSettings(Settings):
    """Every cell is run for each pair of seeds; lists may grow later."""

    pretraining: Seeds = Field(
        [1], description="of pre-training; a start without any is fine-tuned as often"
    )
    finetuning: Seeds = Field([1], description="of fine-tuning, for each of those")


class TaskSettings(Settings):
    """One way to fine-tune: a collection, how many of its queries, with a teacher or without."""

    collection: str = Field(description="trained on and tested on")
    queries: int | float | None = Field(None, gt=0, description="trained on; null: all")
    finetune: bool = Field(True, description="false: the start is tested as it is")
    kinds: list[str] = Field([], description="the kinds that it is run for; none: all")
    starts: list[str] = Field([], description="the starts that it is run for; none: all")
    teacher: TeacherSettings | None = Field(None, description="null: no distillation")
    settings: Values = Field({}, description="settings over those of the kind")
    of_kind: dict[Name, Values] = Field({}, description="further settings by kind")
    recipes: dict[Name, str] = Field({}, description="recipes by kind, in the place of the kind's")
    seeds: SeedSettings | None = Field(
        None,
        description="null: the protocol's, of which none are inherited: what is left out is [1]",
    )


class CollectionSettings(Settings):
    """Documents with queries and judgements, of which one split tests."""

    spec: str = Field(description="beir:PATH, irds:ID, …; {data} stands for --data")
    split: str = Field("test", description="whose queries test")
    corpus: str | None = Field(
        None, description="a spec of what starts are pre-trained on; null: its documents"
    )
    pretraining: Values = Field({}, description="settings of every pre-training on it: steps, say")

    @field_validator("split")
    @classmethod
    def _some(cls, value: str) -> str:
        if not value:
            raise ValueError("a split has a name")
        return value


class Protocol(Settings):
    """Everything that `isthmus benchmark run` compares."""

    verb = "benchmark run"

    data: str = Field("data", description="the folder that {data} in specs stands for")
    scale: Literal["paper", "small"] = Field(
        "small", description="whether expected numbers can be compared: paper, or not: small"
    )
    base: BaseSettings = Field(description="what all starts begin with")
    collections: dict[Name, CollectionSettings] = Field(
        min_length=1, description="by name: spec, split, pretraining"
    )
    starts: dict[Name, StartSettings] = Field(
        min_length=1, description="by name: recipe, settings, corpus, after, model, finetuning"
    )
    kinds: dict[Name, KindSettings] = Field(min_length=1, description="by name: recipe, settings")
    tasks: dict[Name, TaskSettings] = Field(
        min_length=1,
        description="by name: collection, queries, finetune, kinds, starts, teacher, settings, "
        "of_kind, recipes, seeds",
    )
    zero_shot: list[str] = Field([], description="collections that every cell is tested on too")
    pretraining: Values = Field({}, description="settings of every start's recipe")
    equal_tokens: bool = Field(
        True, description="refuse starts that see different numbers of tokens of one corpus"
    )
    finetuning: Values = Field({}, description="settings of every fine-tuning")
    measures: list[str] = Field(
        ["RR@10", "nDCG@10", "R@100"], min_length=1, description="the first is the main one"
    )
    depth: int = Field(100, ge=1, description="documents per test query")
    seeds: SeedSettings = Field(
        SeedSettings(), description="of every task that names none of its own"
    )
    keep: bool = Field(False, description="keep the models of finished cells")
    claims: dict[Name, Claim] = Field({}, description="what the report decides on")
    expected: list[ExpectedTable] = Field([], description="what papers report")

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name, task in self.tasks.items():
            self._check("collections", task.collection, f"tasks.{name}.collection")
            for kind in (*task.kinds, *task.of_kind, *task.recipes):
                self._check("kinds", kind, f"tasks.{name}")
            for used in task.starts:
                self._check("starts", used, f"tasks.{name}.starts")
        for other in self.zero_shot:
            self._check("collections", other, "zero_shot")
        for name, start in self.starts.items():
            if start.after is not None:
                self._check("starts", start.after, f"starts.{name}.after")
        for name, claim in self.claims.items():
            for kind_of, other in claim.names():
                self._check(kind_of, other, f"claims.{name}")
            if claim.measure is not None and claim.measure not in self.measures:
                raise ValueError(f"claims.{name}.measure names {claim.measure!r}, which is none of "
                                 f"measures: {choices(claim.measure, self.measures)}")  # fmt: skip
        for number, table in enumerate(self.expected):
            self._check("kinds", table.kind, f"expected.{number}.kind")
            self._check("tasks", table.task, f"expected.{number}.task")
            for value in table.values() if self.scale == "paper" else ():  # else of other data
                self._check("collections", value.collection, f"expected.{number}.columns")
        self._check_circles()
        return self

    def _check(self, kind: str, name: str, where: str) -> None:
        known: Mapping[str, Any] = getattr(self, kind)
        if name not in known:
            raise ValueError(f"{where} names {name!r}, which is none of {kind}: "
                             f"{choices(name, known)}")  # fmt: skip

    def _check_circles(self) -> None:
        for name in self.starts:
            origins = [name]
            while (after := self.starts[origins[-1]].after) is not None:
                if after in origins:
                    raise ValueError(f"starts.{name} goes on from itself: {' → '.join(origins)}")
                origins.append(after)

    def kinds_of(self, task: str) -> list[str]:
        """The encoder kinds that a task is run for."""
        return self.tasks[task].kinds or list(self.kinds)

    def seeds_of(self, task: str) -> list[tuple[int, int]]:
        """The pairs of seeds that a task is run for: of pre-training, of fine-tuning."""
        seeds = self.tasks[task].seeds or self.seeds
        tuned = seeds.finetuning if self.tasks[task].finetune else seeds.finetuning[:1]
        return [(pretraining, one) for pretraining in seeds.pretraining for one in tuned]

    def cells(self) -> Iterator[Cell]:
        """Every cell of the grid, in the order in which they are run: by seeds, then by task."""
        pairs = {task: dict.fromkeys(self.seeds_of(task)) for task in self.tasks}
        for pair in dict.fromkeys(chain(*pairs.values())):
            for task, chosen in self.tasks.items():
                if pair not in pairs[task]:
                    continue
                for start in chosen.starts or self.starts:
                    for kind in self.kinds_of(task):
                        yield Cell(
                            start=start, kind=kind, task=task,
                            pretraining_seed=pair[0], finetuning_seed=pair[1],
                        )  # fmt: skip

    def spec(self, collection: str) -> str:
        """The spec of a collection of the protocol, or a spec itself, with the folder of data."""
        known = self.collections.get(collection)
        return (known.spec if known else collection).replace("{data}", self.data)


def write_protocol(folder: Path, protocol: Protocol, name: str) -> None:
    """Keeps the protocol beside the results of its cells, for reports."""
    write_json(folder / PROTOCOL, {"name": name, **protocol.model_dump(mode="json")})


def read_protocol(folder: Path) -> tuple[str, Protocol]:
    """The name of the protocol whose results a folder holds, and the protocol."""
    file = folder / PROTOCOL
    again = "running the benchmark again writes the file again"
    try:
        values = read_mapping(file)
        name = values.pop("name", "")
        return str(name), Protocol.parse(values, where=str(file))
    except UnreadableError as error:
        raise InputError(
            f"{str(folder)!r} holds no benchmark: {error}",
            f"remove {PROTOCOL}; {again}"
            if file.exists()
            else f"give the --output of `isthmus benchmark run`; {again}",
        ) from None
    except SettingsError as error:
        error.fix = f"remove the file; {again}"
        raise
