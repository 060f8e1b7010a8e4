"""The order of examples: nothing twice, like lengths side by side, the same however it is split."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.text.order import (
    bucketed_order,
    length_sorted_batches,
    mixed_order,
)

LENGTHS = st.lists(st.integers(0, 512), max_size=300)


@settings(deadline=None)
@given(
    st.sampled_from([bucketed_order, mixed_order]),
    LENGTHS,
    st.integers(1, 40),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_an_epoch_is_a_permutation_of_whole_batches(
    arrange: Any, lengths: list[int], batch: int, seed: int, epoch: int
) -> None:
    order = arrange(lengths, batch, seed, epoch)
    assert len(set(order.tolist())) == len(order)
    assert set(order.tolist()) <= set(range(len(lengths)))
    kept = len(lengths) if len(lengths) <= batch else len(lengths) // batch * batch
    assert len(order) == kept
    np.testing.assert_array_equal(order, arrange(np.array(lengths), batch, seed, epoch))


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 9))
def test_batches_hold_like_lengths(batches: int, batch: int, seed: int) -> None:
    # Fewer than a pool: the batches are then exactly the sorted lengths, cut.
    lengths = np.random.default_rng(seed).permutation(batches * batch)
    order = bucketed_order(lengths, batch, seed, epoch=0)
    cut = lengths[order].reshape(-1, batch)
    assert sorted(map(tuple, cut)) == [
        tuple(range(start, start + batch)) for start in range(0, len(lengths), batch)
    ]


@settings(deadline=None)
@given(st.integers(2, 40), st.integers(2, 8), st.integers(0, 9))
def test_mixed_batches_draw_one_of_each_stratum(batches: int, batch: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).permutation(batches * batch)
    cut = lengths[mixed_order(lengths, batch, seed, epoch=0)].reshape(-1, batch)
    strata = np.sort(cut, axis=1) // batches
    np.testing.assert_array_equal(strata, np.tile(np.arange(batch), (batches, 1)))


def test_mixed_batches_have_almost_as_many_tokens_and_other_company_in_the_next_epoch() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(4.2, 0.6, 20_000), 13, 144).astype(int)
    found = [mixed_order(lengths, 256, 1, epoch).reshape(-1, 256) for epoch in (0, 1)]
    tokens = lengths[found[0]].sum(1)
    assert np.ptp(tokens) < 0.01 * tokens.mean()
    company = [set(next(row for row in rows.tolist() if 7 in row)) for rows in found]
    assert len(company[0] & company[1]) < 20
    # Nor are the texts of a batch in order of length.
    assert abs(np.corrcoef(lengths[found[0][0]], np.arange(256))[0, 1]) < 0.3


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 2000), st.none() | st.integers(1, 20))
def test_encoding_batches_hold_everything_once_longest_first(
    lengths: list[int], tokens: int, texts: int | None
) -> None:
    batches = length_sorted_batches(lengths, tokens, texts)
    most = len(lengths) if texts is None else texts
    seen = [int(row) for rows in batches for row in rows]
    assert sorted(seen) == list(range(len(lengths)))
    ordered = [lengths[row] for row in seen]
    assert ordered == sorted(lengths, reverse=True)
    for number, rows in enumerate(batches, start=1):
        longest = max(1, *(lengths[row] for row in rows))
        assert len(rows) == 1 or len(rows) * longest <= tokens, "padded, it fits"
        assert len(rows) <= most
        full = len(rows) == most or (len(rows) + 1) * longest > tokens
        assert number == len(batches) or full, "and no more would"
