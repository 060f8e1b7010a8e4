"""Training steps per second on CPU with spinning against sleeping threads, alone and disturbed.

    python benchmarks/cpu_waiting.py

Each figure comes from a fresh process, because OpenMP reads OMP_WAIT_POLICY once. "Disturbed"
means that one other process keeps a core busy.
"""

from __future__ import annotations

import os
import subprocess
import sys

SECONDS = 10
STEPS = f"""
import time, torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
states = torch.randn(32, 48, 384)
def step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(states)
    out.float().pow(2).mean().backward()
step()
began, count = time.monotonic(), 0
while time.monotonic() - began < {SECONDS}:
    step()
    count += 1
print(count / (time.monotonic() - began))
"""
BUSY = "while True: pass"


def rate(policy: str | None) -> float:
    """Steps per second under one waiting policy."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if policy is not None:
        environment["OMP_WAIT_POLICY"] = policy
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Prints both rates and their ratio, alone and beside a busy process."""
    for situation in ("alone", "disturbed"):
        other = None
        if situation == "disturbed":
            other = subprocess.Popen([sys.executable, "-c", BUSY])  # noqa: S603
        try:
            spinning, sleeping = rate(None), rate("passive")
        finally:
            if other is not None:
                other.kill()
        print(
            f"{situation}: spinning {spinning:.2f} steps/s, sleeping {sleeping:.2f} steps/s, "
            f"ratio {sleeping / spinning:.2f}"
        )


if __name__ == "__main__":
    main()
