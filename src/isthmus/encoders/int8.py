"""Encoding in 8-bit integers through ONNX Runtime: for CPUs that are slow in bf16."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from isthmus.config.cache import cache_folder, one_at_a_time
from isthmus.config.output import whole_folder
from isthmus.encoders.dense import DenseEncoder
from isthmus.encoders.encoder import Encoder, Tokens
from isthmus.errors import MissingPackageError

_FILE = "model.onnx"
_OPSET = 17
_EXAMPLE = 8  # tokens of the text that the model is traced with: any number will do


class Int8Model:
    """An encoder whose matrix products are of integers; once made, it is kept in the cache.

    Weights are quantised per output, activations when they come, by the range of all that is
    computed at once. A vector must not depend on its company, so every text goes alone (and needs
    no padding), as many at a time as there are threads.
    """

    def __init__(self, encoder: Encoder) -> None:
        runtime = _runtime()
        self._float32 = _Alone(encoder).eval()
        folder = (
            cache_folder() / f"int8-states-onnxruntime-{runtime.__version__}" / encoder.fingerprint
        )
        with one_at_a_time(folder):
            if not (folder / _FILE).is_file():
                with whole_folder(folder) as partial:
                    _write(self._float32, partial)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = runtime.InferenceSession(
            folder / _FILE, options, providers=["CPUExecutionProvider"]
        )
        threads = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(threads, "encoding")
        self.batches = 4 * threads  # so many texts at once that threads seldom wait for each other

    def represent(self, rows: Sequence[Tokens]) -> Tensor:
        """The float32 vectors of some texts."""
        return torch.from_numpy(np.concatenate([one[0] for one in self._run_all(rows)]))

    def represent_both(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """The float32 vectors of some texts, and their last states at every place, padded."""
        found = self._run_all(rows)
        states = pad_sequence([torch.from_numpy(one[1][0]) for one in found], batch_first=True)
        return torch.from_numpy(np.concatenate([one[0] for one in found])), states

    def difference(self, rows: Sequence[Tokens]) -> str:
        """What the integers change for some documents, as a sentence with numbers."""
        with torch.inference_mode():
            vectors = torch.cat([self._float32(torch.tensor([row]))[0] for row in rows])
        exact, found = normalize(vectors), normalize(self.represent(rows))
        # Of a document without terms nothing can change.
        cosines = torch.where(exact.any(1) | found.any(1), (exact * found).sum(1), 1)
        return (
            f"onnx-int8: {len(rows):,} documents have cosines of {cosines.mean():.4f} on average "
            f"and {cosines.min():.4f} at least with their vectors in float32"
        )

    def _run_all(self, rows: Sequence[Tokens]) -> list[Any]:
        def run(row: Tokens) -> Any:
            return self._session.run(None, {"ids": np.array([row], dtype=np.int64)})

        return list(self._threads.map(run, rows))


class _Alone(nn.Module):
    """One text without padding in, its vector out; and its last states, of a dense encoder."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        assert encoder.backbone.word_embeddings.dtype == torch.float32, "rounded already"
        self.parts = nn.ModuleList(encoder.trained)  # for their parameters
        self.encoder = encoder

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        mask = torch.ones_like(ids)
        if isinstance(self.encoder, DenseEncoder):
            return self.encoder.represent_both(ids, mask)
        return (self.encoder.represent_documents(ids, mask),)


def _write(model: _Alone, folder: Path) -> None:
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError:
        raise _missing("onnx") from None

    whole = folder / "float32.onnx"
    example = torch.from_numpy(model.encoder.tokenizer.regular_ids[:1]).expand(1, _EXAMPLE)
    outputs = 1 + isinstance(model.encoder, DenseEncoder)
    with _still(), torch.no_grad():
        torch.onnx.export(
            model,
            (example,),
            whole,
            input_names=["ids"],
            output_names=["vectors", "states"][:outputs],
            dynamic_axes={"ids": {1: "length"}, "states": {1: "length"}},
            opset_version=_OPSET,
            dynamo=False,  # the newer exporter needs one more package
        )
        quantize_dynamic(
            whole,
            folder / _FILE,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            # To 7 bits: chips without VNNI add pairs of products in 16, which 8 bits overflow.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    whole.unlink()


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise _missing("onnxruntime") from None
    return onnxruntime


def _missing(package: str) -> MissingPackageError:
    return MissingPackageError(package, extra="onnx", needed_for="encoding.backend=onnx-int8")


@contextmanager
def _still() -> Iterator[None]:
    """Without the many warnings of exporter and quantiser, of which none is for a user."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
