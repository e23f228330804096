"""How many members fit into memory side by side."""

from __future__ import annotations

import os

from vaescope.fitting import Plan
from vaescope.training.batches import MAX_GATHERED, STEPS_PER_DRAW

COPIES = 7  # of a member's weights: themselves, gradients, two moments, the best ones, and two on their way
ACTIVATIONS = 6  # of a batch through both networks, forth and back
BYTES = 4
SHARE = 0.5  # of what is free: an estimate is no promise


def member_bytes(plan: Plan) -> int:
    """Memory of one member of a stack while it trains, roughly."""
    weights = sum(value.numel() for value in plan.vae.init([0]).values())
    batch = min(plan.settings.batch_size, len(plan.data))
    width = plan.data.x.shape[1]
    passed = (
        ACTIVATIONS * batch * (2 * width + 2 * sum(getattr(plan.vae.networks, "hidden", ())) + 4 * plan.vae.latent_dim)
    )
    gathered = STEPS_PER_DRAW * batch * (width + plan.vae.latent_dim)
    validation = len(plan.data) * plan.vae.latent_dim // 5
    return BYTES * (COPIES * weights + passed + min(gathered, MAX_GATHERED) + validation + len(plan.data))


def free_bytes() -> int:
    """Memory that is free, or could be."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return min(int(lines["MemAvailable"].split()[0]) * 1024, _allowed())
    except (OSError, KeyError, ValueError):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2) if hasattr(os, "sysconf") else 2**31


def _allowed() -> int:
    """What a container or a batch system leaves to this process."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as most:
            limit = int(most.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as now:
            return max(0, limit - int(now.read()))
    except (OSError, ValueError):
        return 2**62


def largest_stack(plan: Plan, memory: int) -> int:
    """Members that fit, one at least."""
    return max(1, int(SHARE * memory) // member_bytes(plan))
