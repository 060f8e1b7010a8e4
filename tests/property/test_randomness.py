"""Randomness without state: SplitMix64, the same everywhere, of even distribution."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.nn.randomness import (
    draw,
    draw_bits,
    draw_together,
    key,
    normal,
    uniform,
)

KEYS = st.integers(-(2**63), 2**63 - 1)
ALL_BITS = 2**64 - 1


def split_mix(state: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014) in Python's integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & ALL_BITS
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & ALL_BITS
    return state ^ (state >> 31)


@settings(deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 9))
def test_draw_is_split_mix(keys: list[int], stream: int, width: int) -> None:
    found = draw(torch.tensor(keys), stream, width).tolist()
    for row, start in zip(found, keys, strict=True):
        for position, value in enumerate(row, start=1):
            counter = position + (stream << 32)
            state = (start + counter * 0x9E3779B97F4A7C15) & ALL_BITS
            assert value == split_mix(state) >> 1


def test_the_published_sequence_of_seed_zero() -> None:
    # The first outputs of SplitMix64 seeded with 0, as its reference implementation prints them.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert draw(torch.tensor([0]), 0, 3)[0].tolist() == [value >> 1 for value in published]


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 2**40))
def test_a_key_is_a_signed_word_that_every_part_changes(
    seed: int, epoch: int, document: int
) -> None:
    found = key(seed, epoch, document)
    assert -(2**63) <= found < 2**63
    assert found == key(seed, epoch, document)
    others = {
        key(seed + 1, epoch, document), key(seed, epoch + 1, document),
        key(seed, epoch, document + 1), key(epoch, seed, document) if seed != epoch else None,
    }  # fmt: skip
    assert found not in others


@settings(deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 50))
def test_a_number_depends_on_its_own_place_alone(keys: list[int], stream: int, width: int) -> None:
    wide = draw(torch.tensor(keys), stream, width + 7)
    assert torch.equal(wide[:, :width], draw(torch.tensor(keys), stream, width))
    assert torch.equal(wide[-1:], draw(torch.tensor(keys[-1:]), stream, width + 7))


@settings(deadline=None)
@given(
    st.lists(KEYS, min_size=1, max_size=4),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_several_streams_at_once_are_those_drawn_alone(
    keys: list[int], streams: list[int], width: int
) -> None:
    found = draw_together(torch.tensor(keys), streams, width)
    assert len(found) == len(streams)
    for stream, values in zip(streams, found, strict=True):
        assert torch.equal(values, draw(torch.tensor(keys), stream, width))


@settings(deadline=None)
@given(KEYS, st.integers(0, 9))
def test_numbers_stay_in_their_range(start: int, stream: int) -> None:
    reals = uniform(draw(torch.tensor([start]), stream, 100))
    assert reals.dtype == torch.float32
    assert reals.min() >= 0
    assert reals.max() < 1


def test_numbers_are_uniform_and_streams_unrelated() -> None:
    keys = torch.tensor([key(1, 0, document) for document in range(1000)])
    reals = uniform(draw(keys, 2, 200)).double()
    counts = torch.histc(reals, bins=50, min=0, max=1)
    expected = reals.numel() / 50
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 120, "49 degrees of freedom: 120 is beyond one in ten million"
    table = torch.corrcoef(
        torch.stack(
            [
                reals[:, :-1].flatten(),  # a position and the next one
                reals[:, 1:].flatten(),
                uniform(draw(keys, 3, 200))[:, :-1].double().flatten(),  # another stream
                reals[:, :-1].roll(1, 0).flatten(),  # the document before
            ]
        )
    )
    assert (table - torch.eye(4)).abs().max() < 0.015


@settings(deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(0, 40), st.integers(1, 9))
def test_all_64_bits_are_those_of_split_mix(keys: list[int], stream: int, width: int) -> None:
    found = draw_bits(torch.tensor(keys), stream, width)
    assert found.dtype == torch.int64
    for row, start in zip(found.tolist(), keys, strict=True):
        for position, value in enumerate(row, start=1):
            counter = position + (stream << 32)
            state = (start + counter * 0x9E3779B97F4A7C15) & ALL_BITS
            assert value & ALL_BITS == split_mix(state)


def test_normal_numbers() -> None:
    keys = torch.tensor([key(3, 0, document) for document in range(1000)])
    found = normal(draw(keys, 6, 200))
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    # Twenty bins of equal probability, by the distribution function written with erf.
    shares = 0.5 * (1 + torch.erf(found.double() / 2**0.5))
    counts = torch.histc(shares, bins=20, min=0, max=1)
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 65, "19 degrees of freedom: 65 is beyond one in a million"
    assert torch.equal(found, normal(draw(keys, 6, 200)))
