"""How fast every recipe trains, in one run beside the plain loop and the chip's own limit."""

from isthmus.benchmark.speed.report import SpeedReport
from isthmus.benchmark.speed.settings import SpeedSettings
from isthmus.benchmark.speed.speed import speed

__all__ = ["SpeedReport", "SpeedSettings", "speed"]
