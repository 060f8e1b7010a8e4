"""Documents encoded on a cluster: each machine fills an index of a stretch of the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cluster import Cluster
from isthmus.config.encoding import Backend
from isthmus.errors import MismatchError
from isthmus.indexes.documents import blocks
from isthmus.indexes.kinds import builder_for
from isthmus.indexes.manifest import Description
from isthmus.indexes.segments.shards import ShardedBuilder
from isthmus.records import Document
from isthmus.text.truncation import CutTexts

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder


def fill_shards(
    cluster: Cluster,
    documents: Iterable[Document],
    output: Path,
    description: Description,
    request: Mapping[str, Any],
    block_size: int,
) -> CutTexts:
    """Builds an index on the machines of a cluster; what was cut of the texts encoded now.

    The encoder is the one that the description names.
    """
    # Whole blocks, so that batches are those of one machine: how a product of matrices is rounded
    # can depend on them.
    size = -(-cluster.settings.shard_documents // block_size) * block_size
    builder = ShardedBuilder(cluster, output, description, size)
    found = builder.add(documents, partial(_fill_shard, request, block_size))
    builder.finish(request)
    total = CutTexts(0)
    for part in found:
        total.add(part)
    return total


def _fill_shard(
    request: Mapping[str, Any],
    block_size: int,
    documents: Sequence[Document],
    folder: Path,
    description: Description,
) -> CutTexts:
    """Builds the index of a part of the corpus, on a machine of a cluster; what was cut of it."""
    origin = description.encoder
    assert origin is not None
    encoder = _load_once(origin.name, origin.backend, json.dumps(origin.settings))
    if encoder.fingerprint != origin.fingerprint:
        raise MismatchError(
            f"a machine of the cluster has another encoder at {origin.name} "
            f"({encoder.fingerprint}, not {origin.fingerprint})",
            "put the encoder on storage that all machines share",
        )
    encoder.cut_texts.restart()
    with builder_for(folder, description) as builder:
        for block, vectors in encoder.encode_blocks(blocks(documents, block_size)):
            builder.add(block, vectors)
        builder.finish(request)
    return encoder.cut_texts


@lru_cache(maxsize=1)
def _load_once(model: str, backend: Backend, settings: str) -> DenseEncoder | SparseEncoder:
    """The encoder, kept by the process for its next shard; its settings as JSON."""
    from isthmus.encoders import load_indexed_encoder

    return load_indexed_encoder(model, json.loads(settings), backend)
