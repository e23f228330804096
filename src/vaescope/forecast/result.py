"""`Preflight`: what was found out about the data, as numbers, JSON and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaescope import validation
from vaescope.findings import Finding, worst_severity
from vaescope.forecast import phase
from vaescope.forecast.confirm import Confirmation
from vaescope.forecast.conventions import Convention
from vaescope.forecast.dimension import IntrinsicDimension
from vaescope.forecast.kinds import DataKind
from vaescope.forecast.page import html, notebook_frame
from vaescope.forecast.recommend import Recommendation
from vaescope.forecast.snippets import snippets
from vaescope.forecast.spectrum import Spectrum
from vaescope.plain import to_plain
from vaescope.runs.files import json_data, write_json, write_text

SUMMARY_ROWS = 50


@dataclass(frozen=True, eq=False)
class Preflight:
    """What the data are, how many latents they feed, and what to start with.

    `active`, `kl`, `explained` and `collapse_variance` are about the data as given; `recommended` and `summary` are
    about the data after the recommended scaling.
    """

    name: str
    """What the report calls the data."""
    rows: int
    """Samples that were analysed: complete ones, or all if missing values were replaced."""
    columns: int
    """Columns that were analysed: without those that are mostly missing."""
    kind: DataKind
    """What the values are, and how to model them."""
    spectrum: Spectrum
    """Of the data as given; under a Bernoulli likelihood of columns divided by √(p(1 - p))."""
    scaled_spectrum: Spectrum
    """After the recommended scaling; the same if there is none."""
    dimension: IntrinsicDimension | None
    """Of the scaled data; None for fewer than 50 different samples."""
    recommended: Recommendation
    """Settings to start with."""
    conventions: list[Convention]
    """Common ways to write the loss, and what each does to the scaled data."""
    findings: list[Finding]
    """Most severe first."""
    latent_dim: int | None = None
    """Number of latents that was given; None if it was left open."""
    confirmation: Confirmation | None = None
    """Trained models beside their predictions; None unless models were trained."""

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None."""
        return worst_severity(self.findings)

    @property
    def collapse_variance(self) -> float:
        """λ_1: all latents collapse if β/γ² is at least this."""
        return phase.collapse_variance(self.spectrum.eigenvalues)

    def active(self, precision: float = 1.0, beta: float = 1.0, *, least_kl: float | None = None) -> int:
        """How many latents are used: #{λ_i > β/γ²}, at most `latent_dim`; corrected if models were trained.

        Exact for linear decoders. Curved data use at most their dimension at the largest scale (`dimension.limit`), and
        of them latents that carry at least 0.15 nats: with less, a latent gains so little that training seldom finds
        it. Under a Bernoulli likelihood `precision` is a weight on the log-likelihood.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
            least_kl: nats that a latent must carry to count, instead of 0.15 for curved data and 0 for others.
        """
        least = None if least_kl is None else validation.number("least_kl", least_kl, minimum=0.0)
        used = phase.expected_count(
            self.spectrum.eigenvalues,
            _variance(precision, beta),
            self.latent_dim,
            limit=None if self.dimension is None else self.dimension.limit,
            least_kl=least,
        )
        return used if self.confirmation is None else self.confirmation.corrected(used)

    def kl(self, precision: float = 1.0, beta: float = 1.0) -> float:
        """KL of the code of a linear VAE, in nats per sample.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
        """
        return phase.total_kl(self.spectrum.eigenvalues, _variance(precision, beta), self.latent_dim)

    def explained(self, precision: float = 1.0, beta: float = 1.0) -> float:
        """Share of the variance of x that reconstructions of a linear VAE explain.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
        """
        return phase.explained_share(self.spectrum.eigenvalues, _variance(precision, beta), self.latent_dim)

    @property
    def code(self) -> dict[str, str]:
        """The recommended settings as code for PyTorch, pythae and `vs.fit`."""
        return snippets(self.recommended, self.columns)

    def summary(self) -> list[dict[str, object]]:
        """A row per latent: the β/γ² below which it is used, and what is explained up to it; scaled data."""
        spectrum, variance = self.scaled_spectrum, 1 / (self.recommended.precision or 1.0)
        shown = min(len(spectrum.eigenvalues), SUMMARY_ROWS)
        held = np.cumsum(spectrum.eigenvalues) / max(spectrum.total, 1e-300)
        kl = phase.latent_kl(spectrum.eigenvalues, variance)
        return [
            {
                "latent": k + 1,
                "used if β/γ² <": float(spectrum.eigenvalues[k]),
                "variance held": float(held[k]),
                "KL at start": float(kl[k]),
                "stands out": "yes" if k < spectrum.signal else "no",
            }
            for k in range(shown)
        ]

    def to_data(self) -> dict[str, object]:
        """Everything as JSON data."""
        spectrum = self.scaled_spectrum
        data = {
            "name": self.name,
            "rows": self.rows,
            "columns": self.columns,
            "kind": self.kind,
            "collapse_variance": self.collapse_variance,
            "eigenvalues": self.spectrum.eigenvalues.tolist(),
            "scaled": {
                "eigenvalues": spectrum.eigenvalues.tolist(),
                "noise": spectrum.noise,
                "signal": spectrum.signal,
            },
            "dimension": self.dimension,
            "recommended": self.recommended,
            "conventions": self.conventions,
            "findings": self.findings,
            "confirmation": self.confirmation,
            "code": self.code,
        }
        return {key: json_data(to_plain(value)) for key, value in data.items()}

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON.

        Args:
            path: the file.
        """
        write_json(Path(path), self.to_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that loads nothing from the network.

        Args:
            path: the file.
        """
        write_text(Path(path), html(self))
        return Path(path)

    def _repr_html_(self) -> str:
        return notebook_frame(html(self))

    def __repr__(self) -> str:
        dimension = "" if self.dimension is None else f", intrinsic dimension {self.dimension.value:.1f}"
        lines = [f"Preflight of {self.name}: {self.rows} x {self.columns}, {self.kind.name}{dimension}"]
        lines += [f"  collapse at β/γ² = {self.collapse_variance:.4g}"]
        lines += [f"  {key}: {sentence}" for key, sentence in self.recommended.sentences.items()]
        lines += [f"  {f.severity}: {f.title} {f.advice}" for f in self.findings]
        return "\n".join(lines)


def _variance(precision: float, beta: float) -> float:
    return validation.number("beta", beta, minimum=0.0) / validation.precision(precision)
