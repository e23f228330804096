"""How far the gap of a model is from c_IMA: whether "the ELBO is the likelihood minus c_IMA" describes it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from vaescope.diagnosis.budget import Budget
from vaescope.diagnosis.gap import LARGEST_EXACT, affordable_points
from vaescope.distributions import Normal
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.skipped import Skipped, could_not_differentiate
from vaescope.theory.expansion import NODES, Expansion
from vaescope.theory.validity import Validity, validity

T = TypeVar("T", Validity, Expansion)
TRIPLE = 8  # decodings that a third derivative costs
PASSES = 4  # contractions of third derivatives in all directions


def validity_applies(sample: EncodedSample, used: list[int]) -> bool:
    """Only a Gaussian likelihood of known precision has a near-deterministic limit; a few latents have a quadrature."""
    model = sample.model
    gaussian = model.likelihood == "gaussian" and model.precision is not None and model.log_likelihood is None
    return gaussian and 0 < len(used) <= LARGEST_EXACT


def measure_validity(sample: EncodedSample, used: list[int], budget: Budget) -> Validity:
    """`vs.theory.validity` at posterior means, of the latents in use; the others are held at the prior mean."""
    base, spread = sample.prior_mean.double().cpu(), sample.prior_variance.double().cpu()
    if bool((base != base[:1]).any()) or bool((spread != spread[:1]).any()):
        raise Skipped("it needs a prior that is the same for all samples")
    points = affordable_points(sample, TRIPLE * PASSES * len(used) ** 2 + NODES, budget)
    index, mean = torch.tensor(used), sample.random_subset(points).mean.double().cpu()
    precision = sample.model.precision
    assert precision is not None

    def decoder(v: torch.Tensor) -> torch.Tensor:
        return sample.decode(base[0].to(v).expand(len(v), -1).index_copy(1, index, v))

    try:
        prior = Normal(base[0, index], spread[0, index])
        with torch.enable_grad():  # without it, second derivatives of some activations are not implemented
            found = validity(decoder, mean[:, index], precision=float(precision), prior=prior)
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    return replace(_detached(found), expansion=_detached(found.expansion))


def _detached(values: T) -> T:
    """A dataclass without the graphs of its tensors."""
    tensors: dict[str, Any] = {
        f.name: v.detach() for f in fields(values) if isinstance(v := getattr(values, f.name), torch.Tensor)
    }
    return replace(values, **tensors)
