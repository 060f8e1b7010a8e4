"""The loops of the inverted index, compiled.

A block is small enough for the scores of its documents to stay in the processor's nearest cache.
It is searched so: its short lists are added to the scores; a cell's best score so far, plus the
bounds of the long lists, says what its documents can reach at most; long lists, those of the
strongest terms first, are added to the cells where that is enough to be among the best, in stages
after which fewer are left. Whatever reaches the threshold is scored in full, so nothing is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.indexes.jit import compiled, prefetch
from isthmus.indexes.sparse.cells import add_cell, highest
from isthmus.indexes.sparse.lists import (
    CELL,
    Allowed,
    Array,
    Block,
    Lists,
    Long,
    Plan,
    Postings,
    Shape,
    Short,
)

_BYTE = 255
_BUCKETS = 256
_PROMISING = 4  # blocks that are searched first
_STAGES = 2  # in which long lists are added: after each, cells are given up
_LINE = 16  # masks that come with one access to memory


@compiled
def plan(terms: Array, weights: Array, lists: Lists, shape: Shape) -> Plan:
    """The plan of a query.

    Totals are added in the order of terms, as scores are: rounded alike, a sum of larger numbers
    never comes out below a sum of smaller ones.
    """
    blocks, long_from = -(-shape.documents // shape.block), shape.long_from
    short_blocks, long_blocks = np.zeros(blocks + 1, np.int64), np.zeros(blocks + 1, np.int64)
    totals = np.zeros(blocks, weights.dtype)
    for i in range(len(terms)):
        for number in range(lists.term_lists[terms[i]], lists.term_lists[terms[i] + 1]):
            block = lists.list_blocks[number]
            totals[block] += weights[i] * lists.list_bounds[number]
            if lists.list_lengths[number] < long_from:
                short_blocks[block + 1] += 1
            else:
                long_blocks[block + 1] += 1
    short_blocks[:] = np.cumsum(short_blocks)
    long_blocks[:] = np.cumsum(long_blocks)
    shorts, longs = short_blocks[-1], long_blocks[-1]
    starts, stops = np.empty(shorts, np.int64), np.empty(shorts, np.int64)
    factors = np.empty(shorts, weights.dtype)
    records, firsts = np.empty(longs, np.int64), np.empty(longs, np.int64)
    strengths, units = np.empty(longs, weights.dtype), np.empty(longs, weights.dtype)
    short_ends, long_ends = short_blocks.copy(), long_blocks.copy()
    for i in range(len(terms)):
        term = terms[i]
        start, record = lists.term_postings[term], lists.term_records[term]
        first = lists.term_masked[term]
        for number in range(lists.term_lists[term], lists.term_lists[term + 1]):
            block, length = lists.list_blocks[number], lists.list_lengths[number]
            if length < long_from:
                place = short_ends[block]
                short_ends[block] += 1
                starts[place], stops[place], factors[place] = start, start + length, weights[i]
                start += length
            else:
                place = long_ends[block]
                long_ends[block] += 1
                records[place], firsts[place], strengths[place] = record, first, weights[i]
                units[place] = weights[i] * step(lists.list_bounds[number])
                record += 1
                first += length
    short = Short(short_blocks, starts, stops, factors)
    return Plan(short, Long(long_blocks, records, firsts, strengths, units), totals)


@compiled
def in_order(totals: Array) -> Array:
    """All blocks: the most promising, which raise the threshold; the others, quicker in turn."""
    order, left = np.arange(len(totals)), totals.copy()
    count = min(_PROMISING, len(totals))
    for turn in range(count):
        order[turn] = np.argmax(left)
        left[order[turn]] = -1
    for block in range(len(totals)):
        if left[block] >= 0:
            order[count] = block
            count += 1
    return order


@compiled
def search(
    terms: Array,
    weights: Array,
    lists: Lists,
    postings: Postings,
    shape: Shape,
    allowed: Allowed,
    floors: Array,
    depth: int,
) -> tuple[Array, Array]:
    """What `scan` finds in all blocks. One call: each takes as long as scoring a small block."""
    query = plan(terms, weights, lists, shape)
    order = in_order(query.totals)
    return scan(query, order, postings, shape, allowed, floors, 0, depth)


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
    rests = np.zeros((_STAGES + 1, shape.block // CELL), query.totals.dtype)
    all_cells = np.arange(rests.shape[1])
    cells = np.empty_like(all_cells)
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
        _add_short(query.short, block, postings, scores)
        _bound(query.long, block, postings.cell_bounds, rests)
        promising = _open(all_cells, rests[0], scores, threshold, cells)
        for stage in range(_STAGES):
            _add_long(query.long, block, stage, postings, cells[:promising], scores)
            promising = _open(cells[:promising], rests[stage + 1], scores, threshold, cells)
        for cell in cells[:promising]:
            high = max(high, highest(scores, cell * CELL))
            for member in range(cell * CELL, cell * CELL + CELL):
                score, position = scores[member], block * shape.block + member
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
    """Asks for what is read of a block whatever the threshold, which lies far apart."""
    offsets, weights, cell_bounds = postings.offsets, postings.weights, postings.cell_bounds
    starts, stops, records = query.short.starts, query.short.stops, query.long.records
    for entry in range(query.short.blocks[block], query.short.blocks[block + 1]):
        for place in range(starts[entry], stops[entry], 32):
            prefetch(offsets, place)
        for place in range(starts[entry], stops[entry], 64):
            prefetch(weights, place)
    for entry in range(query.long.blocks[block], query.long.blocks[block + 1]):
        for cell in range(0, cell_bounds.shape[1], 64):
            prefetch(cell_bounds, records[entry] * cell_bounds.shape[1] + cell)


@compiled
def _add_short(short: Short, block: int, postings: Postings, scores: Array) -> None:
    """Scores of a block as far as its short lists go."""
    # Taken out of their tuples once: every access through a tuple counts references.
    offsets, weights = postings.offsets, postings.weights
    starts, stops, factors = short.starts, short.stops, short.factors
    scores[:] = 0
    for entry in range(short.blocks[block], short.blocks[block + 1]):
        factor = factors[entry]
        # Unsigned places cannot be negative, which numba would check for every posting.
        for place in range(np.uint64(starts[entry]), np.uint64(stops[entry])):
            scores[offsets[place]] += factor * weights[place]


@compiled
def _stage(long: Long, block: int, stage: int) -> tuple[int, int]:
    """The long lists of a block that a stage adds."""
    first, count = long.blocks[block], long.blocks[block + 1] - long.blocks[block]
    return first + stage * count // _STAGES, first + (stage + 1) * count // _STAGES


@compiled
def _bound(long: Long, block: int, cell_bounds: Array, rests: Array) -> None:
    """What the long lists, from each stage on, add to the documents of each cell at most."""
    records, units = long.records, long.units
    for stage in range(_STAGES - 1, -1, -1):
        rest = rests[stage]
        rest[:] = rests[stage + 1]
        first, end = _stage(long, block, stage)
        for entry in range(first, end):
            unit, row = units[entry], cell_bounds[records[entry]]
            for cell in range(len(rest)):
                rest[cell] += unit * row[cell]


@compiled
def _open(cells: Array, rest: Array, scores: Array, threshold: Any, found: Array) -> int:
    """How many of the cells can still reach the threshold; they come first in `found`."""
    count = 0
    for cell in cells:
        # Written whether it counts or not: a jump taken at random costs more.
        found[count] = cell
        count += highest(scores, cell * CELL) + rest[cell] >= threshold
    return count


@compiled
def _add_long(
    long: Long, block: int, stage: int, postings: Postings, cells: Array, scores: Array
) -> None:
    """Adds the long lists of a stage to the scores of some cells."""
    cell_masks, cell_starts = postings.cell_masks, postings.cell_starts
    weights, records, starts = postings.masked_weights, long.records, long.starts
    width, last = cell_masks.shape[1], -1
    first_entry, end = _stage(long, block, stage)
    for cell in cells:
        if cell // _LINE != last:
            last = cell // _LINE
            for entry in range(first_entry, end):
                prefetch(cell_masks, records[entry] * width + cell)
                prefetch(cell_starts, records[entry] * width + cell)
    for entry in range(first_entry, end):
        masks, begins = cell_masks[records[entry]], cell_starts[records[entry]]
        start, factor = starts[entry], long.factors[entry]
        for cell in cells:
            prefetch(weights, start + begins[cell])
        for cell in cells:
            add_cell(scores, cell * CELL, weights, start + begins[cell], masks[cell], factor)


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
    levels: int,
    stored: Array,
) -> Block:
    """The block of these rows. `stored` is an empty array of the type that weights are stored in.

    `largest` is the highest weight that fits; a term has so many levels of lists, each with what
    the one before leaves of a weight.
    """
    lengths = np.zeros(vocabulary * levels, np.int64)
    bounds = np.zeros(len(lengths), weights.dtype)
    for row in rows:
        for place in range(row_starts[row], row_starts[row + 1]):
            number, rest = terms[place] * levels, weights[place]
            while rest > 0:
                lengths[number] += 1
                bounds[number] = max(bounds[number], min(rest, largest))
                rest -= min(rest, largest)
                number += 1
    used = np.flatnonzero(lengths)
    is_long = lengths >= shape.long_from
    ends = np.cumsum(np.where(is_long, 0, lengths))
    masked_ends = np.cumsum(np.where(is_long, lengths, 0))
    records: Array = np.cumsum(is_long) - is_long
    offsets, values = np.empty(ends[-1], np.uint16), np.empty(ends[-1], stored.dtype)
    masked = np.empty(masked_ends[-1], stored.dtype)
    ends -= np.where(is_long, 0, lengths)
    masked_ends -= np.where(is_long, lengths, 0)
    size = (is_long.sum(), shape.block // CELL)
    tops = np.zeros(size, weights.dtype)
    masks, counts = np.zeros(size, np.uint32), np.zeros(size, np.uint16)
    for position in range(len(rows)):
        cell, member = divmod(position, CELL)
        for place in range(row_starts[rows[position]], row_starts[rows[position] + 1]):
            number, rest = terms[place] * levels, weights[place]
            while rest > 0:
                weight = min(rest, largest)
                if is_long[number]:
                    record = records[number]
                    tops[record, cell] = max(tops[record, cell], weight)
                    masks[record, cell] |= np.uint32(1) << np.uint32(member)
                    counts[record, cell] += 1
                    masked[masked_ends[number]] = weight
                    masked_ends[number] += 1
                else:
                    offsets[ends[number]] = position
                    values[ends[number]] = weight
                    ends[number] += 1
                rest -= weight
                number += 1
    cell_bounds = np.empty(size, np.uint8)
    for number in used[is_long[used]]:
        record, unit, start = records[number], step(bounds[number]), 0
        for cell in range(size[1]):
            cell_bounds[record, cell] = np.ceil(tops[record, cell] / unit)
            count = counts[record, cell]
            counts[record, cell] = start
            start += count
    return Block(
        used // levels,
        bounds[used],
        lengths[used].astype(np.uint16),
        offsets,
        values,
        cell_bounds,
        masks,
        counts,
        masked,
    )


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
def nearest(
    strong: Array, lists: Array, groups: Array, worth: Array, count: int, found: Array
) -> None:
    """Fills in, per row, which of so many groups shares the terms of most worth with it.

    `groups` are those that hold a term, from where to where is in `lists`; the last term is none.
    """
    none = len(worth) - 1
    shared = np.empty(-(-count // CELL) * CELL, worth.dtype)
    for row in range(len(strong)):
        shared[:] = 0
        for term in strong[row]:
            if term == none:
                break
            for place in range(np.uint64(lists[term]), np.uint64(lists[term + 1])):
                shared[np.uint32(groups[place])] += worth[term]
        most = shared[0]
        found[row] = 0
        for first in range(0, len(shared), CELL):
            best = highest(shared, first)
            if best > most:
                most = best
                found[row] = first
        while shared[found[row]] < most:
            found[row] += 1


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
