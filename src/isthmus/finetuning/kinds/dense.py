"""Dense encoders: a short vector per text, from the backbone's last layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import EncoderSettings
from isthmus.encoders.modules import projecting
from isthmus.encoders.projection import load_projection
from isthmus.encoders.sparse import SparseSettings
from isthmus.finetuning.kinds._vectors import Vectors
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer


class Dense(Vectors):
    """Trains a DenseEncoder."""

    foreign = ("sparse", "regularizers", "start_terms")
    form: ClassVar = {"pooling": "pooling", "similarity": "similarity"}
    Settings = DenseSettings

    def encoder(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: DenseSettings, folder: str
    ) -> DenseEncoder:
        """The encoder around a backbone, with the projection that the folder has."""
        projection = load_projection(folder, projecting(folder), backbone.dimension)
        return DenseEncoder(backbone, tokenizer, settings, folder, projection)

    def becomes(self, model: str, known: EncoderSettings | None) -> Iterator[str]:
        """Yields a message where the model was sparse."""
        if isinstance(known, SparseSettings):
            recipe = "lexmae-sparse" if known.form == "lexmae" else "splade"
            yield (f"{model} was made sparse; here it becomes dense (--recipe {recipe} keeps it)")
