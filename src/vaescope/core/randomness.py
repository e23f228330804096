"""Independent random streams: one generator per seed and purpose, so results never depend on the order of calls."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator that depends only on the seed and the purpose.

    >>> bool((torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "b"))).all())
    False
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextlib.contextmanager
def seeded(source: str | torch.Generator) -> Iterator[None]:
    """PyTorch's own generator, which users' functions draw from, seeded inside the block and restored afterwards.

    Args:
        source: the purpose of the draws, or a generator that gives the seed.
    """
    given = generator(0, source) if isinstance(source, str) else source
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=given)))
        yield
