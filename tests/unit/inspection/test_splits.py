from __future__ import annotations

import pytest

from isthmus.inspection.splits import shared_queries


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"train": "abc", "test": "de", "dev": ""}, []),
        ({"all": "abcde", "train": "abc", "dev": "de"}, ["all is the union of train, dev"]),
        ({"train": "abc", "all": "abcd"}, ["all 3 queries of train are in all too"]),
        ({"train": "abc", "test": "abc"}, ["train and test have the same 3 queries"]),
        (
            {"all": "abcd", "train": "abc", "dev": "cd", "test": "ae"},
            [
                "all is the union of train, dev",
                "1 queries are in both all and test",
                "1 queries are in both train and dev",
                "1 queries are in both train and test",
            ],
        ),
    ],
)
def test_splits_that_share_queries(splits: dict[str, str], said: list[str]) -> None:
    assert shared_queries({name: set(queries) for name, queries in splits.items()}) == said
