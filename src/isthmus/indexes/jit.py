"""How kernels are compiled: once per machine, without Python's lock, kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from isthmus.config.cache import cache_folder

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The function as machine code, made at its first call or read from an earlier process."""
    return cast(F, numba.njit(nogil=True, cache=_keeps())(function))


def _keeps() -> bool:
    """Whether machine code can be kept: beside the sources, or else in isthmus's own cache."""
    if os.environ.get("NUMBA_CACHE_DIR") or os.access(Path(__file__).parent, os.W_OK):
        return True
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False  # compiled anew by every process, which takes seconds but works
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return os.access(folder, os.W_OK)


def _prefetch(_: Any, array: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(array)(context, builder, arguments[0]).data
        size = context.get_constant(types.intp, context.get_abi_sizeof(data.type.pointee))
        item = builder.gep(builder.bitcast(data, byte), [builder.mul(arguments[1], size)])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # To read, to be kept in the second cache (the first is taken by scores), data.
        builder.call(function, [item, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch = cast(Callable[[Any, int], None], intrinsic(_prefetch))
"""Asks for an item of an array before it is needed, and does not wait for it."""
