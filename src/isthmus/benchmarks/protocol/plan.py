"""From a protocol to its steps: what every cell needs, resolved, checked, and known by digests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Literal

from isthmus.benchmarks.protocol.cells import Cell
from isthmus.benchmarks.protocol.checks import (
    TestedOn,
    check_budgets,
    check_encoder,
    check_names,
    check_splits,
    models_named,
    refuse_seen,
    tokens_of,
)
from isthmus.benchmarks.protocol.layers import Layer, Values, advised, layered
from isthmus.benchmarks.protocol.settings import Protocol, TaskSettings
from isthmus.collections import open_collection, open_corpus
from isthmus.collections.collection import choose_split
from isthmus.config import find_recipe
from isthmus.config.cache import digest
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.errors import InputError, IsthmusError, SettingsError, choices
from isthmus.finetuning import pipeline
from isthmus.finetuning.resolved import resolve_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.nn.pretrained import read_config
from isthmus.nn.shapes import shape_of
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings

Work = Literal["base", "pretrain", "teacher", "cell"]
_TEACHER = {"encoder": "cross", "losses": {"listwise": {"weight": 1.0}}, "development": None}
# How a run is watched and saved changes no result.
_IDLE = ("save_steps", "save_minutes", "save_total_limit", "report_to", "logging_steps",
         "dataloader_num_workers")  # fmt: skip
_SEED_STRIDE = 10_000  # above all seeds


@dataclass(frozen=True)
class Step:
    """A piece of work: a model that cells share, or a cell itself."""

    name: str
    work: Work
    digest: str
    order: tuple[int, ...]  # steps of lower ones go first
    needs: tuple[str, ...] = ()  # steps that come before
    start: str = ""  # the step, or the checkpoint, whose model it begins with
    teacher: str = ""  # likewise, of which it learns
    values: Values = field(default_factory=dict)  # of its verb, but for places
    tokens: float = 0.0  # that training reads at most
    cell: Cell | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[TestedOn, ...] = ()
    measures: tuple[str, ...] = ()
    depth: int = 0
    encoder: str = ""  # dense or sparse, for a model that is tested as it is

    @property
    def folder(self) -> str:
        """The name of the folder of its model."""
        return f"{self.name.replace('/', '.')}-{self.digest[:8]}"


class Plan:
    """All steps of a protocol by name, those that others need first; refuses what cannot work.

    Files of recipes lie next to `home`, the protocol's own. A plan that is only looked at may lack
    data and models: `absent` names them.
    """

    def __init__(
        self,
        protocol: Protocol,
        home: Path = Path(),
        only_looked_at: bool = False,
    ) -> None:
        self.protocol = protocol
        self._home = home.parent
        self.absent: list[str] = []
        self._lenient = only_looked_at
        check_names(protocol.measures, protocol.depth)
        self._fingerprint = cache(self._read_fingerprint)
        self._tested = cache(self._read_tested)
        self._model_digest = cache(self._read_model)
        self._find_recipe = cache(find_recipe)
        self._checked: set[str] = set()
        self.steps: dict[str, Step] = {}
        self._add_base()
        for cell in protocol.cells():
            self._add_cell(cell)
        if protocol.equal_tokens:
            cells = [(step.cell, step.tokens) for step in self.steps.values()]
            check_budgets((c.task, c.start, tokens) for c, tokens in cells if c is not None)

    def chosen(self, only: Iterable[str]) -> list[Step]:
        """The steps of cells, or models, whose names match one of the patterns; all without any."""
        patterns = list(only)
        if not patterns:
            return [step for step in self.steps.values() if step.cell is not None]
        found: dict[str, Step] = {}
        for pattern in patterns:
            matching = [name for name in self.steps if fnmatch(name, pattern)]
            if not matching:
                raise SettingsError(
                    f"--only {pattern!r} matches no step of the benchmark",
                    "give a name or a pattern, such as 'insuranceqa-1000.dense.*'; --dry-run "
                    "lists all names",
                    choices(pattern, self.steps),
                )
            found |= {name: self.steps[name] for name in matching}
        return list(found.values())

    def _add_base(self) -> None:
        base = self.protocol.base
        if base.model is not None:
            self._base = base.model
            self._base_digest = self._model_digest(base.model, "base.model")
            return
        shape_of(base.init, "base.init")
        values = self._pretraining(
            base.recipe, ("base.settings", base.settings), ("", {"init": base.init}),
            where="base", corpus="texts", taken=("model",),
        )  # fmt: skip
        self._base = "base"
        told = digest(self._meant(values), str(base.paragraph))
        self._base_digest = digest(told, self._texts())
        self.steps["base"] = Step(
            "base", "base", self._base_digest, (-1,), values=values, tokens=tokens_of(values)
        )

    def _texts(self) -> str:
        """A digest of the texts that the base is trained on."""
        specs = [self.protocol.spec(text) for text in self.protocol.base.texts]
        try:
            return digest(*(open_corpus(spec).fingerprint() for spec in specs))
        except IsthmusError:
            return self._without(*specs)

    def _add_cell(self, cell: Cell) -> None:
        protocol = self.protocol
        task, order = protocol.tasks[cell.task], (len(self.steps),)
        start, start_digest, tokens = self._start(cell.start, task.collection, cell, order)
        teacher = teacher_digest = encoder = ""
        values: Values = {}
        if task.finetune:
            values = self._finetuning(cell, task)
            refuse_seen(values, protocol.collections[task.collection].split, cell.task)
            if task.teacher is not None:
                teacher, teacher_digest = self._teacher(cell.task, task, order)
        else:
            kind = protocol.kinds[cell.kind]
            made = self._layered(
                "finetune", task.recipes.get(cell.kind, kind.recipe),
                (f"kinds.{cell.kind}.settings", kind.settings),
            )  # fmt: skip
            encoder = made.get("encoder", "dense")
            check_encoder([encoder], True, f"kinds.{cell.kind}")
        tests = tuple(map(self._tested, dict.fromkeys((task.collection, *protocol.zero_shot))))
        parts = {
            "base": self._base_digest,
            "start": start_digest,
            "fine-tuning": digest(
                self._meant(values), tests[0].fingerprint,
                *([encoder] if encoder not in ("", "dense") else []),
            ),
            "teacher": teacher_digest,
            "tests": digest(
                *(text for test in tests for text in (test.fingerprint, test.split)),
                *protocol.measures, str(protocol.depth),
            ),
        }  # fmt: skip
        needs = tuple(name for name in (start, teacher) if name in self.steps)
        self.steps[cell.name] = Step(
            cell.name, "cell", digest(*parts.values()), (len(self.steps),), needs,
            start, teacher, values, tokens, cell, parts, tests,
            tuple(protocol.measures), protocol.depth, encoder,
        )  # fmt: skip

    def _start(
        self, name: str, collection: str, cell: Cell, order: tuple[int, ...]
    ) -> tuple[str, str, float]:
        """The step or checkpoint that a start is, its digest, and the tokens it has read."""
        start = self.protocol.starts[name]
        if start.model is not None:
            origin, read = start.model, 0.0
            origin_digest = self._model_digest(origin, f"starts.{name}.model")
        elif start.after is not None:
            origin, origin_digest, read = self._start(start.after, collection, cell, order)
        else:
            origin, origin_digest, read = self._base, self._base_digest, 0.0
        if start.recipe is None:
            return origin, origin_digest, read
        corpus = start.corpus or self.protocol.collections[collection].corpus or collection
        label = corpus if corpus in self.protocol.collections else digest(corpus)[:8]
        if start.after is not None and start.corpus is not None:
            label += f"-{digest(origin)[:8]}"  # what it goes on from may be of the task's corpus
        known = self.protocol.collections.get(start.corpus or collection)
        if start.corpus is None and known is not None and known.corpus and known.pretraining:
            label += f"-{collection}"  # another collection of this corpus may pre-train otherwise
        step = f"pretrain/{name}/{label}/p{cell.pretraining_seed}"
        if step not in self.steps:
            values = self._pretraining(
                start.recipe, ("pretraining", self.protocol.pretraining),
                (f"collections.{start.corpus or collection}.pretraining",
                 known.pretraining if known else {}),
                (f"starts.{name}.settings", start.settings),
                ("", {"training.seed": cell.pretraining_seed}),
                where=f"starts.{name}", corpus=corpus, taken=("model", "init"),
            )  # fmt: skip
            made = digest(self._meant(values), self._fingerprint(corpus), origin_digest)
            needs = (origin,) if origin in self.steps else ()
            self.steps[step] = Step(
                step, "pretrain", made, order, needs, origin,
                values={**values, "corpus": self.protocol.spec(corpus)},
                tokens=tokens_of(values),
            )  # fmt: skip
        pretrained = self.steps[step]
        return step, pretrained.digest, read + pretrained.tokens

    def _teacher(self, name: str, task: TaskSettings, order: tuple[int, ...]) -> tuple[str, str]:
        """The step or checkpoint of the re-ranker that a task learns from, and its digest."""
        chosen = task.teacher
        assert chosen is not None
        if chosen.model is not None:
            return chosen.model, self._model_digest(chosen.model, f"tasks.{name}.teacher.model")
        step = f"teacher/{name}"
        if step not in self.steps:
            values = self._finetune_values(
                chosen.recipe, f"tasks.{name}.teacher", task.collection,
                ("", _TEACHER), ("", {"queries": task.queries}),
                (f"tasks.{name}.teacher.settings", chosen.settings), retrieves=False,
            )  # fmt: skip
            origin, origin_digest = self._base, self._base_digest
            if chosen.start is not None:
                origin = chosen.start
                origin_digest = self._model_digest(origin, f"tasks.{name}.teacher.start")
            fingerprint = self._fingerprint(task.collection)
            needs = (origin,) if origin in self.steps else ()
            self.steps[step] = Step(
                step, "teacher", digest(self._meant(values), fingerprint, origin_digest), order,
                needs, origin, values=values,
            )  # fmt: skip
        return step, self.steps[step].digest

    def _finetuning(self, cell: Cell, task: TaskSettings) -> Values:
        protocol, kind = self.protocol, self.protocol.kinds[cell.kind]
        # Seeds of their own for every pair: a start without pre-training is repeated as often.
        seed = cell.pretraining_seed * _SEED_STRIDE + cell.finetuning_seed
        taught = {} if task.teacher is None else {"teacher": {"name": "cross_encoder", "model": ""}}
        where = f"tasks.{cell.task}"
        return self._finetune_values(
            task.recipes.get(cell.kind, kind.recipe), where, task.collection,
            ("finetuning", protocol.finetuning), (f"kinds.{cell.kind}.settings", kind.settings),
            ("", {"queries": task.queries}), ("", taught), (f"{where}.settings", task.settings),
            (f"{where}.of_kind.{cell.kind}", task.of_kind.get(cell.kind, {})),
            (f"starts.{cell.start}.finetuning", protocol.starts[cell.start].finetuning),
            ("", {"training.seed": seed}),
        )  # fmt: skip

    def _pretraining(
        self, recipe: str, *layers: Layer, where: str, corpus: str, taken: tuple[str, ...]
    ) -> Values:
        values = self._layered("pretrain", recipe, *layers, taken=("corpus", "output", *taken))
        places = {"corpus": corpus, "output": "output"}
        if "init" not in values:
            places["model"] = "base"
        with _named(where), advised(layers):
            assemble(PretrainSettings.parse({**values, **places}, where))
        for part in ("corruption", "decoder_corruption"):
            own = values.get(part)
            if isinstance(own, dict) and (generator := own.get("generator")):
                self._model_digest(generator, f"{where}: {part}.generator")
        return values

    def _finetune_values(
        self, recipe: str, where: str, collection: str, *layers: Layer, retrieves: bool = True
    ) -> Values:  # fmt: skip
        places = {"model": "base", "collection": collection, "output": "output"}
        values = self._layered("finetune", recipe, *layers, taken=tuple(places))
        unseeded = {key: value for key, value in values["training"].items() if key != "seed"}
        key = json.dumps({**values, **places, "training": unseeded}, sort_keys=True)
        if key not in self._checked:  # seeds alone need no second look
            with _named(where), advised(layers):
                if values.get("stages") is not None:
                    stages = [*pipeline.assemble({**values, **places}, where).stages.values()]
                else:
                    stages = [
                        resolve_stage(FinetuneSettings.parse({**values, **places}, where), {})
                    ]
                check_encoder([one.settings.encoder for one in stages], retrieves, where)
                for path, named in models_named(one.settings for one in stages):
                    if named not in ("", places["model"]):
                        self._model_digest(named, f"{where}: {path}")
                self._fingerprint(collection)
                if (spec := self.protocol.spec(collection)) not in self.absent:
                    check_splits([one.settings for one in stages], spec)
            self._checked.add(key)
        return {**values, "collection": self.protocol.spec(collection)}

    def _layered(
        self, verb: str, recipe: str, *layers: Layer, taken: tuple[str, ...] = ()
    ) -> Values:
        if recipe.endswith((".yaml", ".yml")):
            recipe = str(self._home / recipe)
        return layered(
            verb, self._find_recipe(recipe, verb, where="recipe").settings, layers, taken
        )

    def _meant(self, values: Values) -> str:
        """The settings that change results, in one text."""
        kept = {key: value for key, value in values.items() if key not in ("corpus", "collection")}
        training = kept.get("training") or {}
        kept["training"] = {key: value for key, value in training.items() if key not in _IDLE}
        kept.pop("audit", None)
        return json.dumps(kept, sort_keys=True)

    def _read_fingerprint(self, name: str) -> str:
        spec = self.protocol.spec(name)
        known = self.protocol.collections.get(name)
        try:
            with _named(f"collections.{name}" if known else "corpus"):
                if known is None:
                    return open_corpus(spec).fingerprint()
                collection = open_collection(spec)
                fingerprint, splits = collection.fingerprint(), collection.splits()
        except IsthmusError:
            return self._without(spec)
        with _named(f"collections.{name}"):
            choose_split(dict.fromkeys(splits), known.split, spec)
        return fingerprint

    def _read_tested(self, name: str) -> TestedOn:
        spec, known = self.protocol.spec(name), self.protocol.collections[name]
        tested = TestedOn(name, spec, known.split, self._fingerprint(name))
        if spec not in self.absent:
            unread = suppress(InputError) if self._lenient else nullcontext()
            with _named(f"collections.{name}"), unread:
                tested.check(self.protocol.measures)
        return tested

    def _read_model(self, model: str, where: str) -> str:
        try:
            with named_at(where):
                folder = model_folder(model, where)
        except IsthmusError:
            return self._without(model)
        if not Path(folder).is_dir():
            try:
                with named_at(where):
                    read_config(folder)
            except IsthmusError:
                self._without(model)
        return model_fingerprint(folder) or model

    def _without(self, *names: str) -> str:
        """Notes what is not here, where that is allowed; raises the error at hand otherwise."""
        if not self._lenient:
            raise
        self.absent += names
        return digest(*names)


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Adds to errors of the block which part of the protocol they are about."""
    try:
        yield
    except IsthmusError as error:
        error.at(place)
        raise
