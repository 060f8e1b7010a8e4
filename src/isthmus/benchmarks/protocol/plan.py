"""From a protocol to its steps: what every run needs, resolved, checked, and known by digests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from isthmus.benchmarks.protocol.checks import (
    check_budgets,
    check_encoder,
    check_judged,
    check_splits,
    refuse_seen,
    tokens_of,
)
from isthmus.benchmarks.protocol.runs import Run
from isthmus.benchmarks.protocol.settings import Protocol, TaskSettings
from isthmus.collections import open_collection, open_corpus
from isthmus.collections.collection import choose_split
from isthmus.config import find_recipe, resolve
from isthmus.config.cache import digest
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import may_change_results
from isthmus.config.recipes import merged
from isthmus.errors import InputError, IsthmusError, SettingsError, choices
from isthmus.finetuning.stages import assemble as stages_of
from isthmus.finetuning.stages import outside
from isthmus.nn.loading import read_config
from isthmus.nn.shapes import shape_of
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings

Values = dict[str, Any]
Layer = Mapping[str, Any]
Work = Literal["base", "pretrain", "teacher", "run"]
_TEACHER = {"encoder": "cross", "losses": {"listwise": {"weight": 1.0}}, "development": None}
_SEED_STRIDE = 10_000  # above all seeds


class TestedOn(NamedTuple):
    """A collection that a run is tested on."""

    collection: str
    spec: str
    split: str
    fingerprint: str


@dataclass(frozen=True)
class Step:
    """A piece of work: a model that runs share, or a run itself."""

    name: str
    work: Work
    digest: str
    values: Values  # settings of its command, but for folders
    model: str = ""  # the step, or the checkpoint, whose model it begins with
    teacher: str = ""  # likewise, of which it learns
    needs: tuple[str, ...] = ()  # steps that come before
    tokens: float = 0.0  # that pre-training reads at most
    run: Run | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[TestedOn, ...] = ()
    encoder: str = ""  # dense or sparse, for a model that is tested as it is

    @property
    def folder(self) -> str:
        """The name of the folder of its model."""
        return f"{self.name.replace('/', '.')}-{self.digest[:8]}"


class Plan:
    """All steps of a protocol by name, those that others need first; refuses what cannot work.

    Files of recipes are next to `home`, the protocol's own. `missing` are data and models that
    are not on this machine, each with the reason: a plan without them can be looked at, not run.
    """

    def __init__(self, protocol: Protocol, home: Path = Path()) -> None:
        self.protocol = protocol
        self.missing: dict[str, str] = {}
        self.steps: dict[str, Step] = {}
        self._home = home.parent
        self._fingerprint = cache(self._read_fingerprint)
        self._tested = cache(self._read_tested)
        self._model_digest = cache(self._read_model)
        self._find_recipe = cache(find_recipe)
        self._pretrained = cache(self._add_pretraining)
        self._taught = cache(self._add_teacher)
        self._finetuning = cache(self._read_finetuning)
        self._base = self._add_base()
        for run in protocol.runs():
            self._add_run(run)
        if protocol.equal_tokens:
            runs = [(step.run, step.tokens) for step in self.steps.values()]
            check_budgets((run.task, run.method, tokens) for run, tokens in runs if run)

    def chosen(self, only: Iterable[str]) -> list[Step]:
        """The steps of runs, or models, whose names match one of the patterns; all without any."""
        for pattern in (patterns := list(only)):
            if not any(fnmatch(name, pattern) for name in self.steps):
                raise SettingsError(
                    f"--only {pattern!r} matches no step of the benchmark",
                    "give a name or a pattern, such as 'insuranceqa-1000.dense.*'; --dry-run "
                    "lists all names",
                    choices(pattern, self.steps),
                )
        steps = self.steps.values()
        return [step for step in steps if any(fnmatch(step.name, one) for one in patterns)
                or (not patterns and step.run is not None)]  # fmt: skip

    def _add(self, name: str, work: Work, digest: str, values: Values, **more: Any) -> Step:
        """Adds a step, after those whose models it needs."""
        named = (more.get("model", ""), more.get("teacher", ""))
        needs = tuple(one for one in named if one in self.steps)
        self.steps[name] = Step(name, work, digest, values, needs=needs, **more)
        return self.steps[name]

    def _origin(self, model: str | None, where: str) -> tuple[str, str]:
        """A checkpoint and its digest; without one, the base."""
        return self._base if model is None else (model, self._model_digest(model, where))

    def _add_base(self) -> tuple[str, str]:
        base = self.protocol.base
        if base.model is not None:
            return base.model, self._model_digest(base.model, "base.model")
        shape_of(base.init, "base.init")
        values = self._pretraining(
            base.recipe, {"model": f"scratch:{base.init}"}, base.settings,
            where="base", corpus="texts",
        )  # fmt: skip
        texts = [self._fingerprint(text) for text in base.texts]
        made = digest(_meant(values), str(base.paragraph), digest(*texts))
        self._add("base", "base", made, values)
        return "base", made

    def _add_run(self, run: Run) -> None:
        protocol, task = self.protocol, self.protocol.tasks[run.task]
        model, model_digest, tokens = self._pretrained(
            run.method, task.collection, run.pretraining_seed
        )
        teacher = teacher_digest = encoder = ""
        values: Values = {}
        if task.finetune:
            values = self._finetuning(run.task, run.retriever, run.method)
            # Other seeds for every pair: a method without pre-training is repeated as often.
            seed = run.pretraining_seed * _SEED_STRIDE + run.finetuning_seed
            values = merged(values, {"training": {"seed": seed}})
            if task.teacher is not None:
                teacher, teacher_digest = self._taught(run.task)
        else:
            recipe, layer = self._retriever(task, run.retriever)
            encoder = self._layered("finetune", recipe, layer).get("encoder", "dense")
            check_encoder([encoder], f"retrievers.{run.retriever}")
        tests = tuple(map(self._tested, dict.fromkeys((task.collection, *protocol.zero_shot))))
        parts = {
            "base": self._base[1],
            "method": model_digest,
            "fine-tuning": digest(_meant(values), tests[0].fingerprint, encoder),
            "teacher": teacher_digest,
            "tests": digest(
                *(text for test in tests for text in (test.fingerprint, test.split)),
                *protocol.measures, str(protocol.depth),
            ),
        }  # fmt: skip
        self._add(
            run.name, "run", digest(*parts.values()), values, model=model, teacher=teacher,
            tokens=tokens, run=run, parts=parts, tests=tests, encoder=encoder,
        )  # fmt: skip

    def _add_pretraining(self, name: str, collection: str, seed: int) -> tuple[str, str, float]:
        """The step or checkpoint that a method gives, its digest, and the tokens it has read."""
        method, read = self.protocol.methods[name], 0.0
        origin, origin_digest = self._origin(method.model, f"methods.{name}.model")
        if method.after is not None:
            origin, origin_digest, read = self._pretrained(method.after, collection, seed)
        if method.recipe is None:
            return origin, origin_digest, read
        corpus = method.corpus or self.protocol.collections[collection].corpus or collection
        known = self.protocol.collections.get(method.corpus or collection)
        values = self._pretraining(
            method.recipe, {"training.seed": seed}, self.protocol.pretraining,
            known.pretraining if known else {}, method.settings,
            where=f"methods.{name}", corpus=corpus,
        )  # fmt: skip
        made = digest(_meant(values), self._fingerprint(corpus), origin_digest)
        label = corpus if corpus in self.protocol.collections else digest(corpus)[:8]
        step = f"pretrain/{name}/{label}/p{seed}"
        if step in self.steps and self.steps[step].digest != made:  # another task's, done otherwise
            step = f"pretrain/{name}/{label}-{made[:8]}/p{seed}"
        values["documents"], tokens = self.protocol.spec(corpus), tokens_of(values)
        self._add(step, "pretrain", made, values, model=origin, tokens=tokens)
        return step, made, read + tokens

    def _add_teacher(self, name: str) -> tuple[str, str]:
        """The step or checkpoint of the re-ranker that a task learns from, and its digest."""
        task, where = self.protocol.tasks[name], f"tasks.{name}.teacher"
        chosen = task.teacher
        assert chosen is not None
        if chosen.model is not None:
            return self._origin(chosen.model, f"{where}.model")
        values = self._finetune_values(
            chosen.recipe, where, task.collection, {**_TEACHER, "queries": task.queries},
            chosen.settings,
        )  # fmt: skip
        origin, origin_digest = self._origin(chosen.trained_from, f"{where}.trained_from")
        made = digest(_meant(values), self._fingerprint(task.collection), origin_digest)
        self._add(f"teacher/{name}", "teacher", made, values, model=origin)
        return f"teacher/{name}", made

    def _retriever(self, task: TaskSettings, name: str) -> tuple[str, Layer]:
        """The recipe of a retriever in a task, and the settings over it."""
        retriever = self.protocol.retrievers[name]
        return task.recipes.get(name, retriever.recipe), retriever.settings

    def _read_finetuning(self, task_name: str, retriever: str, method: str) -> Values:
        """The settings of a fine-tuning, but for its seed."""
        protocol, task = self.protocol, self.protocol.tasks[task_name]
        taught = {} if task.teacher is None else {"teacher": {"name": "cross_encoder", "model": ""}}
        recipe, layer = self._retriever(task, retriever)
        where = f"tasks.{task_name}"
        values = self._finetune_values(
            recipe, where, task.collection,
            {"queries": task.queries, "training.seed": 0, **taught}, protocol.finetuning, layer,
            task.settings, protocol.methods[method].finetuning,
        )  # fmt: skip
        refuse_seen(values, protocol.collections[task.collection].split, task_name)
        return values

    def _pretraining(self, recipe: str, *layers: Layer, where: str, corpus: str) -> Values:
        values = self._layered("pretrain", recipe, *layers)
        begins = {} if where == "base" else {"model": "base"}
        given = {**values, **begins, "documents": corpus, "output": "output"}
        with _named(where):
            assemble(PretrainSettings.parse(given, where))
        return values

    def _finetune_values(self, recipe: str, where: str, collection: str, *layers: Layer) -> Values:
        given = {"model": "base", "collection": collection, "output": "output"}
        values = self._layered("finetune", recipe, *layers)
        with _named(where):
            stages = stages_of({**values, **given}, where).stages
            settings = [stage.settings for stage in stages.values()]
            if "teacher" not in where:
                check_encoder([one.encoder for one in settings], where)
            for one in settings:
                for path, named in outside(one).items():
                    if named not in ("", "base") and path.rpartition(".")[2] != "file":
                        self._model_digest(named, f"{where}: {path}")
            self._fingerprint(collection)
            if (spec := self.protocol.spec(collection)) not in self.missing:
                check_splits(settings, spec)
        return {**values, "collection": self.protocol.spec(collection)}

    def _layered(self, command: str, recipe: str, *layers: Layer) -> Values:
        """A recipe's settings with layers over them."""
        if (own := self.protocol.recipes.get(recipe)) is not None:
            values = merged(self._layered(command, own.base), own.settings)
        else:
            if recipe.endswith((".yaml", ".yml")):
                recipe = str(self._home / recipe)
            values = self._find_recipe(recipe, command, where="recipe").settings
        for layer in layers:
            values = merged(values, resolve(command, None, None, layer))
        return values

    def _read_fingerprint(self, name: str) -> str:
        """The fingerprint of a collection of the protocol, or of a corpus."""
        spec, known = self.protocol.spec(name), self.protocol.collections.get(name)
        try:
            if known is None:
                return open_corpus(spec).fingerprint()
            collection = open_collection(spec)
            fingerprint, splits = collection.fingerprint(), collection.splits()
        except IsthmusError as error:
            return self._lacks(spec, error)
        with _named(f"collections.{name}"):
            choose_split(dict.fromkeys(splits), known.split, spec)
        return fingerprint

    def _read_tested(self, name: str) -> TestedOn:
        spec, split = self.protocol.spec(name), self.protocol.collections[name].split
        fingerprint = self._fingerprint(name)
        if spec not in self.missing:
            with _named(f"collections.{name}"):
                try:
                    check_judged(spec, split, self.protocol.measures)
                except InputError as error:
                    self._lacks(spec, error)
        return TestedOn(name, spec, split, fingerprint)

    def _read_model(self, model: str, where: str) -> str:
        try:
            with named_at(where):
                folder = model_folder(model, where)
                if not Path(folder).is_dir():
                    read_config(folder)
        except IsthmusError as error:
            return self._lacks(model, error)
        return model_fingerprint(folder) or model

    def _lacks(self, name: str, error: IsthmusError) -> str:
        """Notes what is not here; returns a digest in the place of its own."""
        self.missing[name] = error.what
        return digest(name)


def _meant(values: Values) -> str:
    """The settings that change results, in one text."""
    kept = {key: value for key, value in values.items() if key not in ("documents", "collection")}
    kept.pop("audit", None)
    return json.dumps(may_change_results(kept), sort_keys=True)


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Adds to errors of the block which part of the protocol they are about."""
    try:
        yield
    except IsthmusError as error:
        error.at(place)
        raise
