"""One plain sentence per latent."""

from __future__ import annotations

import numpy as np

from vaescope.identification.planes import TOLERANCE, PlaneCosts
from vaescope.identification.seeds import SeedAgreement
from vaescope.identification.verdict import SAME_SUBSPACE, Verdict

EQUAL_NORMS = 0.9  # ratio of column norms that counts as equal
ROTATED = 10.0  # degrees away from the best axes that are worth a word


def sentence(
    latent: int,
    verdict: Verdict,
    planes: PlaneCosts | None,
    agreement: SeedAgreement | None,
    tolerance: float = TOLERANCE,
) -> str:
    """What may be said of a latent, and why."""
    if latent not in verdict.latents:
        return f"Latent {latent} is not in use."
    index = verdict.latents.index(latent)
    kind = verdict.kind[index]
    reasons = [_rotation(index, planes, tolerance), _seeds(index, agreement)]
    reason = "; ".join(r for r in reasons if r)
    if kind == "axis":
        return f"Latent {latent} can be read on its own" + (f": {reason}." if reason else ".")
    if kind == "none":
        return f"Do not interpret latent {latent}: {reason}."
    group = next((g for g in verdict.groups if latent in g), [latent])
    together = f"Latents {_listed(group)} form a subspace: do not read them one by one"
    alone = f"Do not read latent {latent} on its own"
    return f"{together if len(group) > 1 else alone}. Latent {latent}: {reason}."


def _rotation(index: int, planes: PlaneCosts | None, tolerance: float) -> str:
    if planes is None:
        return ""
    if len(planes.latents) < 2:
        return "there is no other latent to rotate it into"
    barrier = np.where(np.arange(len(planes.latents)) == index, np.inf, planes.barrier[index])
    weakest = int(barrier.argmin())
    other, cost = planes.latents[weakest], float(barrier[weakest])
    error = planes.stderr[index, weakest]
    amount = f"{cost:.2g}" + (f" ± {2 * error:.1g}" if error > 0 else "") + " nats per sample"
    if cost <= tolerance:
        equal = planes.norm_ratio[index, weakest] >= EQUAL_NORMS
        why = ", as their columns have the same length" if equal else ""
        return f"it can be rotated into latent {other} at no cost ({amount}){why}"
    angles = np.where(np.arange(len(planes.latents)) == index, 0.0, planes.angle[index])
    most = int(np.abs(angles).argmax())
    if abs(angles[most]) > ROTATED:
        turn = f"{abs(angles[most]):.0f}° into latent {planes.latents[most]}"
        return f"the ELBO would gain {planes.gain[index, most]:.2g} nats per sample by rotating it {turn}"
    return f"rotating it costs {amount} or more (least into latent {other})"


def _seeds(index: int, agreement: SeedAgreement | None) -> str:
    if agreement is None:
        return ""
    low, high = agreement.interval[:, index]
    count = len(agreement.axis)
    match = f"{count} other model{'s' * (count > 1)} agree{'s' * (count == 1)} with a rank correlation of"
    found = f"{match} {agreement.axis_median[index]:.2f} ({low:.2f} to {high:.2f})"
    shared = agreement.subspace_median[index]
    kept = "is" if shared >= SAME_SUBSPACE else "is only"
    return f"{found}, and {shared:.0%} of it {kept} a linear function of their latents"


def _listed(latents: list[int]) -> str:
    ordered = [str(k) for k in sorted(latents)]
    return f"{', '.join(ordered[:-1])} and {ordered[-1]}"
