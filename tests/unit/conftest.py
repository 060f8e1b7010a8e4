"""Where Triton's kernels can be tested: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the interpreter, which is slow, to the night."""
    for item in items:
        if not ON_GPU and "triton" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def triton() -> Iterator[Any]:
    """Triton, ready for kernels of ours."""
    triton = pytest.importorskip(
        "triton", reason="Triton is not installed: its kernels are not tested here"
    )
    if ON_GPU:
        yield triton
        return
    from triton.runtime import interpreter

    if not isinstance(triton.jit(teach), interpreter.InterpretedFunction):
        pytest.skip("Triton was imported before its interpreter was asked for")
    with pytest.MonkeyPatch.context() as patch:
        teach(interpreter, patch)
        yield triton


def teach(interpreter: Any, patch: pytest.MonkeyPatch) -> None:
    """What the interpreter of Triton 3.6 lacks: numpy 2.4, and products of bf16."""
    prepare, multiply = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def with_numbers(tensor: Any, scope: Any) -> None:
        prepare(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def widened(handle: Any) -> Any:
        if handle.dtype != interpreter.tl.bfloat16:
            return handle
        data = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(data, interpreter.tl.float32)

    def with_bf16(self: Any, left: Any, right: Any, *more: Any) -> Any:
        return multiply(self, widened(left), widened(right), *more)

    patch.setattr(interpreter, "_patch_lang_tensor", with_numbers)
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", with_bf16)
