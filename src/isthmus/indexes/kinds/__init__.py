"""Kinds of indexes, one file each: what generic code needs to know about them."""

from __future__ import annotations

from isthmus.registry import Registry

kinds = Registry("isthmus.indexes.kinds", "kind of index")
