"""The decomposition of the KL, on a mixture small enough that q(z) can be enumerated."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.models import VAE, Terms
from vaescope.objectives import DIP, BetaTC, Capacity, Factor, beta_elbo, decomposition
from vaescope.objectives.disentanglement import decompose, log_weights
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

N, D = 7, 2
G = torch.Generator().manual_seed(0)
MEAN = torch.randn(N, D, generator=G, dtype=torch.float64)
VARIANCE = 0.1 + 0.5 * torch.rand(N, D, generator=G, dtype=torch.float64)


def density(z: torch.Tensor, n: int) -> torch.Tensor:
    return torch.distributions.Normal(MEAN[n], VARIANCE[n].sqrt()).log_prob(z)


def exact(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q(z) and every q(z_j), enumerated."""
    each = torch.stack([density(z, n) for n in range(N)])
    return each.sum(-1).exp().mean(0), each.exp().mean(0)


def log_prior(z: torch.Tensor) -> torch.Tensor:
    return vs.Normal().log_density(z)


def batches(size: int) -> list[list[int]]:
    """Every batch that starts with sample 0, from whose posterior z is drawn."""
    return [[0, *rest] for rest in combinations(range(1, N), size - 1)]


def estimates(z: torch.Tensor, size: int, sampling: str) -> torch.Tensor:
    """The estimate of q(z) from every possible batch of this size."""
    weights = log_weights(size, N, sampling)[0].exp().double()
    return torch.stack(
        [sum(w * density(z, n).sum(-1).exp() for w, n in zip(weights, batch, strict=True)) for batch in batches(size)]
    )


@pytest.mark.parametrize("size", range(2, N + 1))
def test_the_stratified_estimate_of_q_is_unbiased_over_all_batches(size):
    """Exact up to rounding, because all batches are enumerated."""
    for z in MEAN[:1] + torch.randn(5, D, generator=G, dtype=torch.float64):
        torch.testing.assert_close(estimates(z, size, "stratified").mean(), exact(z)[0], rtol=1e-6, atol=1e-12)


def test_the_stratified_estimate_is_unbiased_in_sampled_batches():
    """Within four standard errors."""
    z = MEAN[0] + 0.3
    weights = log_weights(3, N, "stratified").exp().double()
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4000):
        batch = [0, *(1 + rng.permutation(N - 1)[:2])]
        found.append(float(sum(w * density(z, n).sum().exp() for w, n in zip(weights[0], batch, strict=True))))
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - float(exact(z)[0])) < 4 * error


def test_the_stratified_weights_average_the_published_ones():
    """One random other sample has weight (N - M)/(N M), the rest 1/M, where M = B - 1."""
    batch = 4
    M = batch - 1
    published = torch.tensor([1 / N] + [1 / M] * (M - 1) + [(N - M) / (N * M)])
    assert float(published.sum()) == pytest.approx(1)
    averaged = torch.stack([published[[0, *(1 + np.roll(range(M), k))]] for k in range(M)]).mean(0)
    torch.testing.assert_close(log_weights(batch, N, "stratified")[0].exp(), averaged)


def test_the_weight_of_the_own_posterior_is_on_the_diagonal():
    """A widely copied implementation has it in a column."""
    weights = log_weights(4, 100, "stratified").exp()
    torch.testing.assert_close(weights.diagonal(), torch.full((4,), 0.01))
    assert (weights - torch.diag(weights.diagonal())).max() > 0.3


@pytest.mark.parametrize("sampling", ["stratified", "weighted"])
def test_the_bias_of_the_logarithms_shrinks_with_the_batch(sampling):
    """Measured over all batches: E log q̂(z) - log q(z), which is log 1/N for the weighted one at the full batch."""
    z = MEAN[0] + 0.2
    constant = -math.log(N) if sampling == "weighted" else 0.0
    bias = [float(estimates(z, size, sampling).log().mean() - exact(z)[0].log()) - constant for size in range(2, N + 1)]
    assert bias[-1] == pytest.approx(0, abs=1e-6)
    assert all(abs(later) <= abs(earlier) + 1e-9 for earlier, later in pairwise(bias))


def test_the_three_parts_are_exact_at_the_full_batch():
    z = MEAN + VARIANCE.sqrt() * torch.randn(N, D, generator=G, dtype=torch.float64)
    parts = decompose(MEAN, VARIANCE, z, log_prior(z), log_weights(N, N, "stratified").double())
    joint, marginal = exact(z)
    own = torch.stack([density(z[n], n).sum() for n in range(N)])
    torch.testing.assert_close(parts.index_code, own - joint.log(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.total_correlation, joint.log() - marginal.log().sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        parts.dimension_wise, marginal.log().sum(-1) - log_prior(z).sum(-1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("sampling", ["stratified", "weighted"])
@pytest.mark.parametrize("size", [1, 2, 5, N])
def test_the_parts_add_up_to_the_kl_at_every_batch_size(size, sampling):
    z = MEAN[:size] + VARIANCE[:size].sqrt() * torch.randn(size, D, generator=G, dtype=torch.float64)
    parts = decompose(MEAN[:size], VARIANCE[:size], z, log_prior(z), log_weights(size, N, sampling).double())
    wanted = torch.stack([density(z[n], n).sum() for n in range(size)]) - log_prior(z).sum(-1)
    torch.testing.assert_close(sum(parts), wanted)


def test_the_decomposition_agrees_with_enumeration_and_with_the_kl():
    """Many copies of the mixture, so that one draw each averages out."""
    mean, variance = MEAN.repeat(600, 1), VARIANCE.repeat(600, 1)
    parts = decomposition(mean, variance)
    kl = vs.distributions.kl_per_latent(MEAN, VARIANCE, vs.Normal()).sum(-1).mean()
    total = sum(part.mean() for part in parts)
    assert float(total) == pytest.approx(float(kl), abs=4 * float(sum(parts).std()) / len(mean) ** 0.5)
    z = MEAN + VARIANCE.sqrt() * torch.randn(20_000, N, D, generator=G, dtype=torch.float64)
    joint, marginal = exact(z)
    wanted = (joint.log() - marginal.log().sum(-1)).mean()
    error = float(parts.total_correlation.std()) / len(mean) ** 0.5
    assert float(parts.total_correlation.mean()) == pytest.approx(float(wanted), abs=4 * error)


def test_correlated_codes_have_a_total_correlation_and_independent_ones_have_none():
    z = torch.randn(1500, 1, generator=G)
    correlated = decomposition(torch.cat([z, z], 1), torch.full((1500, 2), 0.05))
    independent = decomposition(torch.randn(1500, 2, generator=G), torch.full((1500, 2), 0.05))
    rho = 1 / 1.05
    assert float(correlated.total_correlation.mean()) == pytest.approx(-0.5 * math.log(1 - rho**2), abs=0.15)
    assert abs(float(independent.total_correlation.mean())) < 0.1


# objectives -----------------------------------------------------------------------------------


def terms_of(members: int = 2, batch: int = 6) -> Terms:
    model = VAE(3, 2)
    return model.terms(
        model.init(range(members)), torch.randn(members, batch, 3), torch.randn(members, batch, 2), torch.ones(members)
    )


def test_beta_of_one_is_the_negative_elbo():
    terms = terms_of()
    ones = torch.ones(2)
    torch.testing.assert_close(BetaTC(100)(terms, ones), beta_elbo(terms, ones))
    torch.testing.assert_close(DIP(off_diagonal=0.0, diagonal=0.0)(terms, ones), beta_elbo(terms, ones))


def test_beta_weighs_the_total_correlation():
    terms = terms_of()
    weights = log_weights(6, 100, "stratified")
    parts = decompose(terms.posterior.mean, terms.posterior.variance, terms.u, torch.zeros_like(terms.u), weights)
    beta = torch.tensor([6.0, 3.0])
    wanted = beta_elbo(terms, torch.ones(2)) + (beta - 1) * parts.total_correlation.mean(-1)
    torch.testing.assert_close(BetaTC(100)(terms, beta), wanted)


def test_samplings_agree_at_the_full_batch_and_their_gradients_differ_below_it():
    """Weighted: the own posterior weighs as much as the others, which matters the more, the larger the data set."""
    terms, beta = terms_of(batch=6), torch.full((2,), 4.0)
    apart = BetaTC(6, "weighted")(terms, beta) - BetaTC(6, "stratified")(terms, beta)
    torch.testing.assert_close(apart, torch.full((2,), 3 * math.log(6)))  # (β - 1)(d - 1) log N

    def gradient(samples: int, sampling: str) -> torch.Tensor:
        mean = MEAN.clone().requires_grad_()
        z = mean + VARIANCE.sqrt() * torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        weights = log_weights(N, samples, sampling).double()
        decompose(mean, VARIANCE, z, log_prior(z), weights).total_correlation.mean().backward()
        return mean.grad.flatten()

    torch.testing.assert_close(gradient(N, "weighted"), gradient(N, "stratified"), rtol=1e-5, atol=1e-7)
    cosines = [
        float(torch.cosine_similarity(gradient(n, "weighted"), gradient(n, "stratified"), dim=0)) for n in (N, 100)
    ]
    assert cosines[1] < 0.99 < cosines[0]


def test_dip_weighs_the_kl_by_beta_and_sees_correlated_posteriors():
    terms = terms_of()
    beta = torch.tensor([1.0, 5.0])
    apart = DIP()(terms, beta) - DIP()(terms, torch.ones(2))
    torch.testing.assert_close(apart, (beta - 1) * terms.kl.mean(-1))
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    posterior = vs.distributions.FullGaussian(
        torch.zeros(1, 4, 2), torch.linalg.cholesky(covariance).expand(1, 4, 2, 2)
    )
    zero = torch.zeros(1, 4)
    found = DIP(2, off_diagonal=1.0, diagonal=1.0)(Terms(zero, zero, zero, posterior, posterior.mean), torch.ones(1))
    assert float(found) == pytest.approx(2 * 0.81, abs=1e-5)


def test_the_decomposition_accepts_other_priors():
    mean, variance = MEAN.repeat(300, 1), VARIANCE.repeat(300, 1)
    parts = decomposition(mean, variance, prior_mean=1.0, prior_variance=4.0)
    wanted = vs.distributions.kl_per_latent(MEAN, VARIANCE, vs.Normal(1.0, 4.0)).sum(-1).mean()
    error = float(sum(parts).std()) / len(mean) ** 0.5
    assert float(sum(part.mean() for part in parts)) == pytest.approx(float(wanted), abs=4 * error)
    with pytest.raises(InputError, match="must be a number or one per latent"):
        decomposition(mean, variance, prior_mean=mean)
    with pytest.raises(InputError, match="mean must be finite"):
        decomposition(mean * torch.nan, variance)


def test_the_capacity_is_the_minimum_of_its_penalty():
    terms, beta = terms_of(), torch.full((2,), 10.0)
    mean = terms.kl.mean(-1)
    held = Capacity(float(mean[0]))(terms, beta)
    torch.testing.assert_close(held[0], -terms.log_likelihood.mean(-1)[0])
    assert (Capacity(50.0)(terms, beta) > held).all()


def test_dip_penalties_by_hand():
    mean = torch.tensor([[[1.0, 2.0], [-1.0, -2.0]]])
    posterior = vs.distributions.DiagonalGaussian(mean, torch.full_like(mean, 0.5))
    zero = torch.zeros(1, 2)
    terms = Terms(zero, zero, zero, posterior, mean)
    # covariance [[1, 2], [2, 4]]: off-diagonal 2·4, diagonal 0 + 9; with 0.5 on the diagonal 0.25 + 12.25
    assert float(DIP(kind=1, off_diagonal=1.0, diagonal=1.0)(terms, torch.ones(1))) == pytest.approx(17)
    assert float(DIP(kind=2, off_diagonal=1.0, diagonal=1.0)(terms, torch.ones(1))) == pytest.approx(20.5)


@pytest.mark.parametrize(
    "objective", [BetaTC(200), BetaTC(200, "weighted"), DIP(), Capacity(2.0), Capacity(2.0, steps=6), Factor(2)]
)
def test_stacks_train_with_every_objective(objective):
    """And a member does not depend on the others."""
    x = torch.randn(1, 200, 3, generator=torch.Generator().manual_seed(0))
    settings = TrainSettings(epochs=3, batch_size=50, compile="never")
    specs = [MemberSpec(seed=s, beta=4.0) for s in range(2)]
    together = train(VAE(3, 2), x, x, specs, settings, objective=objective, progress=NoProgress())
    alone = train(VAE(3, 2), x, x, specs[1:], settings, objective=objective, progress=NoProgress())[0]
    for name, value in alone.params.items():
        torch.testing.assert_close(value, together[1].params[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_weights(3, 9, "other"), "sampling must be one of stratified, weighted"),
        (lambda: log_weights(10, 9, "weighted"), "the batch size must be 1 to 9, the number of samples, got 10"),
        (lambda: Capacity(-1.0), "nats must be at least 0"),
        (lambda: DIP(kind=3), "must be 1 or 2"),
        (lambda: DIP(diagonal=-1.0), "diagonal must be at least 0"),
        (lambda: decomposition(MEAN, -VARIANCE), "variance must be > 0"),
    ],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_full_posterior_is_refused_by_the_total_correlation():
    model = VAE(3, 2, posterior="full")
    terms = model.terms(model.init([0]), torch.randn(1, 4, 3), torch.randn(1, 4, 2), torch.ones(1))
    with pytest.raises(InputError, match="needs a diagonal posterior"):
        BetaTC(10)(terms, torch.ones(1))
