"""Whether the near-deterministic picture holds: distances in nats against quadrature, and decoders that fail."""

import pytest
import torch

import vaescope as vs
from tests.theory.decoders import Bent
from vaescope.theory import ima_contrast, log_marginal, project, validity


def latents(d: int, count: int = 6) -> torch.Tensor:
    return torch.randn(count, d, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).clamp(-1.5, 1.5)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_distance_is_that_of_the_exact_gap(d):
    decoder, z = Bent(d, d + 1), latents(d)
    for precision, tolerance in ((10.0, 0.2), (1e3, 2e-3))[: 1 if d == 4 else 2]:
        found = validity(decoder, z, precision=precision)
        best = project(decoder, decoder(z), precision=precision, start=z)
        gap = log_marginal(decoder, decoder(z), precision=precision, start=z).value - best.elbo
        distance = (gap - ima_contrast(decoder, z)).abs()
        assert float((found.nats - distance).abs().max()) < tolerance * float(distance.max())
        torch.testing.assert_close(found.prior_part + found.curvature_part, found.expansion.gap - found.contrast)


def test_the_required_precision_suffices():
    decoder, z = Bent(2, 3), latents(2)
    needed = validity(decoder, z, precision=1e4, tolerance=1e-4).required_precision
    for row, precision in enumerate(needed.tolist()):
        at = validity(decoder, z[row : row + 1], precision=precision, tolerance=1e-4)
        assert float(at.nats) <= 1.1e-4  # prior and curvature may cancel, so that less would do
        assert bool(validity(decoder, z[row : row + 1], precision=2 * precision, tolerance=1e-4).valid)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_required_precision_is_that_of_the_measured_distance(d):
    """γ² |gap - c_IMA| in its limit, by projection and quadrature; with opposite signs the parts are added in size."""
    decoder, z = Bent(d, d + 1), latents(d)
    precision = 1e4
    found = validity(decoder, z, precision=precision, tolerance=1e-4)
    best = project(decoder, decoder(z), precision=precision, start=z)
    gap = log_marginal(decoder, decoder(z), precision=precision, start=z).value - best.elbo
    measured = precision * (gap - ima_contrast(decoder, z))
    prior = precision * found.prior_part  # of the linearised decoder; tested against closed forms of linear VAEs
    expected = (prior.abs() + (measured - prior).abs()) / 1e-4
    torch.testing.assert_close(found.required_precision, expected, rtol=0.01, atol=0)


def test_the_required_precision_does_not_depend_on_the_present_one():
    decoder, z = Bent(3, 4), latents(3)
    noisy, precise = (validity(decoder, z, precision=precision).required_precision for precision in (0.1, 1e6))
    torch.testing.assert_close(noisy, precise)


def test_a_healthy_decoder_is_valid_and_noise_makes_it_invalid():
    decoder, z = Bent(2, 2), latents(2)
    assert validity(decoder, z, precision=1e3).valid.all()
    unused = validity(lambda z: 1e-2 * decoder(z), z, precision=1.0)
    assert not validity(lambda z: z @ torch.tensor([[1.0, 1.0], [0.0, 0.3]]).to(z), z, precision=1.0).valid.any()
    # latents that the noise hides: the gap is zero, whatever c_IMA says
    torch.testing.assert_close(unused.prior_part, -unused.contrast, rtol=0.01, atol=1e-4)


def test_curvature_within_the_posterior_is_invalid():
    found = validity(lambda z: torch.sin(20 * z), latents(2), precision=1.0)
    assert not found.valid.any()
    assert not found.resolved.any()


def test_a_kink_inside_the_posterior_is_seen_and_one_outside_is_not():
    def decoder(z):
        return 2 * torch.relu(z) + 0.1 * z

    near, far = torch.tensor([[1e-3, 0.5]]).double(), torch.tensor([[1.0, 0.9]]).double()
    found = validity(decoder, near, precision=100.0)
    assert found.nats.isfinite().all()  # derivatives see no curvature,
    assert not found.resolved.any()  # quadrature does
    assert validity(decoder, far, precision=100.0).valid.all()


def test_rank_and_priors_on_which_the_limit_does_not_exist():
    z = latents(2)
    flat = validity(lambda z: z.sum(1, keepdim=True).expand(-1, 3), z, precision=10.0)
    assert flat.nats.isinf().all()
    assert flat.required_precision.isinf().all()
    assert flat.expansion.gap.isfinite().all()  # the gap itself is finite: the prior holds the unused direction
    kink = validity(Bent(2, 2), torch.full((1, 2), 1e-4).double(), precision=10.0, prior=vs.Laplace(scale=0.05))
    assert not kink.resolved.any()


def test_the_sentence_has_the_numbers():
    found = validity(Bent(2, 2), latents(2), precision=1e3)
    text = found.sentence()
    assert "at 100% of the points" in text
    assert f"{float(found.nats.median()):.2g} nats" in text
    assert f"a precision of {float(found.required_precision.median()):.2g} suffices" in text
    for wrong in (0.0, -1.0):
        with pytest.raises(vs.InputError, match="tolerance"):
            validity(Bent(2, 2), latents(2), precision=1.0, tolerance=wrong)
