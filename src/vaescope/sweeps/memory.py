"""How many members of a stack fit into memory."""

from __future__ import annotations

import os

from vaescope.fitting import FitJob
from vaescope.models import MLPNetworks
from vaescope.training.batches import MAX_GATHERED, STEPS_PER_DRAW

WEIGHT_COPIES = 7  # weights, gradients, two moments, the best weights, and two temporary copies
ACTIVATION_COPIES = 6  # activations of a batch in both networks, forward and backward
FLOAT_BYTES = 4
USED_SHARE = 0.5  # of the free memory, because sizes are estimates


def member_bytes(job: FitJob) -> int:
    """Memory of one member while it trains, roughly."""
    weights = sum(value.numel() for value in job.model.init([0]).values())
    batch = min(job.settings.training.batch_size, len(job.data))
    width, latents = job.data.columns, job.model.latent_dim
    hidden = job.model.networks.hidden if isinstance(job.model.networks, MLPNetworks) else ()
    activations = ACTIVATION_COPIES * batch * (2 * width + 2 * sum(hidden) + 4 * latents)
    gathered = min(STEPS_PER_DRAW * batch * (width + latents), MAX_GATHERED)
    validation = len(job.data) * latents // 5
    return FLOAT_BYTES * (WEIGHT_COPIES * weights + activations + gathered + validation + len(job.data))


def free_bytes() -> int:
    """Memory that is available to this process."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return min(int(lines["MemAvailable"].split()[0]) * 1024, _container_limit())
    except (OSError, KeyError, ValueError):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2) if hasattr(os, "sysconf") else 2**31


def _container_limit() -> int:
    """Memory that a container or a batch system leaves to this process."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            return max(0, limit - int(file.read()))
    except (OSError, ValueError):
        return 2**62


def largest_stack(job: FitJob, memory: int) -> int:
    """Members that fit into this memory, at least one."""
    return max(1, int(USED_SHARE * memory) // member_bytes(job))
