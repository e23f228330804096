"""Why trained mean encodings converge more slowly than the best ones (Reizinger et al. 2022, Fig. 2 right)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vaescope import theory
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import Normal
from vaescope.models import VAE, Member
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, ClaimSpecs
from vaescope_papers.criteria import Bound, PairedDifference, above, within
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.shared import DIM, PrecisionSettings, mixed_sources
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.results import Result, grouped
from vaescope_papers.statistics import median, slope
from vaescope_papers.trained import FactorData, TrainedExperiment


@dataclass(frozen=True)
class EncoderRateSettings(PrecisionSettings):
    units: tuple[int, ...] = (10, 30, 60)
    """Of both hidden layers of encoder and decoder, by size of the model."""
    lengths: tuple[int, ...] = (1, 4, 16)
    """Training of each size, in multiples of `epochs`."""
    exact_points: int = 12
    """Test points at which the best posteriors are solved exactly."""


@dataclass(frozen=True)
class EncoderRateCell:
    size: int
    """0 is the smallest network with the shortest training."""
    precision: float
    seed: int


@dataclass(frozen=True)
class EncoderRateMeasurement:
    """Mean squared errors per output."""

    trained_error: float
    """Of x - f(μ(x)), over all test points."""
    exact_error: float
    """The same for the means of the best posteriors of the trained decoder, at the exact points."""
    encoder_error: float
    """Of f(μ(x)) - f(μ*(x)), where μ* are those means."""
    exact_converged: float
    """Share of the exact points at which the best posterior was found."""


EncoderRateResult = Result[EncoderRateCell, EncoderRateMeasurement]
Results = Sequence[EncoderRateResult]
Value = Callable[[EncoderRateMeasurement], float]


def trained(measured: EncoderRateMeasurement) -> float:
    return measured.trained_error


def exact(measured: EncoderRateMeasurement) -> float:
    return measured.exact_error


def own(measured: EncoderRateMeasurement) -> float:
    return measured.encoder_error


# claims ---------------------------------------------------------------------------------------


def slopes(
    value: Value, size: Callable[[EncoderRateSettings], int], highest: float = 1e4
) -> Callable[[Results, EncoderRateSettings], list[float]]:
    """The slope of the logarithm of an error on log γ², from 1e2 to `highest`, of every seed of a size."""

    def measure(results: Results, settings: EncoderRateSettings) -> list[float]:
        return list(_slopes(results, value, size(settings), highest).values())

    return measure


def _slopes(results: Results, value: Value, size: int, highest: float = 1e4) -> dict[object, float]:
    chosen = [r for r in results if r.cell.size == size and 1e2 <= r.cell.precision <= highest]
    by_seed = grouped(chosen, lambda r: r.cell.seed)
    return {
        seed: slope([r.cell.precision for r in group], [value(r.measured) for r in group])
        for seed, group in by_seed.items()
        if len(group) > 1
    }


def growth(size: int) -> Callable[[Results, EncoderRateSettings], list[float]]:
    """By how much closer to -2 the trained slope is than one size smaller, per seed."""

    def measure(results: Results, settings: EncoderRateSettings) -> list[float]:
        smaller, larger = (_slopes(results, trained, k) for k in (size - 1, size))
        return [abs(smaller[seed] + 2) - abs(larger[seed] + 2) for seed in larger if seed in smaller]

    return measure


def largest(settings: EncoderRateSettings) -> int:
    return len(settings.units) - 1


def flatter(results: Results, settings: EncoderRateSettings) -> list[float]:
    """The slope of the encoder's own error minus that of the exact error, at the largest size, per seed."""
    ours, best = (_slopes(results, value, largest(settings)) for value in (own, exact))
    return [ours[seed] - best[seed] for seed in ours if seed in best]


# experiment -----------------------------------------------------------------------------------


class EncoderRate(TrainedExperiment[EncoderRateSettings, EncoderRateCell, EncoderRateMeasurement]):
    info = EXPERIMENTS["encoder-rate"]
    about = (
        "The mean of the best posterior approaches the inverse of the decoder like 1/γ², so that the squared error of "
        "decoded means has a slope of -2 in γ² on logarithmic axes; trained encoders show about -1, here and in the "
        "paper. The error of a trained encoder has two parts: that of the best posterior means, and the distance of "
        "the encoder from them. The first falls with a slope of -2, the second is what training leaves. Three sizes "
        "are compared: networks of growing width, trained for growing times, at equal γ²."
    )
    quick = EncoderRateSettings(
        seeds=2,
        samples=8_000,
        epochs=8,
        patience=1_000,
        batch_size=128,
        learning_rate=5e-3,
        decay="cosine",
        precision_start=1e2,
        precisions=(1e2, 1e3, 1e4),
        exact_points=8,
    )
    laptop = replace(quick, seeds=7, samples=20_000, epochs=5, exact_points=10)
    paper = replace(laptop, seeds=20, samples=60_000, epochs=20, units=(10, 30, 100), exact_points=50)
    cell_type = EncoderRateCell
    measured_type = EncoderRateMeasurement
    claim_specs: ClaimSpecs[EncoderRateResult, EncoderRateSettings] = (
        ClaimSpec(
            sentence="The best mean encodings of the trained decoders have a squared error of slope -2 in γ².",
            source=f"{PAPER}, Prop. 4; the largest networks",
            measure=slopes(exact, largest),
            criterion=Bound("slope, γ² from 1e2 to 1e4,", within(-2, 0.1), over="seeds", exact=True),
            robust_over=(0.05, 0.1, 0.2),
        ),
        *(
            ClaimSpec(
                sentence=f"The trained slope comes closer to -2 from the {names} networks and training.",
                source=f"{PAPER}, Fig. 2 right; beyond the paper: what the trained rate depends on",
                measure=growth(size),
                criterion=PairedDifference(
                    "distance of the slope from -2", "smaller size", "larger size", 0.05, statistic="mean", over="seeds"
                ),
                family="growth",
                robust_over=(0.0, 0.05, 0.1, 0.2),
            )
            for size, names in ((1, "small to the medium"), (2, "medium to the large"))
        ),
        *(
            ClaimSpec(
                sentence=f"With the largest networks the trained slope is -2 {words}.",
                source=f"{PAPER}, Fig. 2 right; beyond the paper",
                measure=slopes(trained, largest, highest),
                criterion=Bound(f"slope, {words},", within(-2, 0.2), statistic="mean", over="seeds"),
                family="rate",
                robust_over=(0.1, 0.2, 0.3, 0.5),
            )
            for words, highest in (("from γ² = 1e2 to 1e3", 1e3), ("from γ² = 1e2 to 1e4", 1e4))
        ),
        ClaimSpec(
            sentence="What stops it is the distance of the encoder from the best means, which falls more slowly.",
            source="Beyond the paper: parts of the error of the largest networks",
            measure=flatter,
            criterion=Bound("slope of the encoder's error minus that of the best means", above(0.5), "mean", "seeds"),
            robust_over=(0.2, 0.5, 1.0),
        ),
    )

    def cells(self, settings: EncoderRateSettings) -> list[EncoderRateCell]:
        return [
            EncoderRateCell(size, precision, seed)
            for size in range(len(settings.units))
            for precision in settings.precisions
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: EncoderRateCell) -> int:
        return cell.size

    def training_of(self, cell: EncoderRateCell, settings: EncoderRateSettings) -> EncoderRateSettings:
        epochs = settings.epochs * settings.lengths[cell.size]
        steps = epochs * max(1, int(0.7 * settings.samples) // settings.batch_size)
        return replace(settings, epochs=epochs, precision_hold=steps // 10, precision_warmup=steps // 4)

    def member(self, cell: EncoderRateCell, data_index: int, settings: EncoderRateSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)

    def model(self, cell: EncoderRateCell, settings: EncoderRateSettings) -> VAE:
        units = settings.units[cell.size]
        return VAE.mlp(DIM, DIM, hidden=(units, units))

    def data(self, cell: EncoderRateCell, settings: EncoderRateSettings) -> FactorData:
        mixing = OrthogonalMLP(DIM, layers=3, seed=cell.seed)
        return mixed_sources(mixing, Normal(), samples=settings.samples, seed=cell.seed)

    def measure(
        self, cell: EncoderRateCell, member: Member, data: FactorData, settings: EncoderRateSettings
    ) -> EncoderRateMeasurement:
        x = data.observations.test
        means, _ = member.encode(x)
        few, mean = x[: settings.exact_points], means[: settings.exact_points]
        best = theory.project(member.decode, few, precision=cell.precision, start=mean)
        decoded, kept = member.decode(best.mean), best.converged
        return EncoderRateMeasurement(
            trained_error=float((x - member.decode(means)).square().mean()),
            exact_error=float((few - decoded)[kept].square().mean()),
            encoder_error=float((member.decode(mean) - decoded)[kept].square().mean()),
            exact_converged=float(kept.double().mean()),
        )

    def figures(self, results: Results, settings: EncoderRateSettings) -> list[ReportFigure]:
        sizes = sorted({r.cell.size for r in results})
        drawn, axes = figures.row_of_panels(len(sizes))
        for axis, size in zip(axes, sizes, strict=True):
            by_precision = grouped(
                sorted((r for r in results if r.cell.size == size), key=lambda r: r.cell.precision),
                lambda r: r.cell.precision,
            )
            for index, (label, value) in enumerate(
                (("trained", trained), ("best means", exact), ("encoder to best means", own))
            ):
                values = [[value(r.measured) for r in group] for group in by_precision.values()]
                figures.plot_median_and_range(axis, list(by_precision), values, label=label, dashed=index > 0)
                if value is exact:
                    figures.reference_slope(axis, list(by_precision), [median(v) for v in values], power=-2.0)
            title = f"{settings.units[size]} units, {settings.lengths[size] * settings.epochs} epochs"
            figures.format_axis(
                axis, title=title, x="decoder precision γ²", y="mean squared error", legend=size == sizes[0]
            )
        caption = (
            "The squared error of decoded mean encodings: of the trained encoder, of the best posterior means for the "
            "same decoder, and the distance of the one from the other. Lines are medians over seeds, bands the range."
        )
        return [ReportFigure("encoder_rate", drawn, caption)]

    def tables(self, results: Results, settings: EncoderRateSettings) -> list[ReportTable]:
        rows = []
        for size in sorted({r.cell.size for r in results}):
            columns = {
                "slope trained": _slopes(results, trained, size),
                "from 1e2 to 1e3": _slopes(results, trained, size, 1e3),
                "slope of the best means": _slopes(results, exact, size),
                "slope of the encoder's distance": _slopes(results, own, size),
            }
            name = f"{settings.units[size]} units, {settings.lengths[size] * settings.epochs} epochs"
            rows.append({"size": name} | {k: median(list(v.values())) if v else None for k, v in columns.items()})
        return [ReportTable("Medians over seeds of slopes in γ² from 1e2 to 1e4", rows)]


EXPERIMENT = EncoderRate()
