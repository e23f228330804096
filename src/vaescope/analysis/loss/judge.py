"""Faults of a loss, from what was identified."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from torch import Tensor

from vaescope.analysis.loss.call import Words
from vaescope.analysis.loss.identify import close
from vaescope.analysis.loss.measure import Identified


@dataclass(frozen=True)
class Intrinsic:
    """Weights without reductions and without coefficients: 1 or 2 for a squared error, 1 for the KL."""

    reconstruction: float
    kl: float
    explicit: bool
    """Whether one of the terms has a weight in the code."""


def intrinsic(found: Identified) -> Intrinsic:
    w = {"reconstruction": found.reconstruction.weight, "kl": found.divergence.weight}
    bare = {}
    for term, weight in w.items():
        bare[term] = abs(weight) / found.reductions[term].divisor(found.space)
    explicit = False
    for coefficient in found.coefficients.values():
        if coefficient.effect in ("the KL", "the reconstruction", "both"):
            explicit |= coefficient.effect != "both" and coefficient.value != 1
            if coefficient.proportional:
                for term, name in (("kl", "the KL"), ("reconstruction", "the reconstruction")):
                    if coefficient.effect in (name, "both"):
                        bare[term] /= abs(coefficient.value)
    return Intrinsic(bare["reconstruction"], bare["kl"], explicit or not all(map(_natural, bare.values())))


def _natural(weight: float) -> bool:
    """Whether a weight is one that a formula has without a coefficient."""
    return any(close(weight, v) for v in (0.5, 1.0, 2.0))


def divided_axes(found: Identified, term: str, bare: float) -> tuple[int, ...]:
    """Axes of a sample over which a term is averaged; all of them if it is divided by n as a number, such as 784.

    Args:
        found: what was identified.
        term: reconstruction or kl.
        bare: its weight without reductions and coefficients.
    """
    axes = found.reductions[term].averaged_axes(found.space)
    by_number = found.size_is_written and not _natural(bare) and _natural(bare * found.space.sizes["n"])
    return tuple(k for k, size in enumerate(found.space.x.shape[1:]) if size > 1) if by_number and not axes else axes


def faults(found: Identified, y: Tensor | None) -> tuple[str, ...]:
    """The names of all faults.

    Args:
        found: what was identified.
        y: an output of the decoder, if there is one.
    """
    named = [*found.divergence.faults] if not found.divergence.detached else []
    known, kl = found.reconstruction, found.divergence
    if kl.detached:
        named.append("kl_detached")
    if known.detached:
        named.append("reconstruction_detached")
    if known.likelihood == "swapped":
        named.append("arguments_swapped")
    named += _reduction_faults(found)
    if kl.recognised and not kl.detached and kl.weight and not kl.faults:
        if kl.weight * known.weight < 0:
            named.append("kl_wrong_sign")
        bare = intrinsic(found)
        if close(bare.kl, 2.0) and not close(bare.reconstruction, 2.0):
            named.append("kl_missing_half")
    if ineffective(found):
        named.append("coefficient_without_effect")
    named += _output_faults(found, y)
    if found.noise is not None:
        if found.noise.kind == "not_normal":
            named.append("noise_not_normal")
        elif found.noise.kind == "normal" and found.noise.scale != "std":
            named.append("noise_not_std")
        if found.noise.shared:
            named.append("noise_shared")
        if found.noise.kind == "none":
            named.append("noise_absent")
    return tuple(dict.fromkeys(named))


def ineffective(found: Identified) -> tuple[str, ...]:
    """Coefficients that change nothing."""
    return tuple(
        name
        for name, c in found.coefficients.items()
        if c.effect == "nothing" and not re.fullmatch(Words.counter, name.lower())
    )


def _reduction_faults(found: Identified) -> list[str]:
    """Where the two terms are reduced differently."""
    r, k = found.reductions["reconstruction"], found.reductions["kl"]
    if not found.ratio or (found.fixes_scale and close(found.ratio, 1.0)):
        return []
    bare, named = intrinsic(found), []
    if r.batch is not None and k.batch is not None and r.batch != k.batch and len(found.space.x) > 1:
        alone = "reconstruction_averaged_over_batch" if r.batch < k.batch else "kl_averaged_over_batch"
        named += [alone] if _natural(bare.reconstruction) and _natural(bare.kl) else []
        named.append("depends_on_batch_size")
    averaged = divided_axes(found, "reconstruction", bare.reconstruction)
    divided = divided_axes(found, "kl", bare.kl)
    weights = (abs(found.reconstruction.weight), bare.reconstruction)
    undone = _natural(weights[0]) and (
        not _natural(weights[1]) or close(replace(r, batch=0, latents=0).divisor(found.space), 1.0)
    )
    if set(averaged) - set(divided) and not undone:
        named.append("reconstruction_averaged_over_pixels")
    if set(divided) - set(averaged):
        named.append("kl_divided_by_pixels")
    if k.latents == -1 and found.space.sizes["d"] > 1:
        named.append("kl_averaged_over_latents")
    return named


def _output_faults(found: Identified, y: Tensor | None) -> list[str]:
    known = found.reconstruction
    if known.output == "twice":
        return ["sigmoid_twice"]
    if y is None or known.output != "logit" or y.numel() < 8 or not math.isfinite(float(y.sum())):
        return []
    if not bool(((y >= 0) & (y <= 1)).all()):
        return []
    if known.likelihood in ("bernoulli", "gaussian", "laplace"):
        return ["sigmoid_twice"]
    total = y.sum(known.class_axis)
    return ["softmax_twice"] if bool((total - 1).abs().max() < 1e-4) else []
