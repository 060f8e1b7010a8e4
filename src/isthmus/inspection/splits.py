"""Which splits of a collection share queries, so that training on one gives another away."""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import combinations


def shared_queries(splits: Mapping[str, Set[str]]) -> list[str]:
    """A sentence per split that is a union of others, and per other pair that shares queries."""
    found: list[str] = []
    explained: set[frozenset[str]] = set()
    for name, queries in splits.items():
        parts = [other for other, some in splits.items() if some and some < queries]
        if len(parts) > 1 and set[str]().union(*(splits[part] for part in parts)) == queries:
            found.append(f"{name} is the union of {', '.join(parts)}")
            explained |= {frozenset((name, part)) for part in parts}
    for one, other in combinations(splits, 2):
        if frozenset((one, other)) not in explained:
            found += _shared(one, splits[one], other, splits[other])
    return found


def _shared(one: str, some: Set[str], other: str, others: Set[str]) -> list[str]:
    both = len(some & others)
    if not both:
        return []
    if some == others:
        return [f"{one} and {other} have the same {both:,} queries"]
    for inner, outer, queries in ((one, other, some), (other, one, others)):
        if both == len(queries):
            return [f"all {both:,} queries of {inner} are in {outer} too"]
    return [f"{both:,} queries are in both {one} and {other}"]
