"""Layers of a hierarchical VAE: the information that each carries."""

from __future__ import annotations

import numpy as np

from vaescope.regime import Regime


def layer_rows(regime: Regime, groups: tuple[tuple[str, int], ...]) -> list[dict[str, object]]:
    """A row per layer, in the order of the model: its latents, those in use, and its KL.

    Args:
        regime: of all latents.
        groups: names and sizes of the layers.
    """
    ends = np.cumsum([size for _, size in groups])
    used, rows = set(regime.used), []
    for (name, size), end in zip(groups, ends, strict=True):
        latents = range(int(end) - size, int(end))
        kl = float(np.sum(regime.kl[latents.start : latents.stop]))
        share = kl / max(float(np.sum(regime.kl)), 1e-300)
        rows.append(
            {
                "layer": name,
                "latents": size,
                "in use": sum(k in used for k in latents),
                "KL": kl,
                "KL per latent": kl / size,
                "share of KL": share,
            }
        )
    return rows
