"""The terms of the ELBO: log p(x|z) of a model as one function."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vaescope.adapters.networks import call_with_tokens
from vaescope.distributions.likelihoods import log_likelihood
from vaescope.encoded import EncodedSample
from vaescope.protocol import LatentModel, LogLikelihood
from vaescope.skipped import Skipped


def likelihood_is_known(model: LatentModel) -> bool:
    """Whether log p(x|z) can be computed."""
    gaussian = model.likelihood == "gaussian" and model.precision is not None
    return gaussian or model.likelihood == "bernoulli" or model.log_likelihood is not None


def sample_log_likelihood(sample: EncodedSample, rows: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """(x, z) -> log p(x|z) of each row; `rows` are the samples that x and z belong to, by default all."""
    model = sample.model
    if model.log_likelihood is not None:
        return _user_log_likelihood(sample, model.log_likelihood, rows)
    assert model.likelihood is not None
    kind, precision = model.likelihood, model.precision
    return lambda x, z: log_likelihood(kind, x, sample.decode(z, rows), precision)


def _user_log_likelihood(sample: EncodedSample, function: LogLikelihood, rows: Tensor | None) -> LogLikelihood:
    """A user's log-likelihood, called with the floating-point type of its networks, or with tokens as integers."""
    dtype = sample.mean.dtype
    given = [] if not sample.model.conditional or sample.auxiliary is None else [sample.auxiliary]
    given = given if rows is None else [values[rows] for values in given]

    def call(x: Tensor, z: Tensor) -> Tensor:
        found = call_with_tokens("log_likelihood", function, x.to(dtype), z.to(dtype), *given)
        if found.shape != (len(z),):
            raise Skipped(f"log_likelihood must return a number per row, got {tuple(found.shape)} for {len(z)} rows")
        return found.to(z)

    return call
