"""The parts of a recipe by name, none of them imported."""

from isthmus.registry import Registry

VIEWS = Registry("isthmus.pretraining.views", "view")
CORRUPTIONS = Registry("isthmus.pretraining.corruption", "corruption")
BOTTLENECKS = Registry("isthmus.pretraining.bottlenecks", "bottleneck")
DECODERS = Registry("isthmus.pretraining.decoders", "decoder")
OBJECTIVES = Registry("isthmus.pretraining.objectives", "objective")
PROBES = Registry("isthmus.pretraining.probes", "probe")
