"""Probes: numbers measured on held-out documents, without labels, while training goes on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.encoders.dense import pool
from isthmus.encoders.encoder import pad
from isthmus.errors import InputError, SettingsError, choices
from isthmus.nn.randomness import key
from isthmus.pretraining.corruption import MaskingSettings, Uniform
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.objectives import bag_of_words, token_sets
from isthmus.pretraining.parts import Part, Vector
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.registries import PROBES, probe
from isthmus.pretraining.settings import MeasurementSettings, ProbeSettings
from isthmus.pretraining.step import IGNORED
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.evaluation import Best, EvaluationCallback, evaluations, report_curves
from isthmus.training.task import Batch
from isthmus.training.trainer import Trainer

_BATCH = 64
FEWEST = 20  # fewer documents measure nothing
# Training counts its epochs from 0, so nothing that it draws is drawn here.
EPOCH = 2**31
Rows = npt.NDArray[np.int64]


class HeldOut:
    """Documents that training never sees, ready to be measured, in batches of like length."""

    def __init__(
        self,
        examples: PretrainExamples,
        rows: Rows,
        documents: Iterable[Document],
        task: PretrainTask,
        settings: MeasurementSettings,
    ) -> None:
        corpus = examples.corpus
        self.examples = examples  # what training sees
        self.documents = documents  # the whole corpus, with titles; to be read once
        self.tokenizer = task.tokenizer
        # What stands for a text.
        self.vector = task.parts.vector if settings.vector == "auto" else settings.vector
        self.rows = rows[np.argsort(corpus.lengths[rows], kind="stable")]
        # Each document, cropped, unmasked; and what the recipe's own view shows of them.
        self.texts = self.batches([corpus[row].tokens.tolist() for row in self.rows])
        shown = examples.of(self.rows)
        self.steps = [
            shown.collate([shown[EPOCH, index] for index in block]) for block in _blocks(len(rows))
        ]
        self.logits: list[Tensor] = []  # of `texts`, kept for one evaluation

    def batches(self, texts: Sequence[Sequence[int]]) -> list[Batch]:
        """Framed and padded token ids, in their order; keys follow the place."""
        of, made = self.examples, []
        for block in _blocks(len(texts)):
            framed = [[*of.prefix, *texts[index][: of.room], *of.suffix] for index in block]
            ids, mask = pad(framed, of.pad_id)
            keys = torch.tensor([key(0, EPOCH, index) for index in block])
            made.append({"input_ids": ids, "attention_mask": mask, "keys": keys})
        return made


def split(corpus: TokenisedCorpus, settings: MeasurementSettings, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on and those held out; copies of a held-out document are in neither."""
    everything = np.arange(len(corpus))
    if min(settings.documents, len(corpus) // 20) < FEWEST:
        return everything, everything[:0]
    order = np.random.default_rng([seed, 1]).permutation(np.flatnonzero(corpus.lengths >= 2))
    keys = corpus.keys
    _, first = np.unique(keys[order], return_index=True)
    # Copies count once: where most are copies, a twentieth of the rows may be all there is.
    count = min(settings.documents, len(first) // 20)
    if count < FEWEST:
        return everything, everything[:0]
    held_out = np.sort(order[np.sort(first)[:count]])
    return everything[~np.isin(keys, keys[held_out])], held_out


def _blocks(count: int) -> list[range]:
    blocks = [range(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:  # alone, a row would be shuffled to itself
        last = blocks.pop()
        blocks[-1] = range(blocks[-1].start, last.stop)
    return blocks


# The largest weights of a lexicon: before fine-tuning nearly all terms have one, few matter.
LEXICON_TERMS = 256


class Probe(Part, ABC):
    """A measurement; `{"": the number to watch}`, and others worth a line of the plot."""

    uses_head = True
    better: ClassVar[Literal["higher", "lower"]]
    drawn: ClassVar[tuple[str, ...]] = ()  # further numbers that belong into its picture

    def applies(self, parts: Parts) -> bool:
        """Whether a recipe has what is measured."""
        return True

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Makes what it needs of the documents, once, before its first measurement.

        Raises where it can measure nothing and `decides`, which is `probes.best_by`.
        """

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """A sentence about its numbers of all evaluations; None: there is nothing to add."""
        return None

    @abstractmethod
    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The numbers, from a task in evaluation mode, without gradient."""


def represent(task: PretrainTask, batch: Batch, vector: Vector, terms: int) -> Tensor:
    """What stands for each text when it is searched: a dense vector, or `terms` lexicon weights.

    The largest: before fine-tuning most terms have a weight, and as they are so many, those that a
    text has nothing to do with outweigh the others.
    """
    states = task.backbone(batch["input_ids"], batch["attention_mask"])
    if vector == "lexicon":
        weights = _largest(task, batch, states).relu().log1p()
        values, places = weights.topk(min(terms, weights.shape[1]))
        return torch.zeros_like(weights).scatter(1, places, values)
    return pool(states, batch["attention_mask"], vector)


def vocabulary_logits(task: PretrainTask, held_out: HeldOut) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch of texts, and the logits that their vectors predict, in float32."""
    for number, batch in enumerate(on_device(task, held_out.texts)):
        if number == len(held_out.logits):
            states = task.backbone(batch["input_ids"], batch["attention_mask"])
            if held_out.vector == "lexicon":
                logits = _largest(task, batch, states)
            else:
                pooled = pool(states, batch["attention_mask"], held_out.vector)
                logits = task.backbone.head(pooled).float()
            held_out.logits.append(logits)
        yield batch, held_out.logits[number]


def _largest(task: PretrainTask, batch: Batch, states: Tensor) -> Tensor:
    outside = task.vocabulary.is_special(batch["input_ids"])
    return task.backbone.predict(states).largest(~outside)


def on_device(task: PretrainTask, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, one after the other, where the model is."""
    device = task.backbone.word_embeddings.device
    for batch in batches:
        yield {name: value.to(device) for name, value in batch.items()}


def measure(probes: Mapping[str, Probe], task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
    """All numbers of prepared probes, `NAME` and `NAME/FURTHER`, from a task in evaluation mode."""
    values = {}
    for name, one in probes.items():
        for metric, value in one(task, held_out).items():
            values[f"{name}/{metric}" if metric else name] = value
    held_out.logits.clear()  # the weights change
    return values


def own_numbers(values: Mapping[str, float], name: str) -> dict[str, float]:
    """The numbers of one probe, named as the probe itself names them."""
    inside = {key: value for key, value in values.items() if key.startswith(f"{name}/")}
    return {"": values[name], **{key.removeprefix(f"{name}/"): inside[key] for key in inside}}


def applying(
    settings: MeasurementSettings, parts: Parts, under: str = "probes.measure"
) -> dict[str, Probe]:
    """The probes that apply to a recipe; raises on unknown ones."""
    probes: dict[str, Probe] = {}
    for name, inner in settings.measure.items():
        where = f"{under}.{name}"
        kind: type[Probe] = PROBES.load(name, where)
        probe = kind(kind.Settings.parse(inner, where, under=where))
        if probe.applies(parts):
            probes[name] = probe
    return probes


def assemble_probes(settings: ProbeSettings, parts: Parts) -> dict[str, Probe]:
    """The probes that apply to a recipe; raises on unknown ones, or an unmeasured `best_by`."""
    probes = applying(settings, parts)
    if settings.best_by is None and settings.patience is not None:
        raise SettingsError(
            "probes.patience is set, but probes.best_by, the probe that it watches, is not",
            "--set probes.best_by=NAME, one of these, or leave patience out",
            ", ".join(probes),
        )
    if settings.best_by is not None and settings.best_by not in probes:
        raise SettingsError(
            f"probes.best_by = {settings.best_by!r} is not measured in this recipe",
            "choose one of these",
            choices(settings.best_by, probes),
        )
    if settings.best_by is not None and not settings.documents:
        raise SettingsError(
            "probes.best_by is set, but probes.documents = 0 holds none out to measure it on",
            "leave probes.documents out (default 300), or probes.best_by",
        )
    return probes


@probe("bag_of_words")
class BagOfWords(Probe):
    """Bag-of-words gap: how far the vector is from naming exactly the tokens of its text.

    Mean of the bag-of-words loss less its lower bound log|T|, from the unmasked text.
    """

    better = "lower"

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over the texts that have a bag."""
        total, count = 0.0, 0
        for batch, logits in vocabulary_logits(task, held_out):
            bags = token_sets(batch["input_ids"], task.vocabulary.special)
            losses = bag_of_words(logits, bags)
            sizes = bags.sum(1)
            total += float((losses - sizes.clamp(min=1).log()).sum())
            count += int((sizes > 0).sum())
        return {"": total / max(count, 1)}


_UNUSED = 0.05  # nats; runs that had begun to use it were above, all others below 0.01


@probe("bottleneck")
class Bottleneck(Probe):
    """Use of the bottleneck: what reconstruction loses when every text gets another text's vector.

    Reconstruction loss with shuffled vectors less that with the true ones.

    Near 0, the decoder does without the vector, and training does not improve it.
    """

    better = "higher"

    def applies(self, parts: Parts) -> bool:
        """Only where there is a decoder."""
        return parts.decoder is not None

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether training has reached the vector at all."""
        if not seen[-1][""] < _UNUSED:  # nor where there is no number
            return None
        return (
            "the decoder does without the bottleneck, so it has taught the vectors nothing yet: "
            "train on (it may begin after hundreds of steps), hide more from it "
            "(decoder_corruption.rate), or take a layer from it (decoder.layers); of the dense "
            "recipes, bow and retromae get to need the vector soonest"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The difference, and both losses."""
        sums = {"true": 0.0, "shuffled": 0.0}
        count = 0
        for batch in on_device(task, held_out.steps):
            step = task.encode(task.prepare(batch))
            # By one row: a text of like length, and never the document's own other text.
            other = step | {"bottleneck": step["bottleneck"].roll(1, 0)}
            for name, given in (("true", step), ("shuffled", other)):
                decoded = task.decode(given)
                assert decoded.prediction is not None
                loss = decoded.prediction.cross_entropy(decoded["decoder_targets"])
                sums[name] += float(loss)
            count += int((decoded["decoder_targets"] != IGNORED).sum())
        means = {name: total / max(count, 1) for name, total in sums.items()}
        return {"": means["shuffled"] - means["true"], **means}


_FREQUENCY_DOCUMENTS = 20_000


class CoverageSettings(Settings):
    """How many tokens count."""

    k: int = Field(64, ge=1, description="tokens that the vector may name")
    curve: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="other numbers of tokens to measure it at too, for a curve by k"
    )


@probe("coverage")
class Coverage(Probe):
    """Input token coverage: the share of a text's tokens in the first k that its vector names.

    Mean of |top-k(head(H_0)) ∩ T| / |T|, T the set of the text's tokens.

    Two lines to read it by: `constant`, what the k most frequent tokens of the corpus reach for
    every text, and `ceiling`, the most that k tokens can. At each k of `curve` all three are
    measured again, as `at_k`, `constant_at_k` and `ceiling_at_k`.
    """

    Settings = CoverageSettings
    settings: CoverageSettings
    better = "higher"
    drawn = ("constant", "ceiling")

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Ranks the tokens by the number of training documents that hold them."""
        examples = held_out.examples
        self.frequent = ranked_tokens(examples.corpus, examples.rows, task.vocabulary.special.cpu())

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether the vector says more than would be true of any text."""
        reached, constant = seen[-1][""], seen[-1].get("constant", math.nan)
        if not reached < constant:
            return None
        return (
            f"coverage ended at {reached:.4f}, below the {constant:.4f} of one and the same list, "
            f"the {self.settings.k} most frequent tokens: the vector names fewer of a text's words "
            "than that list would, so it has not learnt the texts yet: train on (of the recipes, "
            "bow gets there soonest: it trains the vector's words)"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The means over the texts that have a bag."""
        wanted = {"": self.settings.k, **{f"at_{k}": k for k in self.settings.curve}}
        most = max(wanted.values())
        sums: dict[str, float] = defaultdict(float)
        count = 0
        for batch, logits in vocabulary_logits(task, held_out):
            bags = token_sets(batch["input_ids"], task.vocabulary.special)
            shares = {"": covered(logits, bags, most)}
            shares |= reading_lines(bags, self.frequent, most)
            for line, curves in shares.items():
                totals = curves.sum(0).tolist()
                for place, k in wanted.items():
                    sums["_".join(filter(None, (line, place)))] += totals[min(k, len(totals)) - 1]
            count += int(bags.any(1).sum())
        return {name: total / max(count, 1) for name, total in sums.items()}


def covered(logits: Tensor, bags: Tensor, k: int) -> Tensor:
    """|top-j(logits) ∩ T| / |T| for j = 1 … k, [rows, k]; 0 for a row whose set T is empty.

    A logit of minus infinity names nothing.
    """
    values, named = logits.topk(min(k, logits.shape[1]))
    return _shares(bags.gather(1, named) & values.isfinite(), bags)


def reading_lines(bags: Tensor, frequent: Tensor, k: int) -> dict[str, Tensor]:
    """What the lists of the j most frequent tokens cover, and the most that j tokens can."""
    most = min(k, bags.shape[1])
    numbers = torch.arange(most, device=bags.device)
    return {
        "constant": _shares(bags[:, frequent[:k].to(bags.device)], bags),
        "ceiling": _shares(numbers < bags.sum(1, keepdim=True), bags),
    }


def _shares(hits: Tensor, bags: Tensor) -> Tensor:
    return hits.cumsum(1) / bags.sum(1, keepdim=True).clamp(min=1)


def ranked_tokens(corpus: TokenisedCorpus, rows: Rows, special: Tensor) -> Tensor:
    """All token ids, those in most of a sample of these documents first, special ones last."""
    sample = rows[:: max(1, len(rows) // _FREQUENCY_DOCUMENTS)]
    sets = [np.unique(corpus.tokens(row)) for row in sample]
    ids = torch.from_numpy(np.concatenate(sets).astype(np.int64))
    counts = torch.bincount(ids, minlength=len(special)).masked_fill(special, -1)
    return counts.argsort(descending=True, stable=True)


@probe("masked_lm")
class MaskedLm(Probe):
    """Masked-LM loss: how well the encoder knows the language of the corpus.

    Mean cross-entropy at uniformly masked tokens; always the same ones, for every recipe.
    """

    Settings = MaskingSettings
    settings: MaskingSettings
    better = "lower"

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over all masked tokens."""
        corruption = Uniform(self.settings)
        total, count = 0.0, 0
        for batch in on_device(task, held_out.texts):
            hidden = corruption.prepare(task.step(batch))
            states = task.backbone(hidden["encoder_ids"], batch["attention_mask"])
            labelled = hidden["labels"] != IGNORED
            prediction = task.backbone.predict(states[labelled])
            total += float(prediction.cross_entropy(hidden["labels"][labelled]))
            count += int(labelled.sum())
        return {"": total / max(count, 1)}


_SHORTEST_QUERY = 4  # tokens
Tokens = list[list[int]]


class RetrievalSettings(Settings):
    """What serves as the query, and how much of a lexicon counts."""

    query: Literal["auto", "title", "sentence"] = "auto"
    terms: int = Field(
        LEXICON_TERMS,
        ge=1,
        description="of a lexicon's weights, the largest, as an index keeps them",
    )


@probe("retrieval")
class Retrieval(Probe):
    """Zero-label retrieval: a title finds its text, or a sentence the passage it was taken out of.

    MRR@10 of inner products among the held-out passages.
    """

    Settings = RetrievalSettings
    settings: RetrievalSettings
    uses_head = False  # but for a lexicon
    better = "higher"

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Makes the queries, the passages that they look for, and groups of equal titles."""
        titled = _titled(held_out) if self.settings.query != "sentence" else []
        if self.settings.query == "title" and not titled:
            raise _no_query("no titles", "probes.measure.retrieval.query")
        if titled and (self.settings.query == "title" or 2 * len(titled) >= len(held_out.rows)):
            titles, texts = zip(*titled, strict=True)
            queries, passages = (_tokens(side, held_out) for side in (titles, texts))
            number = {title: group for group, title in enumerate(dict.fromkeys(titles))}
            self.groups = torch.tensor([number[title] for title in titles])
        else:
            queries, passages = _sentences(held_out)
            self.groups = torch.arange(len(queries))
        if not queries and decides:
            raise _no_query("neither titles nor passages of two sentences", "probes.best_by")
        self.queries, self.passages = map(held_out.batches, (queries, passages))

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether the model was better before."""
        values = [numbers[""] for numbers in seen]
        if len(values) < 2 or not values[0] > max(values[1:]):
            return None
        return (
            "retrieval was best before training: too few steps, or the recipe trains the vector of "
            "another pooling than the model was made for (a notice at the start says so, and how "
            "to keep it); --set probes.best_by=retrieval keeps the best model"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over the queries; no number where the documents gave none."""
        if not self.queries:
            return {"": math.nan}

        def vectors(batches: list[Batch]) -> Tensor:
            return torch.cat(
                [
                    represent(task, batch, held_out.vector, self.settings.terms)
                    for batch in on_device(task, batches)
                ]
            )

        scores = vectors(self.queries).float() @ vectors(self.passages).float().T
        wanted = self.groups[:, None] == self.groups
        return {"": mean_reciprocal_rank(scores, wanted.to(scores.device))}


def mean_reciprocal_rank(scores: Tensor, wanted: Tensor, depth: int = 10) -> float:
    """MRR@depth; of equal scores the wanted one comes last: a collapsed vector gets nothing."""
    best = scores.masked_fill(~wanted, -torch.inf).amax(1, keepdim=True)
    # Not `>=`: what is no number is before nothing, and would put the wanted one first.
    ranks = 1 + (~(scores < best) & ~wanted).sum(1)
    return float(torch.where(ranks <= depth, 1 / ranks, 0).mean())


def _titled(held_out: HeldOut) -> list[tuple[str, str]]:
    """Title and text of the held-out documents that have both."""
    left = {held_out.examples.corpus[row].id for row in held_out.rows}
    found = []
    for document in held_out.documents:
        if document.id in left:
            left.discard(document.id)
            if document.title.strip() and document.text.strip():
                found.append((document.title, document.text))
        if not left:
            break
    return found


def _tokens(texts: Sequence[str], held_out: HeldOut) -> Tokens:
    return [row.ids for row in held_out.tokenizer.split(list(texts))]


def _sentences(held_out: HeldOut) -> tuple[Tokens, Tokens]:
    """A sentence of each document, drawn by its row, and the passage that it was taken out of."""
    queries, passages = [], []
    for row in held_out.rows:
        document = held_out.examples.corpus[row]
        tokens = document.tokens[: held_out.examples.room].tolist()
        edges = [0, *(s for s in document.sentences.tolist() if 0 < s < len(tokens)), len(tokens)]
        spans = [
            (start, end)
            for start, end in pairwise(edges)
            if end - start >= _SHORTEST_QUERY and len(tokens) - (end - start) >= _SHORTEST_QUERY
        ]
        if spans:
            start, end = spans[key(held_out.examples.seed, EPOCH, int(row)) % len(spans)]
            queries.append(tokens[start:end])
            passages.append(tokens[:start] + tokens[end:])
    return queries, passages


def _no_query(missing: str, where: str) -> InputError:
    return InputError(
        f"{where}: the retrieval probe has no queries, as the held-out documents have {missing}",
        "--set probes.best_by=null, or leave the retrieval probe out of probes.measure",
    )


TOPIC = "probe"


class Probing(EvaluationCallback):
    """Calls every probe at each evaluation."""

    def __init__(
        self,
        trainer: Trainer,
        probes: Mapping[str, Probe],
        held_out: Callable[[], HeldOut],
        settings: ProbeSettings,
    ) -> None:
        best = None
        if settings.best_by is not None:
            best = Best(settings.best_by, probes[settings.best_by].better, settings.patience)
        super().__init__(trainer, TOPIC, self._ask, settings.every, best)
        self.probes = probes
        self._prepare = held_out
        self._best_by = settings.best_by
        self._held_out: HeldOut | None = None

    def _ask(self) -> dict[str, float]:
        task = self.trainer.task
        assert isinstance(task, PretrainTask)
        if self._held_out is None:
            self._held_out = self._prepare()
            for name, probe in self.probes.items():
                probe.prepare(task, self._held_out, decides=name == self._best_by)
        return measure(self.probes, task, self._held_out)


def report_probes(
    history: Sequence[Mapping[str, float]], probes: Mapping[str, Probe], output: Path
) -> str:
    """Writes table and plot into a folder; returns where each probe began, was best and ended."""
    told = report_curves(history, TOPIC, probes, output, "probes")
    if not told:
        return ""
    seen = evaluations(history, TOPIC)
    remarks = [
        probe.remark([own_numbers(line, f"{TOPIC}/{name}") for line in seen])
        for name, probe in probes.items()
    ]
    return "\n".join([told, *(remark for remark in remarks if remark is not None)])
