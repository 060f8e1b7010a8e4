"""YAML of plain values: null, true and false, numbers, texts, lists and mappings of names."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from isthmus.errors import shown

_TAG = "tag:yaml.org,2002:"
_DEPTH = 50
_MOST_VALUES = 100_000
_LARGEST = 2**63 - 1  # what snapshots, numpy and torch take for a whole number


def load(text: str) -> Any:
    """The value that a text spells; a yaml.YAMLError where it spells none, or one too large.

    Aliases are counted as often as they are used, so that a few lines cannot stand for billions of
    values; none may stand inside of what it stands for.
    """
    return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader underneath)


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number and 2024-01-01 as a text, and refuses what no setting can be."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._values = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node, counted with all that stands in it."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._values
        self._depth += 1
        if self._depth > _DEPTH:
            raise ConstructorError(None, None, f"nested more than {_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and is_alias:
            if node not in self._sizes:
                raise ConstructorError(None, None, "a value that holds itself", mark)
            self._values += self._sizes[node]
        elif node is not None:
            self._values += 1
            self._sizes[node] = self._values - before
        if self._values > _MOST_VALUES:
            raise ConstructorError(None, None, f"more than {_MOST_VALUES:,} values", mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The next mapping, whose keys are names that stand there once."""
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if key.tag == f"{_TAG}merge":
                continue
            if key.tag != f"{_TAG}str":
                raise ConstructorError(
                    None, None, "a key that is no name; quote it if it is meant", key.start_mark
                )
            if key.value in names:
                raise ConstructorError(
                    None, None, f"the key {key.value!r} stands there twice", key.start_mark
                )
            names.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; what Python refuses is an error of the YAML."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):  # digits without end, !!bool maybe
            kind = node.tag.removeprefix(_TAG)
            what = f"{shown(node.value)} cannot be read as {kind}"
            raise ConstructorError(None, None, what, node.start_mark) from None
        if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            raise ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return value


_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _PLAIN
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII),
    list("-+0123456789."),
)
