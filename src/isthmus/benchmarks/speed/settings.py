"""Settings of `isthmus benchmark speed`."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from isthmus.config import Settings

Length = Annotated[int, Field(ge=8)]


class SpeedSettings(Settings):
    """Which recipes, at which shapes, on which texts, and how long each is watched."""

    verb = "benchmark speed"

    recipes: list[str] = Field([], description="none: all shipped ones that lack no setting")
    model: str | None = Field(None, description="a folder or hub name")
    init: str | None = Field(
        None, description="or a size with random weights; null: base, on CPU mini"
    )
    vocabulary: int = Field(30_522, ge=100, description="terms of the model, with init")
    corpus: str | None = Field(
        None, description="texts of real lengths; null: random tokens, every text of full length"
    )
    documents: int = Field(20_000, ge=1, description="of the corpus, at most")
    lengths: list[Length] = Field(
        [144], min_length=1, description="tokens per text, special ones included"
    )
    batch: int | None = Field(None, ge=1, description="texts per step")
    tokens: int | None = Field(
        None, ge=16, description="or tokens per step, padding included; null: 32,768, on CPU 1,024"
    )
    # The default shows every batch once: where shapes differ, each may have to be compiled.
    warm_up: int = Field(10, ge=1, description="steps before anything is timed")
    steps: int = Field(8, ge=1, description="timed in one turn")
    rounds: int = Field(5, ge=1, description="turns of each; medians are reported")
    pretrain: dict[str, Any] = Field(
        default_factory=dict, description="settings that every recipe is given, as in its YAML"
    )
    seed: int = Field(42, ge=0, lt=2**32, description="of everything that is drawn")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.model is not None and self.init is not None:
            raise ValueError("give either model (a folder or hub name) or init (a size), not both")
        if self.batch is not None and self.tokens is not None:
            raise ValueError("give either batch (texts) or tokens per step, not both")
        return self

    def size(self, gpu: bool) -> str:
        """The size of a model with random weights."""
        return self.init or ("base" if gpu else "mini")

    def texts(self, length: int, gpu: bool) -> int:
        """How many texts a step has."""
        tokens = self.tokens or (32_768 if gpu else 1_024)
        return self.batch or max(1, tokens // length)
