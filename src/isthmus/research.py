"""What research needs beyond search: diagnostics of models and of their training data."""

from isthmus.api import inspect as inspect
from isthmus.api import negatives as negatives
from isthmus.api import probe as probe
