"""One pre-training step: document -> view -> corruption -> backbone -> decoder -> objectives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from isthmus.errors import InputError, MismatchError
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Asking
from isthmus.pretraining.decoders import Decoder
from isthmus.pretraining.labels import Vocabulary, asking, label_places
from isthmus.pretraining.recipe import Parts
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
        predicts = any("decoder_features" in one.requires for one in parts.objectives.values())
        if not any(p.uses_head for p in parts if predicts or not isinstance(p, Decoder)):
            # A parameter without gradient breaks data parallelism.
            backbone.freeze_head()

    def prepare(self, batch: Batch) -> Batch:
        """The batch with what corruptions and the decoder add to it."""
        batch = dict(batch)
        for part in (self.parts.corruption, self.parts.decoder_corruption, self.decoder):
            if part is not None:
                make = part.prepare if isinstance(part, Decoder) else part
                made = make(batch, self.vocabulary)
                batch |= made
                batch |= label_places(made, part.most_labels(batch))
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The items of each objective."""
        counts = {
            name: objective.count(batch, self.vocabulary)
            for name, objective in self.parts.objectives.items()
        }
        if self.parts.view.rows > 1:
            # Filled in there: a number that is copied makes the host wait.
            counts["view"] = torch.full((), len(batch["keys"]), device=batch["keys"].device)
        return counts

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of each objective, from one encoder pass."""
        step = self.decode(self.encode(batch))
        sums = {}
        for name, objective in self.parts.objectives.items():
            for metric, value in objective(step, self.backbone, self.vocabulary).items():
                sums[f"{name}/{metric}" if metric else name] = value
        if "repeated" in step:
            sums["view/one_span"] = step["repeated"].sum().float()
        return sums

    def encode(self, batch: Batch) -> Batch:
        """The step as far as the bottleneck."""
        ids = batch.get("encoder_ids", batch["input_ids"])
        mask = batch["attention_mask"]
        step = dict(batch)
        asked = self._asking(batch)
        layer = None if self.decoder is None else self.decoder.middle_layer(self.backbone.depth)
        found = self.backbone.encode(ids, mask, batch.get("tokens"), layer=layer, asking=asked)
        step["hidden_states"], step["first_states"] = found.states, found.first
        if found.middle is not None:
            step["middle_states"] = found.middle
        if self.bottleneck is not None:
            step["bottleneck"] = self.bottleneck(step, self.backbone, self.vocabulary)
        return step

    def _asking(self, batch: Batch) -> Asking | None:
        """The tokens whose last states some part reads; None: all, or nothing would be spared."""
        reads = {part.reads for part in self.parts if "hidden_states" in part.requires}
        if "all" in reads or not self.backbone.asks_for_some:
            return None
        return asking(batch, "labels" if "labels" in reads else None)

    def decode(self, step: Batch) -> Batch:
        """The step with the decoder's logits and targets, where there is a decoder."""
        if self.decoder is None:
            return step
        return {**step, **self.decoder(step, self.backbone, self.vocabulary)}

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
        if wanted and not alike(wanted, found):
            raise MismatchError(
                f"the decoder of the checkpoint {folder / PARTS_FILE} is not this recipe's",
                "train again in another --output",
            )
        overwrite(wanted, found)

    def continue_from(self, folder: Path) -> None:
        """Takes over what an earlier run left of the same shape: bottleneck, decoder, its head."""
        file, wanted = folder / PARTS_FILE, self._parts_state()
        if wanted and file.is_file():
            take_over(wanted, file)

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


def alike(one: State, other: State) -> bool:
    """Whether both have the same names and shapes."""
    return _shapes(one) == _shapes(other)


def overwrite(wanted: State, found: State) -> None:
    """Overwrites the wanted weights, in place, by those found."""
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(found[name])


def take_over(wanted: State, file: Path) -> None:
    """Copies each part that the file holds alike, and says which those are, and why not others."""
    parts, earlier = _by_part(wanted), _by_part(stored(file))
    for part, state in parts.items():
        found = earlier.pop(part, {})
        if alike(state, found):
            overwrite(state, found)
            notice(f"the {part} continues from {file}")
        else:
            notice(f"the {part} starts untrained: {_why(state, found, file)}")
    for part in earlier:
        notice(f"the {part} in {file} is not used: this recipe has none with weights")


def _why(state: State, found: State, file: Path) -> str:
    if not found:
        return f"{file} holds none"
    if (own := _kind(state)) != (other := _kind(found)):
        return f"that in {file} is {other}, this one {own}"
    return f"that in {file} has another shape"


def _kind(state: State) -> str:
    """The name of a part in recipes: ProjectedCls is projected_cls."""
    _, _, rest = next(iter(state)).partition(".")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", rest.partition(".")[0]).lower()


def _shapes(state: State) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


def _by_part(state: State) -> dict[str, State]:
    """Bottleneck, decoder, and the head that some decoders have of their own."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        part = "decoder's head" if ".own_head." in name else name.partition(".")[0]
        parts.setdefault(part, {})[name] = value
    return dict(parts)
