"""Which precision the chip at hand computes natively."""

from __future__ import annotations

import torch


def native_bf16() -> bool:
    """Whether bf16 products are faster than float32 ones here; emulated, they are slower."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
