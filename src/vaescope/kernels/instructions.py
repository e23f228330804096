"""What the processor can do."""

from __future__ import annotations

from typing import Literal

import torch

Instructions = Literal["avx512_bf16", "amx_tile"]


def cpu_supports(instructions: Instructions) -> bool:
    """Whether this processor has these instructions; False where this version of PyTorch cannot tell.

    Args:
        instructions: their name in PyTorch. Both are for bfloat16; AMX multiplies whole matrices.
    """
    return bool(getattr(torch.cpu, f"_is_{instructions}_supported", lambda: False)())
