"""Token vectors: what is stored is near what was given, and its MaxSim is a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import ENCODER

from isthmus.indexes.manifest import TokensField, TokensSettings
from isthmus.indexes.ragged import Ragged, TokenVectors
from isthmus.indexes.tokens.codes import Asked, StoredTokens, compressed, rotation
from isthmus.indexes.tokens.field import scores

STEPS = {2: 0.9957, 4: 0.3352}  # Max (1960), table II: 4 and 16 levels


def of_texts(rows: list[np.ndarray]) -> TokenVectors:
    pieces = Ragged.of([np.zeros(0, dtype=np.int32)] * len(rows), np.zeros(0, dtype=np.int32))
    return TokenVectors(Ragged.of(rows, np.empty((0, 1), dtype=np.float32)), pieces)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)


@st.composite
def problems(draw: st.DrawFn) -> tuple[TokensField, list[np.ndarray], np.ndarray]:
    """A field, some texts of 0 to 9 tokens, and the tokens of a query."""
    width, bits = draw(st.integers(1, 40)), draw(st.sampled_from([2, 4]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    centre = (0.3 * generator.standard_normal(width)).round(3)
    about = TokensField(
        encoder=ENCODER,
        dimension=width,
        settings=TokensSettings(bits=bits, pooling=draw(st.integers(1, 3))),
        centre=centre.tolist(),
    )

    def drawn(count: int) -> np.ndarray:
        return unit(generator.standard_normal((count, width)) + centre).astype(np.float32)

    return about, [drawn(count) for count in lengths], drawn(draw(st.integers(1, 5)))


def decoded(about: TokensField, stored: StoredTokens, text: int) -> np.ndarray:
    """The vectors of a text in float64, number by number, as the format says."""
    width, bits = about.dimension, about.bits
    found = []
    for place in range(stored.starts[text], stored.starts[text + 1]):
        code, scale = stored.codes[place].tolist(), float(stored.scales[place])
        levels = [
            code[n % len(code)] >> bits * (n // len(code)) & (1 << bits) - 1 for n in range(width)
        ]
        turned = [(level - ((1 << bits) - 1) / 2) * STEPS[bits] * scale for level in levels]
        found.append(rotation(width).astype(float) @ turned + about.centre)
    return np.array(found).reshape(-1, width)


@given(problems(), st.data())
def test_scores_are_a_plain_loop_and_do_not_depend_on_company(
    problem: tuple[TokensField, list[np.ndarray], np.ndarray], data: st.DataObject
) -> None:
    about, texts, query = problem
    stored = compressed(about, of_texts(texts))
    weights = np.random.default_rng(0).random(len(query)).astype(np.float32)
    asked = Asked.of(about, query, weights)
    (found,) = scores(about, [asked], stored, np.arange(len(texts)))
    for text, score in enumerate(found):
        vectors = decoded(about, stored, text)
        expected = -np.inf
        if len(vectors):
            expected = sum(
                float(weight) * max(float(token @ vector) for vector in vectors)
                for weight, token in zip(weights, query.astype(float), strict=True)
            )
        np.testing.assert_allclose(score, expected, atol=1e-3)
    some = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=5))
    (again,) = scores(about, [asked], stored, np.array(some, dtype=np.int64))
    assert again.tolist() == found[some].tolist()


@pytest.mark.parametrize(("bits", "lost"), [(2, 0.343), (4, 0.108)])
@pytest.mark.parametrize("pooling", [1, 2, 3])
def test_what_is_stored_is_near_the_means_of_neighbours(
    bits: int, lost: float, pooling: int
) -> None:
    """What normally distributed numbers lose of their length: Max (1960), table II."""
    generator, width = np.random.default_rng(0), 61
    settings = TokensSettings(bits=bits, pooling=pooling)
    centre = generator.standard_normal(width).round(3)
    about = TokensField(encoder=ENCODER, dimension=width, settings=settings, centre=centre.tolist())
    texts = [
        unit(generator.standard_normal((count, width)) + centre).astype(np.float32)
        for count in (3, 0, 1, 2, 40, 5)
    ]
    stored = compressed(about, of_texts(texts))
    for number, text in enumerate(texts):
        groups = [text[n : n + pooling] for n in range(0, len(text), pooling)]
        means = unit(
            np.array([group.sum(axis=0, dtype=float) for group in groups]).reshape(-1, width)
        )
        found = decoded(about, stored, number)
        assert found.shape == means.shape
        errors = np.linalg.norm(found - means, axis=1) / np.linalg.norm(means - centre, axis=1)
        np.testing.assert_allclose(errors, lost, rtol=0.4)
