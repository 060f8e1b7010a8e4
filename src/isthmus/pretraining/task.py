"""One pre-training step: document -> view -> corruption -> backbone -> decoder -> objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from isthmus.errors import InputError, MismatchError
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Asking
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.step import Step, Vocabulary, label_places
from isthmus.progress import notice
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch, Task

# What pre-training needs and an encoder does not: bottleneck, decoder, heads of objectives.
PARTS_FILE = "pretraining.safetensors"


class PretrainTask(Task):
    """A backbone with the parts of a recipe."""

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, parts: Parts, seed: int = 0
    ) -> None:
        super().__init__()
        backbone.check_tokens(tokenizer.rows)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.parts = parts
        self.vocabulary = Vocabulary(tokenizer, size=len(backbone.word_embeddings))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for part in parts:
                part.build(backbone, tokenizer)
        self.bottleneck = parts.bottleneck
        self.decoder = parts.decoder
        self.capturable = all(part.capturable for part in parts)
        self.heads = nn.ModuleDict(
            {name: one for name, one in parts.objectives.items() if isinstance(one, nn.Module)}
        )
        if not any(part.uses_head for part in parts):
            # A parameter without gradient breaks data parallelism.
            backbone.freeze_head()

    def step(self, batch: Batch) -> Step:
        """A batch, and what parts work with."""
        return Step(batch, self.vocabulary, self.backbone)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with what corruptions and the decoder add to it."""
        step = self.step(batch)
        for part in (self.parts.corruption, self.parts.decoder_corruption, self.parts.decoder):
            if part is not None:
                made = part.prepare(step)
                step |= made
                step |= label_places(made, part.most_labels(step))
        return step.fields

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of each objective, from one encoder pass."""
        step = self.decode(self.encode(batch))
        sums = {}
        for name, objective in self.parts.objectives.items():
            for metric, value in objective(step).items():
                sums[f"{name}/{metric}" if metric else name] = value
        if "repeated" in step:
            sums["view/one_span"] = step["repeated"].sum().float()
        return sums

    def encode(self, batch: Batch) -> Step:
        """The step as far as the bottleneck."""
        step, decoder = self.step(batch), self.parts.decoder
        ids = step["encoder_ids" if "encoder_ids" in step else "input_ids"]
        found = self.backbone.encode(
            ids,
            step["attention_mask"],
            step.get("tokens"),
            layer=None if decoder is None else decoder.middle_layer(self.backbone.depth),
            asking=self._asking(step),
        )
        step |= {"hidden_states": found.states, "first_states": found.first}
        if found.middle is not None:
            step |= {"middle_states": found.middle}
        if self.bottleneck is not None:
            step |= {"bottleneck": self.bottleneck(step)}
        return step

    def decode(self, step: Step) -> Step:
        """The step with the decoder's prediction and targets, where there is a decoder."""
        return step if self.decoder is None else self.decoder(step)

    def _asking(self, step: Step) -> Asking | None:
        """The tokens whose last states some part reads; None: all, or nothing would be spared."""
        reads = {part.reads for part in self.parts if "hidden_states" in part.requires}
        if "all" in reads or not self.backbone.asks_for_some:
            return None
        return step.asking("labels" if "labels" in reads else None)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The items of each objective."""
        step = self.step(batch)
        counts = {name: step.count(one.items) for name, one in self.parts.objectives.items()}
        return counts | ({"view": step.count("rows")} if self.parts.view.rows > 1 else {})

    def weights(self, progress: float) -> Mapping[str, float]:
        """Each objective's weight, decayed by cosine where its settings say so."""
        return {
            name: _decayed(objective.settings.weight, objective.settings.decay_to, progress)
            for name, objective in self.parts.objectives.items()
        }

    def save(self, folder: Path) -> None:
        """Backbone, head and tokenizer as AutoModelForMaskedLM loads them; the rest beside them."""
        self.backbone.save(folder)
        self.tokenizer.save(folder)
        if state := self._parts_state():
            state = {name: value.contiguous() for name, value in state.items()}
            save_file(state, folder / PARTS_FILE)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.backbone.restore(folder)
        wanted, found = self._parts_state(), stored(folder / PARTS_FILE)
        if not wanted:
            return
        if _shapes(wanted) != _shapes(found):
            raise MismatchError(
                f"the decoder of the checkpoint {folder / PARTS_FILE} is not this recipe's",
                "train again in another --output",
            )
        overwrite(wanted, found)

    def continue_from(self, folder: Path) -> None:
        """Takes over what an earlier run left of the same shape: bottleneck, decoder, its head."""
        file, wanted = folder / PARTS_FILE, self._parts_state()
        if not wanted or not file.is_file():
            return
        earlier = stored(file)
        taken, fresh = [], []
        for place in dict.fromkeys(map(_place, wanted)):
            own, found = _at(place, wanted), _at(place, earlier)
            if _shapes(own) == _shapes(found):
                overwrite(own, found)
                taken.append(place)
            else:
                fresh.append(place)
        untrained = f"; untrained: {', '.join(fresh)}" if fresh else ""
        notice(f"continued from {file}: {', '.join(taken) or 'nothing'}{untrained}")

    def _parts_state(self) -> dict[str, Tensor]:
        modules = {"bottleneck": self.bottleneck, "decoder": self.decoder, **self.heads}
        return {
            f"{where}.{type(module).__name__}.{name}": value
            for where, module in modules.items()
            if module is not None
            for name, value in module.state_dict().items()
        }


def _decayed(weight: float, decay_to: float | None, progress: float) -> float:
    if decay_to is None:
        return weight
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return weight * (decay_to + (1 - decay_to) * cosine)


# Weights by name: PLACE.CLASS.NAME, the place bottleneck, decoder or the name of an objective.
State = Mapping[str, Tensor]


def stored(file: Path) -> dict[str, Tensor]:
    """The weights in a file; none where there is none."""
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as weights:
            return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{file} cannot be read: {error}",
            "copy it again, or remove it: its parts are then trained from scratch",
        ) from error


def overwrite(wanted: State, found: State) -> None:
    """Overwrites the wanted weights, in place, by those found."""
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(found[name])


def _place(name: str) -> str:
    """Where a weight is: bottleneck, decoder, or the head that some decoders have of their own."""
    return "the decoder's head" if ".own_head." in name else f"the {name.partition('.')[0]}"


def _at(place: str, state: State) -> State:
    return {name: value for name, value in state.items() if _place(name) == place}


def _shapes(state: State) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}
