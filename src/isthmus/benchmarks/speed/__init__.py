"""How fast every recipe trains, in one run beside the plain loop and the chip's own limit."""

from isthmus.benchmarks.speed.report import SpeedReport
from isthmus.benchmarks.speed.settings import SpeedSettings
from isthmus.benchmarks.speed.speed import speed

__all__ = ["SpeedReport", "SpeedSettings", "speed"]
