"""The loops of the inverted index, compiled.

A block is small enough for the scores of its documents to stay in the processor's nearest cache.
It is searched so: its short lists are added to the scores; a cell's best score so far, plus the
bounds of the long lists, says what its documents can reach at most; long lists are added where
that is enough to be among the best. Whatever reaches the threshold is scored in full, so nothing
is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.indexes.compiling import compiled, prefetch
from isthmus.indexes.inverted.lists import (
    CELL,
    CELLS,
    GROUP,
    Allowed,
    Array,
    Block,
    Lists,
    Plan,
    Postings,
    Shape,
)

_BYTE = 255
_BUCKETS = 256


@compiled
def plan(terms: Array, weights: Array, lists: Lists, blocks: int, long_from: int) -> Plan:
    """The plan of a query.

    Totals are added in the order of terms, as scores are: rounded alike, a sum of larger numbers
    never comes out below a sum of smaller ones.
    """
    starts = np.zeros((blocks, len(terms)), np.int64)
    lengths = np.zeros((blocks, len(terms)), np.int64)
    records = np.full((blocks, len(terms)), -1, np.int64)
    units = np.zeros((blocks, len(terms)), weights.dtype)
    totals = np.zeros(blocks, weights.dtype)
    for i in range(len(terms)):
        start, record = lists.term_postings[terms[i]], lists.term_records[terms[i]]
        for number in range(lists.term_lists[terms[i]], lists.term_lists[terms[i] + 1]):
            block, length = lists.list_blocks[number], lists.list_lengths[number]
            bound = lists.list_bounds[number]
            starts[block, i] = start
            lengths[block, i] = length
            totals[block] += weights[i] * bound
            start += length
            if length >= long_from:
                records[block, i] = record
                units[block, i] = weights[i] * step(bound)
                record += 1
    return Plan(weights, starts, lengths, records, units, totals)


@compiled
def scan(
    query: Plan,
    blocks: Array,
    postings: Postings,
    shape: Shape,
    allowed: Allowed,
    floors: Array,
    share: int,
    depth: int,
) -> tuple[Array, Array]:
    """Positions and scores of the documents of some blocks that may be among the best `depth`.

    `floors` is common to all who search for this query: each writes the score that its own best
    `depth` documents reach, and heeds the others'.
    """
    scores = np.empty(shape.block, query.totals.dtype)
    bounds = np.empty(shape.block // CELL, query.totals.dtype)
    found = np.empty(2 * depth + 128 + shape.block, np.int64)
    reached = np.empty(len(found), query.totals.dtype)
    totals, documents, has_allowed = query.totals, allowed.documents, allowed.blocks
    open_to_all = len(documents) == 0
    count, full = 0, depth
    threshold, high = floors[share], floors[share]
    for turn in range(len(blocks)):
        block = blocks[turn]
        for other in floors:
            threshold = max(threshold, other)
        if totals[block] < threshold or not (open_to_all or has_allowed[block]):
            continue
        if turn + 1 < len(blocks):
            _ask_for(query, blocks[turn + 1], postings)
        _score(query, block, postings, threshold, scores, bounds)
        for cell in range(len(bounds)):
            if bounds[cell] < threshold:
                continue
            high = max(high, bounds[cell])
            first = cell // CELLS * GROUP + cell % CELLS
            for member in range(CELL):
                score = scores[first + member * CELLS]
                position = block * shape.block + cell * CELL + member
                # Written whether it counts or not: a jump taken at random costs more.
                found[count] = position
                reached[count] = score
                count += score >= threshold and (open_to_all or documents[position])
        if count > full:
            count, threshold = _keep(found, reached, count, depth, high)
            floors[share] = threshold
            # Equal scores are all kept, however many: ids decide among them later.
            full = count + depth // 2 + 64
            if full + shape.block >= len(found):
                found = np.concatenate((found, np.empty_like(found)))
                reached = np.concatenate((reached, np.empty_like(reached)))
    return found[:count], reached[:count]


@compiled
def _ask_for(query: Plan, block: int, postings: Postings) -> None:
    """Asks for what `_score` reads of a block whatever the threshold, which lies far apart."""
    starts, lengths, records = query.starts[block], query.lengths[block], query.records[block]
    offsets, values, cell_bounds = postings.offsets, postings.weights, postings.cell_bounds
    for i in range(len(starts)):
        if records[i] >= 0:
            for cell in range(0, cell_bounds.shape[1], 64):
                prefetch(cell_bounds, records[i] * cell_bounds.shape[1] + cell)
        else:
            for place in range(starts[i], starts[i] + lengths[i], 32):
                prefetch(offsets, place)
            for place in range(starts[i], starts[i] + lengths[i], 64):
                prefetch(values, place)


@compiled
def _score(
    query: Plan, block: int, postings: Postings, threshold: Any, scores: Array, bounds: Array
) -> None:
    """Scores of a block, and the best of each cell; where it cannot reach the threshold, a bound.

    The scores of such a cell are not complete.
    """
    # Taken out of their tuples once: every access through a tuple counts references.
    weights, starts, lengths = query.weights, query.starts[block], query.lengths[block]
    records, units = query.records[block], query.units[block]
    offsets, values = postings.offsets, postings.weights
    cell_bounds, group_starts = postings.cell_bounds, postings.group_starts
    scores[:] = 0
    for i in range(len(weights)):
        if records[i] < 0:
            _add(offsets, values, starts[i], starts[i] + lengths[i], weights[i], scores)
    _cell_maxima(scores, bounds)
    if records.max() < 0:
        return
    for i in range(len(weights)):
        if records[i] >= 0:
            unit, row = units[i], cell_bounds[records[i]]
            for cell in range(len(bounds)):
                bounds[cell] += unit * row[cell]
    promising = np.zeros(len(bounds) // CELLS, np.bool_)
    for cell in range(len(bounds)):
        if bounds[cell] >= threshold:
            promising[cell // CELLS] = True
    groups = np.flatnonzero(promising)
    if len(groups) == 0:
        return
    picked = 2 * len(groups) < len(promising)
    if picked:
        for i in range(len(weights)):
            if records[i] >= 0:
                for group in groups:
                    place = starts[i] + group_starts[records[i], group]
                    prefetch(offsets, place)
                    prefetch(values, place)
    for i in range(len(weights)):
        if records[i] >= 0 and picked:
            row = group_starts[records[i]]
            for group in groups:
                stop = row[group + 1] if group + 1 < len(row) else lengths[i]
                first, last = starts[i] + row[group], starts[i] + stop
                _add(offsets, values, first, last, weights[i], scores)
        elif records[i] >= 0:
            _add(offsets, values, starts[i], starts[i] + lengths[i], weights[i], scores)
    # The cells of other groups come out lower than their bounds, which were too low already.
    _cell_maxima(scores, bounds)


@compiled
def _add(offsets: Array, values: Array, start: int, stop: int, weight: Any, scores: Array) -> None:
    # Unsigned places cannot be negative, which numba would check for every posting.
    for place in range(np.uint64(start), np.uint64(stop)):
        scores[offsets[place]] += weight * values[place]


@compiled
def _cell_maxima(scores: Array, bounds: Array) -> None:
    """Halves each group until one score per cell is left, many at a time."""
    half = np.empty(GROUP // 2, scores.dtype)
    for group in range(len(bounds) // CELLS):
        members = scores[group * GROUP : (group + 1) * GROUP]
        for i in range(GROUP // 2):
            half[i] = max(members[i], members[i + GROUP // 2])
        size = GROUP // 4
        while size >= CELLS:
            for i in range(size):
                half[i] = max(half[i], half[i + size])
            size //= 2
        bounds[group * CELLS : (group + 1) * CELLS] = half[:CELLS]


@compiled
def _keep(found: Array, reached: Array, count: int, depth: int, high: Any) -> tuple[int, Any]:
    """Moves the best to the front: how many, at least `depth` and hardly more; the least of them.

    A histogram finds them. `high` is no less than the highest.
    """
    low = reached[0]
    for place in range(count):
        low = min(low, reached[place])
    scale = (_BUCKETS - 1) / max(high - low, 1)
    sizes = np.zeros(_BUCKETS, np.int64)
    for place in range(count):
        sizes[int((reached[place] - low) * scale)] += 1
    bucket = _BUCKETS - 1
    inside = sizes[bucket]
    while inside < depth:
        bucket -= 1
        inside += sizes[bucket]
    kept, least = 0, high
    for place in range(count):
        if int((reached[place] - low) * scale) >= bucket:
            least = min(least, reached[place])
            found[kept] = found[place]
            reached[kept] = reached[place]
            kept += 1
    return kept, least


@compiled
def step(bound: Any) -> Any:
    """What one unit of a cell's bound is worth, so that the bound of the whole list fits a byte."""
    return (bound + _BYTE - 1) // _BYTE


@compiled
def invert(
    rows: Array,
    row_starts: Array,
    terms: Array,
    weights: Array,
    shape: Shape,
    vocabulary: int,
    largest: Any,
    stored: Array,
) -> Block:
    """The block of these rows. `stored` is an empty array of the type that weights are stored in.

    A weight beyond the `largest` that fits is stored as several postings that add up to it.
    Offsets put the cells of a group side by side, so that many are compared at a time.
    """
    lengths = np.zeros(vocabulary, np.int64)
    for row in rows:
        for place in range(row_starts[row], row_starts[row + 1]):
            rest = weights[place]
            while rest > largest:
                lengths[terms[place]] += 1
                rest -= largest
            lengths[terms[place]] += 1
    used = np.flatnonzero(lengths)
    starts = np.cumsum(lengths) - lengths
    ends = starts.copy()
    offsets = np.empty(lengths.sum(), np.uint16)
    values = np.empty(len(offsets), stored.dtype)
    bounds = np.zeros(vocabulary, weights.dtype)
    for number in range(len(rows)):
        group, inside = divmod(number, GROUP)
        offset = group * GROUP + inside % CELL * CELLS + inside // CELL
        for place in range(row_starts[rows[number]], row_starts[rows[number] + 1]):
            term, rest = terms[place], weights[place]
            bounds[term] = max(bounds[term], rest)
            while rest > largest:
                offsets[ends[term]] = offset
                values[ends[term]] = largest
                ends[term] += 1
                rest -= largest
            offsets[ends[term]] = offset
            values[ends[term]] = rest
            ends[term] += 1
    long_terms = used[lengths[used] >= shape.long_from]
    cells = shape.block // CELL
    cell_bounds = np.zeros((len(long_terms), cells), np.uint8)
    group_starts = np.zeros((len(long_terms), cells // CELLS), np.uint16)
    for record in range(len(long_terms)):
        term = long_terms[record]
        start, stop = starts[term], starts[term] + lengths[term]
        _describe(
            offsets[start:stop],
            values[start:stop],
            step(bounds[term]),
            cell_bounds[record],
            group_starts[record],
        )
    return Block(
        used,
        bounds[used],
        lengths[used].astype(np.uint16),
        offsets,
        values,
        cell_bounds,
        group_starts,
    )


@compiled
def _describe(
    offsets: Array, weights: Array, unit: Any, cell_bounds: Array, group_starts: Array
) -> None:
    """Bounds of the cells and starts of the groups of one long list."""
    place = 0
    for cell in range(len(cell_bounds)):
        if cell % CELLS == 0:
            group_starts[cell // CELLS] = place
        highest = 0.0
        while place < len(offsets) and _cell(offsets[place]) == cell:
            whole = float(weights[place])
            while place + 1 < len(offsets) and offsets[place + 1] == offsets[place]:
                place += 1
                whole += weights[place]
            highest = max(highest, whole)
            place += 1
        cell_bounds[cell] = np.ceil(highest / unit)


@compiled
def _cell(offset: int) -> int:
    return offset // GROUP * CELLS + offset % CELLS


@compiled
def gather(values: Array, starts: Array, lengths: Array) -> Array:
    """Parts of an array one after the other."""
    gathered = np.empty(lengths.sum(), values.dtype)
    end = 0
    for part in range(len(starts)):
        for place in range(starts[part], starts[part] + lengths[part]):
            gathered[end] = values[place]
            end += 1
    return gathered


@compiled
def strongest(
    row_starts: Array, terms: Array, weights: Array, first: int, found: Array, none: int
) -> None:
    """Fills each row of `found` with a document's terms of highest weight, best first, then `none`.

    Rows belong to the documents from `first` on.
    """
    width = found.shape[1]
    kept = np.empty(width, weights.dtype)
    for row in range(len(found)):
        count = 0
        found[row] = none
        for place in range(row_starts[first + row], row_starts[first + row + 1]):
            if count == width and weights[place] <= kept[width - 1]:
                continue
            count = min(count + 1, width)
            slot = count - 1
            while slot > 0 and kept[slot - 1] < weights[place]:
                kept[slot] = kept[slot - 1]
                found[row, slot] = found[row, slot - 1]
                slot -= 1
            kept[slot] = weights[place]
            found[row, slot] = terms[place]


@compiled
def halve(
    order: Array, low: int, high: int, strong: Array, counts: Array, logs: Array, rounds: int
) -> int:
    """Where the second half of a range begins, after moving documents to the side they resemble.

    Recursive graph bisection (Dhulipala et al., KDD 2016) in the simplified form of Mackenzie,
    Petri and Moffat (SIGIR 2021): a document leans to the side where its terms are frequent, and
    the half that leans most is the left one.
    """
    middle = low + max(1, (high - low) // (2 * CELL)) * CELL
    size, half = high - low, middle - low
    lean = np.empty(size, np.float32)
    moved = np.empty(size, order.dtype)
    none = counts.shape[1] - 1
    for _ in range(rounds):
        for place in range(size):
            for term in strong[order[low + place]]:
                if term == none:
                    break
                counts[0 if place < half else 1, term] += 1
        for place in range(size):
            total = np.float32(0)
            for term in strong[order[low + place]]:
                if term == none:
                    break
                total += logs[counts[0, term]] - logs[counts[1, term]]
            lean[place] = -total
        for place in range(size):
            for term in strong[order[low + place]]:
                counts[0, term] = 0
                counts[1, term] = 0
        border = np.partition(lean, half)[half]
        ties = half - (lean < border).sum()
        left, right, changed = 0, half, 0
        for place in range(size):
            goes_left = lean[place] < border
            if lean[place] == border and ties > 0:
                ties -= 1
                goes_left = True
            if goes_left:
                changed += place >= half
                moved[left] = order[low + place]
                left += 1
            else:
                moved[right] = order[low + place]
                right += 1
        order[low:high] = moved
        if changed * 200 < size:
            break
    return middle


@compiled
def halve_all(
    order: Array, low: int, high: int, strong: Array, counts: Array, logs: Array, rounds: int
) -> None:
    """Halves a range, its halves, and so on down to single cells."""
    waiting = [(low, high)]
    while len(waiting):
        low, high = waiting.pop()
        if high - low > CELL:
            middle = halve(order, low, high, strong, counts, logs, rounds)
            waiting.append((low, middle))
            waiting.append((middle, high))
