"""The terms of the ELBO: log p(x|z) of a model as one function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vaescope.adapters.networks import call_user_function
from vaescope.diagnosis.skipped import Skipped
from vaescope.distributions.likelihoods import log_likelihood
from vaescope.encoded import EncodedSample
from vaescope.protocol import LogLikelihood


def sample_log_likelihood(sample: EncodedSample) -> Callable[[Tensor, Tensor], Tensor]:
    """(x, z) -> log p(x|z) of each row."""
    model = sample.model
    if model.log_likelihood is not None:
        return _user_log_likelihood(model.log_likelihood, sample.mean.dtype)
    assert model.likelihood is not None
    kind, precision = model.likelihood, model.precision
    return lambda x, z: log_likelihood(kind, x, sample.decode(z), precision)


def _user_log_likelihood(function: LogLikelihood, dtype: torch.dtype) -> LogLikelihood:
    """A user's log-likelihood, called with the floating-point type of its networks."""

    def call(x: Tensor, z: Tensor) -> Tensor:
        found = call_user_function("log_likelihood", function, x.to(dtype), z.to(dtype))
        if found.shape != (len(z),):
            raise Skipped(f"log_likelihood must return a number per row, got {tuple(found.shape)} for {len(z)} rows")
        return found.to(z)

    return call
