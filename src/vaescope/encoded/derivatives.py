"""The decoder's Jacobian at the codes of a sample, in one pass over the latents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.encoded.sample import FIRST, EncodedSample
from vaescope.errors import InputError
from vaescope.theory.derivatives import (
    CHUNK_ELEMENTS,
    central_differences,
    check_decoder,
    check_latents,
    jacobian_column,
)

CODES = 128  # at which the decoder is differentiated, at most
ENTRIES = 2**26  # of the columns that are kept
FEWEST_CODES = 4  # with columns, even if they have more entries
DIFFERENCE_CODES = 16  # at which it is differentiated by differences, at most
DIFFERENCE_LATENTS = 64  # with more latents in use, derivatives by differences take too long
DIFFERENCE_STEP = 0.01  # in standard deviations of the prior


@dataclass(frozen=True, eq=False)
class DecoderDerivatives:
    """Derivatives of the decoder at the posterior means of `sample`."""

    sample: EncodedSample
    latents: list[int]
    """Latents whose columns are kept."""
    columns: Float[Tensor, "Q n u"]
    """Columns of the Jacobian of these latents, in float64, at the first Q samples."""
    norms: Float[Tensor, "P d"] | None
    """‖J_k‖ of every latent at every sample; None if derivatives are by differences."""
    failure: str = ""
    """Why forward-mode differentiation failed, if derivatives are by differences."""

    @property
    def column_norm(self) -> Float[Tensor, " d"]:
        """Root mean square of ‖J_k‖ over samples."""
        if self.norms is None:
            raise InputError(self.failure)
        return self.norms.double().square().mean(0).sqrt()


class _ForwardMode(NamedTuple):
    columns: Tensor
    norms: Tensor


def differentiate(sample: EncodedSample, latents: list[int]) -> DecoderDerivatives:
    """Differentiate the decoder at a random subset of the sample's codes, once.

    Decoders that do not support forward-mode differentiation, or detach their output, are differentiated by central
    differences: fewer codes, and the given latents only.

    Args:
        sample: samples with a decoder.
        latents: latents whose columns are kept, for as many codes as fit in memory.
    """
    codes = sample.random_subset(CODES)
    try:
        found = _forward_mode(codes, latents)
        return DecoderDerivatives(codes, latents, found.columns, found.norms)
    except (InputError, RuntimeError, NotImplementedError) as error:
        if len(latents) > DIFFERENCE_LATENTS or not latents:
            raise
        failure = str(error).splitlines()[0]
    codes = codes.random_subset(DIFFERENCE_CODES)
    return DecoderDerivatives(codes, latents, _by_differences(codes, latents), None, failure)


@torch.no_grad()  # forward mode still works; without it, weights that require gradients would keep every column
def _forward_mode(codes: EncodedSample, latents: list[int]) -> _ForwardMode:
    z = codes.mean
    check_latents(z)
    outputs = check_decoder(lambda z: codes.decode(z, FIRST), z)
    kept = min(len(z), max(FEWEST_CODES, ENTRIES // (outputs * max(1, len(latents)))))
    columns = torch.zeros(kept, outputs, len(latents), dtype=torch.float64)
    norms = torch.zeros_like(z)
    step = max(1, CHUNK_ELEMENTS // outputs)
    chunks = [slice(start, min(start + step, len(z))) for start in range(0, len(z), step)]
    for k in range(z.shape[1]):
        column = torch.cat([jacobian_column(partial(codes.decode, rows=rows), z[rows], k) for rows in chunks])
        norms[:, k] = column.norm(dim=1)
        if k in latents:
            columns[:, :, latents.index(k)] = column[:kept].double()
    return _ForwardMode(columns, norms)


@torch.no_grad()
def _by_differences(codes: EncodedSample, latents: list[int]) -> Float[Tensor, "Q n u"]:
    index, base = torch.tensor(latents), codes.mean
    step = DIFFERENCE_STEP * codes.prior_variance[:, latents].mean(0).sqrt()

    def decode(v: Float[Tensor, "Q u"]) -> Float[Tensor, "Q n"]:
        return codes.decode(base.index_copy(1, index, v))

    return central_differences(decode, base[:, latents], step).double()
