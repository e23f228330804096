"""One generator per purpose: a member's numbers depend on its seed alone, never on its company."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for this seed and purpose, independent of all others.

    >>> bool((torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "b"))).all())
    False
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
