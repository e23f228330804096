r"""Lemmas 1, 2, 3, 5 and Theorem 1 (a), (b) of Bhowal et al. 2024 as numbers.

The local decoder is Δ(ε)_j = f_j(m_j · ε): a non-linearity per output after the rows m_j of a matrix M. Its
linearisation has the columns c_k of diag(f'(0)) M. With variances σ_k²,

.. math:: L^{stoch} = \sum_k \|c_k\|^2 \sigma_k^2 + O(\sigma^4), \qquad
    \log L^{stoch} - \log L_{min} = \log \frac{AM}{GM} + \frac 2d\, c_{IMA}

where AM and GM are the arithmetic and the geometric mean of ‖c_k‖² σ_k², and L_min is the smallest loss over variances
of the same product and over rotations of the latents. The first part is zero for σ_k² ∝ 1/‖c_k‖² (Theorem 1 (c)), the
second for orthogonal columns (Theorem 1 (b)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, kl_per_latent
from vaescope.distributions.quadrature import normal_expectation
from vaescope.inference import linear
from vaescope.inference.expansion import along
from vaescope.inference.geometry import contrast_of_matrix
from vaescope.orthogonality.neighbours import expected_distance


@dataclass(frozen=True, eq=False)
class LocalDecoder:
    """z -> g(M z), with g applied to every output separately."""

    matrix: Float[Tensor, "n d"]
    function: Callable[[Tensor], Tensor]
    """(..., n) -> (..., n), elementwise along the last axis."""

    def __call__(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        return self.function(z @ self.matrix.mT)

    def __post_init__(self) -> None:
        """The function must act on every output separately: then J v = (J 1) v for any v."""
        at = torch.linspace(-1, 1, len(self.matrix)).to(self.matrix)
        probe = torch.randn(len(at), generator=torch.Generator().manual_seed(0)).to(at)
        slope = along(self.function, torch.ones_like(at))(at)
        if not torch.allclose(along(self.function, probe)(at), slope * probe, rtol=1e-4, atol=1e-6):
            raise InputError("function of a LocalDecoder must act on every output separately; it mixes them.")

    def derivatives(self, at: Float[Tensor, " n"]) -> list[Float[Tensor, " n"]]:
        """g and its first three derivatives at M z."""
        function, values = self.function, [self.function(at)]
        for _ in range(3):
            function = along(function, torch.ones_like(at))
            values.append(function(at))
        return values

    def slope(self, mean: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
        """The Jacobian diag(g'(M μ)) M, whose columns are the c_k of Theorem 1."""
        return self.derivatives(self.matrix @ mean)[1].unsqueeze(1) * self.matrix


@dataclass(frozen=True)
class StochasticLoss:
    """E‖g(M(μ + ε)) - g(M μ)‖² by quadrature, and its approximations; Lemma 1 is right to first order only."""

    exact: float
    first_order: float
    """Σ_k ‖c_k‖² σ_k², which Theorem 1 minimises; error O(σ⁴)."""
    second_order: float
    """With the terms (¾ f''² + f' f''') v² of every output; error O(σ⁶)."""
    lemma_1: float
    """Eq. 9: the variance of every output. Its terms with f(0) are zero, because f(0) = 0 by Eq. 8."""
    squared_bias: float
    """(E f)², which Lemma 1 drops: `exact` = `lemma_1` + `squared_bias`. Zero only if Prop. 1's assumption holds."""


def stochastic_loss(decoder: LocalDecoder, mean: Float[Tensor, " d"], variance: Float[Tensor, " d"]) -> StochasticLoss:
    """L^stoch of a local decoder (Bhowal et al. 2024, Lemma 1, Eq. 9), exactly and to two orders.

    >>> line = LocalDecoder(torch.eye(2, dtype=torch.float64), lambda y: 3 * y)
    >>> found = stochastic_loss(line, torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    >>> round(found.exact, 6), found.first_order
    (18.0, 18.0)
    """
    centre = decoder.matrix @ mean
    spread = decoder.matrix.square() @ variance  # the variance of m_j · ε (Lemma 8)
    level, first, second, third = decoder.derivatives(centre)

    def moment(power: int) -> Tensor:
        def change(y: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
            return (decoder.function(y.mT).mT - level.unsqueeze(-1)) ** power

        return normal_expectation(change, centre, spread, order=40)

    square, bias = moment(2), moment(1)
    leading = first.square() * spread
    following = (0.75 * second.square() + first * third) * spread.square()
    return StochasticLoss(
        exact=float(square.sum()),
        first_order=float(leading.sum()),
        second_order=float((leading + following).sum()),
        lemma_1=float((square - bias.square()).sum()),
        squared_bias=float(bias.square().sum()),
    )


@dataclass(frozen=True)
class RotationEffect:
    """The three terms of the loss before and after the latents are rotated: M -> M R, μ -> Rᵀ μ, variances kept."""

    mean_loss: tuple[float, float]
    """L^μ, equal: Lemma 2."""
    kl: tuple[float, float]
    """Equal, because ‖μ‖ is: Lemma 3. With another prior than N(0, I) it is not."""
    stochastic: tuple[float, float]
    """L^stoch, which changes in general; it does not if R mixes only latents of equal variance."""
    isotropic: bool

    @property
    def stochastic_change(self) -> float:
        return self.stochastic[1] - self.stochastic[0]


def rotation_effect(
    decoder: LocalDecoder,
    x: Float[Tensor, " n"],
    mean: Float[Tensor, " d"],
    variance: Float[Tensor, " d"],
    rotation: Float[Tensor, "d d"],
    *,
    prior: Normal | None = None,
) -> RotationEffect:
    """What a rotation of the latents changes (Bhowal et al. 2024, Lemmas 2 and 3 and Theorem 1).

    Args:
        decoder: the local decoder.
        x: the observation.
        mean: of the posterior.
        variance: of the posterior.
        rotation: an orthogonal matrix R.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    if not torch.allclose(rotation.mT @ rotation, torch.eye(len(rotation)).to(rotation), atol=1e-5):
        raise InputError("rotation must be an orthogonal matrix, RᵀR = I; Lemmas 2 and 3 hold for no other.")
    turned = LocalDecoder(decoder.matrix @ rotation, decoder.function)
    pairs = ((decoder, mean), (turned, rotation.mT @ mean))
    losses = [float((x - own(m.unsqueeze(0))[0]).square().sum()) for own, m in pairs]
    divergences = [float(kl_per_latent(m, variance, prior).sum()) for _, m in pairs]
    stochastic = [stochastic_loss(own, m, variance).exact for own, m in pairs]
    isotropic = bool(torch.allclose(variance, variance[:1]))
    return RotationEffect(
        (losses[0], losses[1]), (divergences[0], divergences[1]), (stochastic[0], stochastic[1]), isotropic
    )


@dataclass(frozen=True, eq=False)
class PolarisedKL:
    """½ Σ (μ² + σ² - 1 - log σ²) in parts, at each sample; they add up to `exact`."""

    exact: Float[Tensor, " N"]
    logarithm: Float[Tensor, " N"]
    """½ Σ_active -log σ²: Lemma 3, which lacks the ½."""
    means: Float[Tensor, " N"]
    """½ Σ_active μ²: unchanged by rotations."""
    constant: Float[Tensor, " N"]
    """-½ per active latent."""
    neglected: Float[Tensor, " N"]
    """½ Σ_active σ², and the KL of passive latents: zero in a perfectly polarised regime."""


def polarised_kl(mean: Float[Tensor, "N d"], variance: Float[Tensor, "N d"], active: Bool[Tensor, " d"]) -> PolarisedKL:
    """The KL to N(0, I), and what Lemma 3 of Bhowal et al. 2024 keeps of it."""
    exact = kl_per_latent(mean, variance, Normal())
    own, spread = mean[:, active], variance[:, active]
    return PolarisedKL(
        exact=exact.sum(1),
        logarithm=-0.5 * spread.log().sum(1),
        means=0.5 * own.square().sum(1),
        constant=torch.full_like(exact[:, 0], -0.5 * int(active.sum())),
        neglected=0.5 * spread.sum(1) + exact[:, ~active].sum(1),
    )


@dataclass(frozen=True, eq=False)
class Orthogonality:
    """log L^stoch of matrices of columns c_k and variances, above its minimum; both parts are >= 0."""

    loss: Float[Tensor, "*batch"]
    minimum: Float[Tensor, "*batch"]
    """L_min over rotations and variances of the same product (Theorem 1, Eq. 53)."""
    unequal: Float[Tensor, "*batch"]
    """log AM/GM of ‖c_k‖² σ_k²: zero if Theorem 1 (c) holds."""
    contrast: Float[Tensor, "*batch"]
    """2 c_IMA / d: zero if Theorem 1 (b) holds."""


def orthogonality_of_minimum(
    columns: Float[Tensor, "*batch n d"], variance: Float[Tensor, "*batch d"]
) -> Orthogonality:
    """How far a local decoder is from the minimum of Theorem 1, and which of its statements fails.

    >>> M, equal = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([1.0, 0.5])  # σ² ∝ 1/‖c‖²
    >>> found = orthogonality_of_minimum(M, equal)
    >>> round(float(found.unequal), 4), round(float(found.contrast), 4)
    (0.0, 0.3466)
    """
    d = columns.shape[-1]
    energies = columns.square().sum(-2) * variance
    contrast = 2 / d * contrast_of_matrix(columns)
    unequal = energies.mean(-1).log() - energies.log().mean(-1)
    loss = energies.sum(-1)
    return Orthogonality(loss, loss * (-unequal - contrast).exp(), unequal, contrast)


def smallest_kl(columns: Float[Tensor, "*batch n d"], loss: float) -> Float[Tensor, "*batch"]:
    """The smallest -½ Σ log σ_k² at this L^stoch: Σ log ‖c_k‖ - d/2 log(L/d), at σ_k² = L / (d ‖c_k‖²).

    Bhowal et al. 2024, Lemma 5: it is lower for orthogonal columns of the same singular values, by c_IMA nats.

    >>> turned = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> straight = torch.diag(torch.linalg.svdvals(turned))
    >>> round(float(smallest_kl(turned, 1.0) - smallest_kl(straight, 1.0)), 4)  # ½ log 2
    0.3466
    """
    d = columns.shape[-1]
    validation.number("loss", loss, above=0.0)
    return columns.norm(dim=-2).log().sum(-1) - 0.5 * d * math.log(loss / d)


def descent(columns: Float[Tensor, "n d"], *, steps: int = 8, sweeps: int = 30) -> Float[Tensor, " S"]:
    """Σ log ‖c_k‖ along small rotations of pairs of latents, each until the pair is orthogonal.

    Never rising, and ending at Σ log s_k: no local minimum is above the global one (Theorem 1 (a), Lemma 12).

    Args:
        columns: of the local decoder, of full rank.
        steps: of equal angle per pair.
        sweeps: over all pairs, at most.
    """
    M, values = columns.double().clone(), []
    if not bool(contrast_of_matrix(M).isfinite()):
        raise InputError("columns must have full rank; otherwise L^stoch has no minimum above zero.")
    for _ in range(sweeps):
        for i in range(M.shape[1]):
            for j in range(i + 1, M.shape[1]):
                angle = _orthogonalising_angle(M[:, i], M[:, j]) / steps
                for _ in range(steps):
                    first, second = M[:, i].clone(), M[:, j].clone()
                    M[:, i] = math.cos(angle) * first + math.sin(angle) * second
                    M[:, j] = math.cos(angle) * second - math.sin(angle) * first
                    values.append(float(M.norm(dim=0).log().sum()))
        if float(contrast_of_matrix(M)) < 1e-14:
            break
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class BetaStep:
    """A linear VAE at its optimum for one β; KL and squared distances of nearest neighbours, averaged over samples."""

    kl: float
    draws: float
    means: float


def linear_vaes_along_beta(betas: Sequence[float] = (0.03, 0.1, 0.3, 0.6), samples: int = 300) -> list[BetaStep]:
    """Theorem 2 (b) in closed form, along a β that makes the KL fall, on samples with variances 9, 4 and 1.

    At γ² = 1/β the optimum is probabilistic PCA; all latents are in use for β < 1.

    >>> first, *_, last = linear_vaes_along_beta()
    >>> last.kl < first.kl, last.draws < first.draws, last.means < first.means
    (True, False, True)
    """
    spectrum = torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64)
    noise = torch.randn(samples, 3, dtype=torch.float64, generator=randomness.generator(0, "along beta"))
    x, steps = noise * spectrum.sqrt(), []
    for beta in betas:
        W = torch.diag((spectrum - beta).clamp(min=0).sqrt())
        mean, _ = linear.posterior(x, W, 1 / beta)
        variance = linear.optimal_variance(W, 1 / beta).expand_as(mean)
        kl = float(kl_per_latent(mean, variance, Normal()).sum(1).mean())
        draws = float(expected_distance(x, mean, variance).mean())
        steps.append(BetaStep(kl, draws, means=draws - 2 * float(variance[0].sum())))
    return steps


def _orthogonalising_angle(first: Float[Tensor, " n"], second: Float[Tensor, " n"]) -> float:
    """The smallest rotation after which two columns are orthogonal.

    Their inner product becomes c cos 2θ + ½ (‖b‖² - ‖a‖²) sin 2θ, which falls in size on the way to its nearest zero,
    while ‖a‖² ‖b‖² - c² does not change.
    """
    inner, difference = float(first @ second), float(first @ first - second @ second)
    if inner == 0:
        return 0.0
    angle = 0.5 * math.atan2(2 * inner, difference)
    return angle - math.copysign(math.pi / 2, angle) if abs(angle) > math.pi / 4 else angle
