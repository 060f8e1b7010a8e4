"""Operations on a whole cell at a time, with the processor's wide instructions.

The documents of a cell that hold a term are the bits of a mask, their weights lie one after the
other. Processors that can spread such weights over the places of the bits do it at once; for others
there is a loop over the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from isthmus.indexes.jit import compiled
from isthmus.indexes.sparse.lists import CELL, Array

_WORD = ir.IntType(32)
_BITS = ir.VectorType(ir.IntType(1), CELL)


def _highest(_: Any, scores: Any, first: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        vector = _vector(context, scores)
        kind = "smax" if isinstance(scores.dtype, types.Integer) else "fmax"
        name = f"llvm.vector.reduce.{kind}.v{CELL}{_short(vector.element)}"
        reduce = _function(builder, name, vector.element, [vector])
        return builder.call(reduce, [_load(context, builder, scores, arguments, vector)])

    return scores.dtype(scores, types.intp), generate


def _spread(_: Any, scores: Any, first: Any, weights: Any, place: Any, mask: Any, by: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        wide, narrow = _vector(context, scores), _vector(context, weights)
        source = _item(context, builder, weights, arguments[2], arguments[3])
        name = f"llvm.masked.expandload.v{CELL}{_short(narrow.element)}"
        expand = _function(builder, name, narrow, [source.type, _BITS, narrow])
        bits = builder.bitcast(arguments[4], _BITS)
        spread = builder.call(expand, [source, bits, ir.Constant(narrow, None)])
        nothing = ir.Constant(wide, ir.Undefined)
        factor = builder.insert_element(nothing, arguments[5], _WORD(0))
        everywhere = ir.Constant(ir.VectorType(_WORD, CELL), [0] * CELL)
        factor = builder.shuffle_vector(factor, nothing, everywhere)
        before = _load(context, builder, scores, arguments, wide)
        if isinstance(scores.dtype, types.Integer):
            after = builder.add(before, builder.mul(builder.zext(spread, wide), factor))
        else:
            after = builder.fadd(before, builder.fmul(builder.fpext(spread, wide), factor))
        builder.store(after, _place(context, builder, scores, arguments, wide), align=4)
        return context.get_dummy_value()

    dtype = scores.dtype
    return types.void(scores, types.intp, weights, types.intp, types.uint32, dtype), generate


def _lowest_bit(_: Any, mask: Any) -> Any:
    def generate(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(0)), ir.IntType(64))

    return types.intp(types.uint32), generate


highest = cast(Callable[[Array, int], Any], intrinsic(_highest))
"""The highest of the scores of one cell, the first of which is named."""
_lowest = cast(Callable[[Any], int], intrinsic(_lowest_bit))
_at_once = cast(Callable[..., None], intrinsic(_spread))


@compiled
def add_at_once(
    scores: Array, first: int, weights: Array, place: int, mask: Any, factor: Any
) -> None:
    """Adds the weights from `place` on, times a factor, to the scores of the mask's documents."""
    _at_once(scores, first, weights, place, mask, factor)


@compiled
def add_one_by_one(
    scores: Array, first: int, weights: Array, place: int, mask: Any, factor: Any
) -> None:
    """Adds weights to the scores of the mask's documents, one by one, on any processor."""
    while mask:
        scores[first + _lowest(mask)] += factor * weights[place]
        mask &= mask - np.uint32(1)
        place += 1


def _spreads() -> bool:
    """Whether the processor that is compiled for can spread bytes."""
    features = numba.config.CPU_FEATURES  # type: ignore[attr-defined]
    if features is not None:
        return "+avx512vbmi2" in features
    return bool(binding.get_host_cpu_features().get("avx512vbmi2"))


add_cell = add_at_once if _spreads() else add_one_by_one


def _vector(context: Any, array: Any) -> Any:
    return ir.VectorType(context.get_value_type(array.dtype), CELL)


def _item(context: Any, builder: Any, array: Any, value: Any, place: Any) -> Any:
    return builder.gep(context.make_array(array)(context, builder, value).data, [place])


def _place(context: Any, builder: Any, array: Any, arguments: Any, vector: Any) -> Any:
    item = _item(context, builder, array, arguments[0], arguments[1])
    return builder.bitcast(item, vector.as_pointer())


def _load(context: Any, builder: Any, array: Any, arguments: Any, vector: Any) -> Any:
    return builder.load(_place(context, builder, array, arguments, vector), align=4)


def _function(builder: Any, name: str, result: Any, parameters: list[Any]) -> Any:
    kind = ir.FunctionType(result, parameters)
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def _short(element: Any) -> str:
    names = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}
    return names.get(element) or f"i{element.width}"
