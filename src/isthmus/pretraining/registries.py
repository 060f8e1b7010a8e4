"""The registries of pre-training and the decorators that fill them; no part is imported here."""

from isthmus.registry import Registry

VIEWS = Registry("isthmus.pretraining.views", "view")
CORRUPTIONS = Registry("isthmus.pretraining.corruption", "corruption")
BOTTLENECKS = Registry("isthmus.pretraining.bottlenecks", "bottleneck")
DECODERS = Registry("isthmus.pretraining.decoders", "decoder")
OBJECTIVES = Registry("isthmus.pretraining.objectives", "objective")
PROBES = Registry("isthmus.pretraining.probes", "probe")

view = VIEWS.register
corruption = CORRUPTIONS.register
bottleneck = BOTTLENECKS.register
decoder = DECODERS.register
objective = OBJECTIVES.register
probe = PROBES.register
