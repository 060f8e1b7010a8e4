"""What research needs beyond search: benchmarks, diagnostics of models and their training data."""

from isthmus.api import benchmark as benchmark
from isthmus.api import inspect as inspect
from isthmus.api import negatives as negatives
from isthmus.api import probe as probe
from isthmus.api import report as report
