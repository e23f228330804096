"""Why the ELBO disentangles, in one picture: rotate the latents of a trained model and watch what changes.

Under a prior N(0, I) a model whose latents are rotated has the same likelihood, and another ELBO, because its
posteriors have to stay diagonal.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.models import VAE, Member
from vaescope.orthogonality import od_distances
from vaescope.orthogonality.od_score import relative
from vaescope.papers.claims import Claim, claim_over
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.report import figures
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.training import MemberSpec

PRECISION = 100.0
RADIUS, ANGLE = 0.4, 0.8  # deviations of the logarithm of the radius and of the angle, in radians
RISE = 1.5  # per radian
VIEW = ((0.0, 1.0), (0.0, 0.3), (1.0, 0.0))  # of the three coordinates, on paper
NEAR = 10.0  # degrees within which a peak is at the trained axes
FLAT = 1e-6  # nats
FOLLOWS = 0.1  # nats by which the gap may differ from the contrast
LINES, POINTS = 7, 41  # of the grid that is drawn
TICKS = (-45, -30, -15, 0, 15, 30, 45)
CURVES = {
    "log_likelihood": ("log p(x)", "nats"),
    "elbo": ("ELBO*", "nats"),
    "contrast": ("c_IMA", "nats"),
    "mig": ("MIG", ""),
    "od": ("OD-Score", ""),
}


@dataclass(frozen=True)
class RotationSettings(TrainedSettings):
    exact_points: int = 100
    step: float = 9.0
    """Degrees between two rotations."""

    @property
    def angles(self) -> list[float]:
        """An eighth of a turn either way, the trained axes in the middle: after a quarter all curves return."""
        count = round(45 / self.step)
        return [self.step * k for k in range(-count, count + 1)]


class RotationExperiment(TrainedExperiment):
    name = "rotation"
    title = "Rotate the codes: the likelihood does not notice, the ELBO does"
    source = "the argument of Reizinger et al. 2022 and Bhowal et al. 2024 (§1), in one picture"
    about = (
        "Points on a surface like a spiral staircase, with two independent factors: how far out they are, and how far "
        "up. A VAE with two latents is trained; then its latent space is rotated by θ: codes by R(θ), the decoder by "
        "its inverse. At every θ log p(x) is integrated anew and the best diagonal Gaussian posterior of every point "
        "is found, which gives the ELBO that a perfect encoder would have. The prior N(0, I) does not change under "
        "rotation, so the likelihood cannot tell the axes; diagonal posteriors can. A quarter turn exchanges the "
        "latents, and all curves begin anew."
    )
    profiles: ClassVar = {
        "quick": RotationSettings(
            seeds=3, samples=6_000, epochs=100, patience=100, learning_rate=3e-3, batch_size=128, exact_points=60
        ),
        "paper": RotationSettings(
            seeds=10, samples=60_000, epochs=200, patience=30, learning_rate=1e-3, exact_points=1000, step=3.0
        ),
    }

    def cells(self, settings: RotationSettings) -> list[Cell]:
        return [{"seed": seed} for seed in range(settings.seeds)]

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        return MemberSpec(cell["seed"], precision=PRECISION, data=data)

    def model(self, cell: Cell, settings: Any) -> VAE:
        return VAE.mlp(3, 2, hidden=(50, 50))

    def data(self, cell: Cell, settings: RotationSettings) -> SyntheticData:
        generator = randomness.generator(cell["seed"], "sources")
        sources = torch.randn(settings.samples, 2, generator=generator, dtype=torch.float64)
        noise = torch.randn(settings.samples, 3, generator=generator, dtype=torch.float64)
        x = helicoid(sources) + noise / PRECISION**0.5
        parts = split(x)
        return SyntheticData(parts, sources[-len(parts.test) :])

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: RotationSettings) -> Row:
        x = data.observations.test.double()
        mean = member.encode(x)[0].detach()
        points, codes = x[: settings.exact_points], mean[: settings.exact_points]
        J = theory.jacobian(member.decode, codes)
        found: dict[str, list[float]] = {name: [] for name in CURVES if name != "od"}
        turned = []
        for angle in settings.angles:
            R = rotation(angle)
            decoder = rotated(member.decode, R)
            start = codes @ R.mT
            exact = theory.log_marginal(decoder, points, precision=PRECISION, start=start)
            best = theory.project(decoder, points, precision=PRECISION, start=start)
            turned.append(J @ R.mT)
            found["log_likelihood"].append(float(exact.value.mean()))
            found["elbo"].append(float(best.elbo.mean()))
            found["contrast"].append(float(theory.contrast_of_matrix(turned[-1]).mean()))
            found["mig"].append(metrics.mig(mean @ R.mT, data.test_sources).score)
        return {
            "angles": settings.angles,
            **found,
            "od": _od(turned),
            "shown": _on_paper(x[:400]).float().flatten().tolist(),
            "grids": _grids(member, settings.angles),
        }

    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        done = [row for row in rows if row["status"] == "finished"]
        return [
            claim_over(
                [float(np.ptp(row["log_likelihood"])) for row in done],
                pick=max,
                holds=lambda v: v <= FLAT,
                sentence="Rotating the latents does not change the likelihood.",
                source="the rotational symmetry of N(0, I)",
                demand=f"log p(x), integrated anew at every angle, varies by at most {FLAT:g} nats in every member",
            ),
            _peak(done, "elbo", 1, "The ELBO of the best diagonal posterior is highest at the trained axes."),
            claim_over(
                [_at(row, "elbo", 0.0) - _at(row, "elbo", 45.0) for row in done],
                pick=min,
                holds=lambda v: v >= 0.05,
                sentence="At 45° the ELBO is clearly worse.",
                source="Bhowal et al. 2024, §1",
                demand="at least 0.05 nats below that at 0°, in every member",
            ),
            claim_over(
                [_misfit(row) for row in done],
                pick=max,
                holds=lambda v: v <= FOLLOWS,
                sentence="What the ELBO loses is the contrast: log p(x) - ELBO* = c_IMA, at every angle.",
                source="Reizinger et al. 2022, Theorem 1",
                demand=f"mean gap within {FOLLOWS:g} nats of the mean contrast at every angle of every member",
                note=f"γ² = {PRECISION:g}: the theorem is about the limit.",
            ),
            _peak(done, "contrast", -1, "The contrast is lowest at the trained axes."),
            _peak(done, "od", -1, "The OD-Score is lowest at the trained axes."),
            _peak(done, "mig", 1, "Codes are most disentangled (MIG) at the trained axes."),
        ]

    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {"rotation": (_drawn(done), _CAPTION)} if done else {}

    def animations(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[bytes, str]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {"rotating": (_animated(done[0]), _CAPTION_ANIMATION)} if done else {}

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {
            "Medians over members": [
                {"θ": f"{angle:g}°"}
                | {CURVES[name][0]: float(np.median([_at(row, name, angle) for row in done])) for name in CURVES}
                for angle in (0.0, 9.0, 18.0, 27.0, 36.0, 45.0)
                if done and angle in done[0]["angles"]
            ]
        }


# the model, turned ----------------------------------------------------------------------------


def helicoid(sources: Float[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
    """Distance from the axis and height along it from independent normal sources: lines that cross at right angles.

    >>> theory.ima_contrast(helicoid, torch.randn(3, 2).double()).round(decimals=9)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    radius, angle = (RADIUS * sources[:, 0]).exp(), ANGLE * sources[:, 1]
    return torch.stack([radius * angle.cos(), radius * angle.sin(), RISE * angle], dim=1)


def _on_paper(x: Float[Tensor, "*N 3"]) -> Float[Tensor, "*N 2"]:
    return x @ torch.tensor(VIEW, dtype=x.dtype)


def rotation(degrees: float) -> Float[Tensor, "2 2"]:
    """The rotation by this angle.

    >>> rotation(90.0).round().tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def rotated(decoder: Callable[[Tensor], Tensor], R: Float[Tensor, "2 2"]) -> Callable[[Tensor], Tensor]:
    """The decoder of latents u = R z."""
    return lambda u: decoder(u @ R.to(u))


def _od(turned: Sequence[Float[Tensor, "P n d"]]) -> list[float]:
    """The OD-Score at every angle, relative to the worst angle, point by point."""
    by_point = torch.stack(list(turned), dim=1)
    scores = [relative(torch.from_numpy(od_distances(list(matrices)))) for matrices in by_point]
    return [float(v) for v in torch.stack(scores).mean(0)]


def _grids(member: Member, angles: Sequence[float]) -> bytes:
    """Lines along which one rotated latent varies, seen in the data: (angle, latent, line, point, 2)."""
    along, across = torch.linspace(-2.2, 2.2, POINTS), torch.linspace(-2.0, 2.0, LINES)
    first = torch.stack(torch.meshgrid(across, along, indexing="ij"), dim=-1)
    grid = torch.stack([first.flip(-1), first]).double()
    drawn = [_on_paper(rotated(member.decode, rotation(a))(grid.flatten(0, -2)).detach()) for a in angles]
    return torch.stack(drawn).float().numpy().tobytes()


# what it says ---------------------------------------------------------------------------------


def _at(row: Row, name: str, angle: float) -> float:
    return float(row[name][row["angles"].index(angle)])


def _turn(row: Row, name: str, sign: int) -> float:
    """The angle of the best value."""
    return float(row["angles"][max(range(len(row["angles"])), key=lambda k: sign * row[name][k])])


def _peak(rows: Sequence[Row], name: str, sign: int, sentence: str) -> Claim:
    turns = [_turn(row, name, sign) for row in rows]
    return claim_over(
        [abs(turn) for turn in turns],
        pick=max,
        holds=lambda v: v <= NEAR,
        sentence=sentence,
        source="beyond the papers, which argue it in words",
        demand=f"within {NEAR:g}° of them, in every member",
        note="Best angles: " + ", ".join(f"{turn:+g}°" for turn in turns) + "." if turns else "",
    )


def _misfit(row: Row) -> float:
    gap = np.subtract(row["log_likelihood"], row["elbo"])
    return float(np.abs(gap - row["contrast"]).max())


# pictures -------------------------------------------------------------------------------------


def _drawn(rows: Sequence[Row]) -> Figure:
    figure, axes = figures.row_of_panels(4, width=3.5, height=3.9)
    angles = rows[0]["angles"]
    _draw_bounds(axes[0], rows, angles)
    for axis, name in zip(axes[1:], ("contrast", "mig", "od"), strict=True):
        values = [[row[name][k] for row in rows] for k in range(len(angles))]
        figures.spread(axis, angles, values, label=CURVES[name][0])
        unit = CURVES[name][1]
        y = f"{CURVES[name][0]} ({unit})" if unit else CURVES[name][0]
        figures.finish(axis, title=_TITLES[name], x="rotation θ (degrees)", y=y, log="", legend=False)
        axis.set_xticks(TICKS)
        axis.set_ylim(bottom=0)
    figures.shared_legend(figure, axes[0])
    return figure


def _draw_bounds(axis: Axes, rows: Sequence[Row], angles: Sequence[float]) -> None:
    """Relative to every member's likelihood, since members differ in it."""

    def above(name: str) -> list[list[float]]:
        return [[row[name][k] - row["log_likelihood"][angles.index(0.0)] for row in rows] for k in range(len(angles))]

    figures.spread(axis, angles, above("log_likelihood"), label="log p(x)")
    figures.spread(axis, angles, above("elbo"), label="ELBO*")
    minus = [[-row["contrast"][k] for row in rows] for k in range(len(angles))]
    axis.plot(angles, np.median(minus, axis=1), color="#6b7680", lw=1.4, ls=":", label="log p(x) - c_IMA")
    figures.finish(
        axis,
        title="Likelihood and ELBO",
        x="rotation θ (degrees)",
        y="nats, relative to log p(x)",
        log="",
        legend=False,
    )
    axis.set_xticks(TICKS)


def _animated(row: Row) -> bytes:
    """A GIF: the latents' lines in the data as they turn, beside the curves."""
    angles = row["angles"]
    inside = list(range(len(angles)))
    grids = np.frombuffer(row["grids"], dtype=np.float32).reshape(len(angles), 2, LINES, POINTS, 2)
    shown = np.reshape(row["shown"], (-1, 2))
    order = [*inside, *reversed(inside[1:-1])]
    frames = {k: _frame(row, grids[k], shown, k) for k in inside}
    images = [frames[k] for k in order]
    durations = [900 if angles[k] == 0 else 90 for k in order]
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    return buffer.getvalue()


def _frame(row: Row, grid: np.ndarray, shown: np.ndarray, k: int) -> Image.Image:
    angles = row["angles"]
    figure, (left, right) = figures.row_of_panels(2, width=4.2, height=3.6)
    left.plot(*shown.T, ".", color="#b8c0c7", markersize=2.5)
    for latent, colour in enumerate(figures.COLOURS[:2]):
        for line in grid[latent]:
            left.plot(*line.T, color=colour, lw=1.1)
    left.set_aspect("equal")
    left.set_xlim(-4.0, 4.0)
    left.set_ylim(-2.6, 3.6)
    left.set_xticks([])
    left.set_yticks([])
    left.set_title(f"latents rotated by {angles[k]:+.0f}°")
    base = row["log_likelihood"][angles.index(0.0)]
    for name, colour in zip(("log_likelihood", "elbo"), figures.COLOURS[:2], strict=True):
        values = np.subtract(row[name], base)
        right.plot(angles, values, color=colour, label=CURVES[name][0])
        right.plot([angles[k]], [values[k]], "o", color=colour, markersize=7)
    right.set_title("likelihood and ELBO")
    right.set_xlabel("rotation θ (degrees)")
    right.set_ylabel("nats, relative to log p(x)")
    right.set_xticks(TICKS)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.42), ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=48)


_TITLES = {"contrast": "Contrast", "mig": "Disentanglement", "od": "Orthogonality"}
_CAPTION = (
    "A trained model and its rotations, medians and range over members. The likelihood is flat; the ELBO of the best "
    "diagonal posterior peaks where training left the axes, and what it loses elsewhere is the contrast. Codes are "
    "most disentangled there, and columns of the decoder orthogonal."
)
_CAPTION_ANIMATION = (
    "Left: data, and the lines along which one latent varies while the other stands still. At 0° one latent goes out "
    "and the other goes up, at right angles on the surface. Right: what the model thinks of it."
)

EXPERIMENT = RotationExperiment()
