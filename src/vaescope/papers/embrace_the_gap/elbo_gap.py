"""ELBO*, the IMA-regularised and the plain log-likelihood (Reizinger et al. 2022, §4.2, Fig. 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vaescope import randomness, theory
from vaescope.data.arrays import split
from vaescope.data.mixings import Mixing
from vaescope.distributions import DiagonalGaussian, kl
from vaescope.distributions.likelihoods import gaussian_log_likelihood
from vaescope.models import VAE, FixedMaps, Member, Terms
from vaescope.models.networks import Params
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import ELBO_GAP
from vaescope.papers.embrace_the_gap import elbo_gap_figures as drawings
from vaescope.papers.embrace_the_gap import elbo_gap_results as report
from vaescope.papers.embrace_the_gap.elbo_gap_claims import CLAIMS
from vaescope.papers.embrace_the_gap.elbo_gap_decoders import CALIBRATION_SAMPLES, CASES
from vaescope.papers.embrace_the_gap.elbo_gap_results import (
    DECADES,
    DIM,
    HALF_DECADES,
    ORTHOGONAL,
    TRIANGULAR,
    WIDE,
    WIDE_NOISY,
    ElboGapMeasurement,
    ElboGapResult,
    MixingCell,
    TrainedEncoder,
)
from vaescope.papers.experiment import Context, ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.results import Diverged, Result
from vaescope.papers.trained import (
    FactorData,
    TrainedCell,
    TrainedExperiment,
    TrainedSettings,
    TrainingStack,
    train_stack,
)
from vaescope.training import MemberSpec

PRECISIONS: dict[str, Sequence[float]] = {
    TRIANGULAR: sorted({*HALF_DECADES, *DECADES}),
    ORTHOGONAL: sorted({*HALF_DECADES, *DECADES[:8]}),
    WIDE: DECADES[1:8],
    WIDE_NOISY: DECADES[1:8],
}
HIGHEST_TRAINED = {TRIANGULAR: 1e10, ORTHOGONAL: 1e5}
"""The nine published values, read as γ² and, for the triangular mixing, also as γ."""


@dataclass(frozen=True)
class HeldMean(VAE):
    """The first training phase: posterior means are fixed to the true inverse, so only variances are optimised.

    Meanwhile the mean network learns the inverse by regression, as a starting point for the second phase.
    """

    def terms(self, params: Params, rows: Tensor, noise: Tensor, precision: Tensor) -> Terms:
        assert isinstance(self.fixed.decoder, Mixing)
        posterior = self.encode(params, rows)
        held = self.prior.from_support(self.fixed.decoder.inverse(rows))
        q = DiagonalGaussian(held, posterior.marginal_variance)
        squared_error = (rows - self.decoder_output(params, self.prior.to_support(q.sample(noise)))).square().sum(-1)
        regression = (posterior.mean - held).square().sum(-1)
        log_likelihood = gaussian_log_likelihood(squared_error, self.observed_dim, precision.unsqueeze(-1))
        return Terms(log_likelihood - regression, kl(q, self.prior), squared_error)


@dataclass(frozen=True)
class ElboGapSettings(TrainedSettings):
    held_epochs: int = 30
    """Epochs of the first training phase."""
    exact_points: int = 200
    """Test points at which ELBO* is solved."""
    halves: bool = False
    """Train encoders of the triangular mixing also for half as many epochs: what the rest gains is not amortisation."""


class ElboGap(TrainedExperiment[ElboGapSettings, MixingCell, ElboGapMeasurement]):
    info = ELBO_GAP
    about = (
        "The decoder is fixed to the ground truth, so log p(x) and c_IMA are known. ELBO* is solved exactly at every "
        "γ², including values at which no encoder can be trained; encoders are also trained as in the paper, for "
        "comparison. The triangular mixing has exactly the published C_IMA = 7.072 and mean log-likelihood 14.857. Its "
        "Jacobian columns are nearly parallel (an angle of about 1e-3), so the limit is reached only once γ times the "
        "smallest singular value of the Jacobian is large, beyond γ² = 1e13. At smaller γ², ELBO* exceeds L_IMA, and "
        "so does the published curve. The horizontal axis of the published curve cannot be γ²: an ELBO is at most n/2 "
        "log(γ²/2π), which is 0.46 at γ² = 10, where the printed value is 2.57. Read as γ instead of γ², the published "
        "curve follows the exact one. What separates a trained encoder from ELBO* has two parts: amortisation, which "
        "remains however long it is trained, and unfinished training. The laptop profile trains every encoder of the "
        "triangular mixing a second time for half as many epochs; what the second half gained estimates the second "
        "part."
    )
    quick = ElboGapSettings(
        seeds=2,
        samples=20_000,
        epochs=30,
        patience=30,
        learning_rate=2e-3,
        decay="cosine",
        precision_start=1e1,
        precision_hold=0,
        precision_warmup=2_000,
        held_epochs=8,
        exact_points=100,
    )
    laptop = ElboGapSettings(
        seeds=5,
        samples=20_000,
        epochs=40,
        patience=40,
        learning_rate=2e-3,
        decay="cosine",
        precision_start=1e1,
        precision_hold=0,
        precision_warmup=2_500,
        held_epochs=6,
        exact_points=100,
        halves=True,
    )
    paper = ElboGapSettings(seeds=5, samples=145_000, epochs=40, patience=15, learning_rate=1e-4)
    cell_type = MixingCell
    measured_type = ElboGapMeasurement

    def cells(self, settings: ElboGapSettings) -> list[MixingCell]:
        cells = [
            MixingCell(mixing, float(precision), seed)
            for mixing, precisions in PRECISIONS.items()
            for precision in precisions
            for seed in range(settings.seeds)
        ]
        halves = [replace(cell, half=True) for cell in cells if cell.mixing == TRIANGULAR and is_trained(cell)]
        return cells + halves if settings.halves else cells

    def training_of(self, cell: MixingCell, settings: ElboGapSettings) -> ElboGapSettings:
        return _halved(settings) if cell.half else settings

    def member(self, cell: MixingCell, data_index: int, settings: ElboGapSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)

    def stack_key(self, cell: MixingCell) -> tuple[str, bool]:
        return cell.mixing, cell.half

    def data(self, cell: MixingCell, settings: ElboGapSettings) -> FactorData:
        case = CASES[cell.mixing]
        sources = case.prior.sample(settings.samples, DIM, generator=randomness.generator(cell.seed, "sources"))
        parts = split(case.decoder()(sources))
        return FactorData(parts, sources[-len(parts.test) :])

    def model(self, cell: MixingCell, settings: ElboGapSettings) -> VAE:
        case = CASES[cell.mixing]
        sources = case.prior.sample(CALIBRATION_SAMPLES, DIM, generator=randomness.generator(0, "calibration"))
        x = case.decoder()(sources)
        shift, scale = x.mean(0), x.std(0)
        return VAE.mlp(
            DIM,
            DIM,
            hidden=(50, 50),
            activation="relu",
            split_encoder=True,
            prior=case.prior,
            fixed=FixedMaps(case.decoder(), encoder_input=lambda v: (v - shift.to(v)) / scale.to(v)),
        )

    def solve(
        self, cells: Sequence[MixingCell], settings: ElboGapSettings, context: Context
    ) -> Iterator[Sequence[Result[MixingCell, ElboGapMeasurement] | Diverged[MixingCell]]]:
        yield from super().solve([cell for cell in cells if is_trained(cell)], settings, context)
        others = [cell for cell in cells if not is_trained(cell)]
        for mixing in dict.fromkeys(cell.mixing for cell in others):
            own = [cell for cell in others if cell.mixing == mixing]
            by_seed = {seed: self.data(cell, settings) for seed, cell in {cell.seed: cell for cell in own}.items()}
            exact = _solve_exactly(own, [by_seed[cell.seed] for cell in own], settings)
            yield [Result(cell, measured) for cell, measured in zip(own, exact, strict=True)]

    def before_training(self, stack: TrainingStack, cells: Sequence[MixingCell], settings: ElboGapSettings) -> Params:
        """The weights after the first phase, which shares the checkpoint of the stack."""
        vae = stack.model
        held = HeldMean(vae.observed_dim, vae.latent_dim, networks=vae.networks, prior=vae.prior, fixed=vae.fixed)
        half = stack.settings.epochs < settings.epochs
        epochs = math.ceil(settings.held_epochs / 2) if half else settings.held_epochs
        training = replace(stack.settings, epochs=epochs, patience=epochs, precision_hold=0, precision_warmup=0)
        members = train_stack(replace(stack, model=held, settings=training))
        return {name: torch.cat([m.params[name] for m in members]) for name in members[0].params}

    def measure(
        self, cell: MixingCell, member: Member, data: FactorData, settings: ElboGapSettings
    ) -> ElboGapMeasurement:
        return self.measure_all([TrainedCell(cell, member, data)], settings)[0]

    def measure_all(
        self, trained: Sequence[TrainedCell[MixingCell]], settings: ElboGapSettings
    ) -> list[ElboGapMeasurement]:
        exact = _solve_exactly([own.cell for own in trained], [own.data for own in trained], settings)
        return [_with_encoder(*pair, settings) for pair in zip(exact, trained, strict=True)]

    def claims(self, settings: ElboGapSettings) -> Sequence[ClaimSpec[ElboGapResult, ElboGapSettings, Any]]:
        return CLAIMS

    def comparisons(self, results: Sequence[ElboGapResult], settings: ElboGapSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[ElboGapResult], settings: ElboGapSettings) -> list[ReportFigure]:
        return [drawings.curves(results), drawings.rates(results), *drawings.parts(results)]

    def tables(self, results: Sequence[ElboGapResult], settings: ElboGapSettings) -> list[ReportTable]:
        return [report.triangular_table(results)]


def _halved(settings: ElboGapSettings) -> ElboGapSettings:
    """The same schedule in half as many epochs."""
    return replace(
        settings,
        epochs=math.ceil(settings.epochs / 2),
        patience=math.ceil(settings.patience / 2),
        precision_hold=settings.precision_hold // 2,
        precision_warmup=settings.precision_warmup // 2,
    )


def is_trained(cell: MixingCell) -> bool:
    """Whether an encoder is trained too, besides the exact solution."""
    return cell.precision <= HIGHEST_TRAINED.get(cell.mixing, 0.0)


def _with_encoder(
    exact: ElboGapMeasurement, trained: TrainedCell[MixingCell], settings: ElboGapSettings
) -> ElboGapMeasurement:
    """With the ELBO of the trained encoder at the same test points."""
    x, precision = trained.data.observations.test[: settings.exact_points], trained.cell.precision
    decoder, member = CASES[trained.cell.mixing].decoder(), trained.member
    elbo = float(theory.elbo(decoder, x, member.posterior(x), precision=precision, prior=member.prior).mean())
    return replace(exact, encoder=TrainedEncoder(elbo, amortisation_gap=exact.elbo_star - elbo))


def _solve_exactly(
    cells: Sequence[MixingCell], data: Sequence[FactorData], settings: ElboGapSettings
) -> list[ElboGapMeasurement]:
    """ELBO*, log p and c_IMA at the test points of cells that share a mixing, all points at once."""
    if not cells:
        return []
    case, points = CASES[cells[0].mixing], settings.exact_points
    decoder = case.decoder()
    z = torch.cat([own.test_factors[:points] for own in data])
    sizes = [len(own.test_factors[:points]) for own in data]
    precision = torch.tensor([cell.precision for cell in cells], dtype=z.dtype).repeat_interleave(torch.tensor(sizes))
    x = decoder(z)
    if case.noisy:
        x = x + torch.cat([_noise(cell, size, x) for cell, size in zip(cells, sizes, strict=True)])
    best = theory.project(decoder, x, precision=precision, prior=case.prior, start=z)
    # c_IMA is evaluated at the preimage of x; for noisy x, which has none, at the optimal mean
    contrast = theory.ima_contrast(decoder, best.mean if case.noisy else z)
    method = "flow" if case.invertible else "quadrature"
    log_p = theory.log_marginal(decoder, x, precision=precision, prior=case.prior, start=z, method=method).value
    columns = best.converged, best.elbo, log_p, contrast
    return [_averaged(*parts) for parts in zip(*(column.split(sizes) for column in columns), strict=True)]


def _noise(cell: MixingCell, points: int, like: Tensor) -> Tensor:
    """Observation noise of variance 1/γ²."""
    shape, generator = (points, like.shape[1]), randomness.generator(cell.seed, "noise")
    return torch.randn(shape, dtype=like.dtype, generator=generator) / math.sqrt(cell.precision)


def _averaged(converged: Tensor, elbo: Tensor, log_p: Tensor, contrast: Tensor) -> ElboGapMeasurement:
    """Means over the converged points of a cell."""
    elbo, log_p, contrast = (values[converged] for values in (elbo, log_p, contrast))
    return ElboGapMeasurement(
        exact_converged=float(converged.double().mean()),
        elbo_star=float(elbo.mean()),
        log_p=float(log_p.mean()),
        contrast=float(contrast.mean()),
        l_ima=float((log_p - contrast).mean()),
        distance=float((elbo - log_p + contrast).abs().mean()),
    )


EXPERIMENT = ElboGap()
