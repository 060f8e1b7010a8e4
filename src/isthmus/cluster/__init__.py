"""Many machines as one: tasks spread over a Ray cluster, done again where a machine dies.

Knows nothing of documents or indexes: every layer above brings its own tasks.
"""

from isthmus.cluster.cluster import Cluster, current
from isthmus.cluster.connection import connected
from isthmus.cluster.settings import ClusterSettings

__all__ = ["Cluster", "ClusterSettings", "connected", "current"]
