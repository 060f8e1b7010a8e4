"""Use of the bottleneck: what reconstruction loses when every text gets another text's vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.pretraining.decoders import decoder_prediction
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.probes._base import Probe, on_device
from isthmus.pretraining.probes._held_out import HeldOut
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.registries import probe
from isthmus.pretraining.task import PretrainTask

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
            other = {**step, "bottleneck": step["bottleneck"].roll(1, 0)}
            for name, given in (("true", step), ("shuffled", other)):
                decoded = task.decode(given)
                prediction = decoder_prediction(decoded)
                sums[name] += float(prediction.cross_entropy(decoded["decoder_targets"]))
            count += int((decoded["decoder_targets"] != IGNORED).sum())
        means = {name: total / max(count, 1) for name, total in sums.items()}
        return {"": means["shuffled"] - means["true"], **means}
