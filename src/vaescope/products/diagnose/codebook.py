"""Diagnosis of a VQ-VAE: which codes of its codebook are used."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from matplotlib.figure import Figure
from torch import Tensor

from vaescope.adapters.quantised import Quantised
from vaescope.analysis.encoding import check_samples, spread_rows
from vaescope.analysis.samples import as_arrays
from vaescope.core import validation
from vaescope.products.diagnose.diagnose import LatentTable
from vaescope.products.diagnose.page import FOLDED, GLOSSARY, PIXELS, VERDICTS, Glosses, anchor
from vaescope.report import figures
from vaescope.report.budget import Progress, to_stderr
from vaescope.report.figures import svg
from vaescope.report.findings import Finding, by_severity, worst_severity
from vaescope.report.page import render, versions
from vaescope.report.wording import as_text
from vaescope.runs.files import json_data, write_json, write_text


class Chart(NamedTuple):
    name: str
    figure: Figure
    caption: str

    def drawn(self) -> tuple[Markup, str, int]:
        """The figure as the page takes it: SVG, caption and width."""
        return Markup(svg(self.figure)), self.caption, round(PIXELS * self.figure.get_figwidth())


@dataclass(frozen=True, eq=False, repr=False)
class Reported(ABC):
    """A diagnosis without latents that have posteriors."""

    name: str
    findings: list[Finding]
    samples: int
    skipped: dict[str, str]

    @abstractmethod
    def summary(self) -> LatentTable:
        """The main table."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""

    @abstractmethod
    def charts(self) -> Sequence[Chart]:
        """Figures."""

    @abstractmethod
    def numbers(self) -> dict[str, object]:
        """Everything that was measured."""

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None."""
        return worst_severity(self.findings)

    def to_data(self) -> dict[str, object]:
        """Findings and numbers as JSON data."""
        head = {"name": self.name, "samples": self.samples, "worst": self.worst, "skipped": self.skipped}
        data = head | {"findings": [finding.to_data() for finding in self.findings]} | self.numbers()
        return {key: json_data(value) for key, value in data.items()}

    def to_json(self, path: str | Path) -> Path:
        """Write findings and numbers."""
        write_json(Path(path), self.to_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that loads nothing from the network."""
        write_text(Path(path), self._html())
        return Path(path)

    def _html(self) -> str:
        rows = self.summary()
        words = ("±",)
        return render(
            "diagnosis.html",
            name=self.name,
            samples=self.samples,
            verdict=VERDICTS[self.worst],
            findings=self.findings,
            facts=self.facts(),
            columns=list(rows[0]),
            rows=rows,
            folded=FOLDED,
            legend="How often each code was chosen.",
            unit="codes",
            glossary=[(word, anchor(word), GLOSSARY[word]) for word in words],
            gloss=Glosses(set(GLOSSARY) - set(words)),
            pictures={},
            charts={chart.name: chart.drawn() for chart in self.charts()},
            bounds=[],
            scores=[],
            identified=[],
            skipped=self.skipped,
            about={"samples": str(self.samples)},
            versions=versions(),
        )

    def __repr__(self) -> str:
        return as_text(self.name, self.findings, self.skipped)


SAMPLES = 2000  # that are encoded, at most
BATCH = 64
UNUSED = 0.5  # share of codes that are never chosen
COLLAPSED = 0.05  # perplexity over the number of codes
ENOUGH = 20  # codes chosen per code of the codebook, on average, below which unused ones are no evidence


@dataclass(frozen=True, eq=False)
class CodebookUsage:
    """How often each code was chosen."""

    counts: Int[Tensor, " K"]
    positions: int
    """Codes per sample."""
    explained: float | None
    """Share of the variance of x that reconstructions explain."""

    @property
    def shares(self) -> Float[Tensor, " K"]:
        return self.counts.double() / self.counts.sum()

    @property
    def perplexity(self) -> float:
        """exp of the entropy of the shares: the number of equally frequent codes with the same entropy."""
        return float(torch.special.entr(self.shares).sum().exp())

    @property
    def dead(self) -> int:
        """Codes that were never chosen."""
        return int((self.counts == 0).sum())

    @property
    def bits(self) -> float:
        """Entropy of the codes of a sample, in bits, if positions were independent."""
        return self.positions * math.log2(self.perplexity)


@dataclass(frozen=True, eq=False, repr=False)
class CodebookDiagnosis(Reported):
    """The findings about a VQ-VAE."""

    usage: CodebookUsage

    def summary(self) -> LatentTable:
        """A row per code, the most frequent first; prints as a table."""
        order = self.usage.counts.argsort(descending=True).tolist()
        return LatentTable(
            {"code": k, "count": int(self.usage.counts[k]), "share": float(self.usage.shares[k])} for k in order
        )

    def facts(self) -> list[tuple[str, str]]:
        usage, size = self.usage, len(self.usage.counts)
        found = [
            ("codes in use", f"{size - usage.dead} of {size}"),
            ("perplexity", f"{usage.perplexity:.4g} of {size}"),
            ("codes per sample", str(usage.positions)),
            ("bits per sample, at most", f"{usage.bits:.4g}"),
        ]
        return found if usage.explained is None else [*found, ("variance explained", f"{usage.explained:.1%}")]

    def charts(self) -> list[Chart]:
        caption = "Share of the codes, the most frequent first; the line is an even use of the codebook."
        return [Chart("usage", _usage_figure(self.usage), caption)]

    def numbers(self) -> dict[str, object]:
        usage = self.usage
        return {
            "codebook": {
                "size": len(usage.counts),
                "dead": usage.dead,
                "perplexity": usage.perplexity,
                "counts": usage.counts.tolist(),
                "explained": usage.explained,
            }
        }


def diagnose_codebook(
    model: Quantised, x: object, *, name: str | None = None, progress: Progress | None = to_stderr
) -> CodebookDiagnosis:
    """Find out how much of its codebook a VQ-VAE uses, and whether it reconstructs.

    Args:
        model: a model from `vs.adapters.from_codebook`.
        x: samples, in anything that `vs.diagnose` reads.
        name: what the report calls the model.
        progress: called with lines that say what is being done; None for silence.

    >>> from vaescope.adapters import from_codebook
    >>> model = from_codebook(lambda x: x.argmax(1), codebook_size=4)
    >>> found = diagnose_codebook(model, torch.eye(4).repeat(50, 1), progress=None)
    >>> round(found.usage.perplexity, 6), found.findings
    (4.0, [])
    """
    samples = check_samples(as_arrays(x))[0]
    rows = spread_rows(len(samples), SAMPLES)
    if progress is not None:
        progress(f"diagnose: encoding {len(rows)} samples")
    inputs = validation.tensor(samples[rows], "x")
    indices = torch.cat([model.encode(batch) for batch in inputs.split(BATCH)])
    counts = torch.bincount(indices.flatten(), minlength=model.codebook_size)
    usage = CodebookUsage(counts, indices.shape[1], _explained(model, inputs))
    skipped = {} if usage.explained is not None else {"reconstruction": "no function was given; pass reconstruct="}
    return CodebookDiagnosis(name or model.name, by_severity(judge_codebook(usage)), len(rows), skipped, usage)


def _explained(model: Quantised, x: Tensor) -> float | None:
    parts = [model.reconstruct(batch) for batch in x.split(BATCH)]
    outputs = [part for part in parts if part is not None]
    if not outputs or torch.cat(outputs).shape != x.flatten(1).shape:
        return None
    flat, output = x.flatten(1).double(), torch.cat(outputs).double()
    total = float((flat - flat.mean(0)).square().sum())
    return 1 - float((flat - output).square().sum()) / total if total > 0 else None


def judge_codebook(usage: CodebookUsage) -> list[Finding]:
    """Findings from the use of a codebook.

    >>> [f.code for f in judge_codebook(CodebookUsage(torch.tensor([1000] + 511 * [0]), 4, 0.5))]
    ['codebook-collapsed']
    """
    size, found = len(usage.counts), []
    if usage.explained is not None and usage.explained < -0.1:
        found.append(
            Finding(
                "reconstruction",
                "error",
                "Reconstructions are worse than the mean of x.",
                f"The squared error is {1 - usage.explained:.3g} times the variance of x.",
                "Check the preprocessing of x, and that all weights were loaded.",
                "model.load_state_dict(torch.load(file, weights_only=True), strict=True)",
            )
        )
    enough = int(usage.counts.sum()) >= ENOUGH * size
    if usage.perplexity < max(2.0, COLLAPSED * size):
        found.append(
            Finding(
                "codebook-collapsed",
                "error",
                "Almost all samples have the same few codes.",
                f"Perplexity {usage.perplexity:.3g} of {size} codes.",
                "Restart unused codes at encoder outputs, update the codebook by moving averages, lower the commitment "
                "weight or use fewer dimensions per code.",
                "codebook.data[unused] = encoder_outputs[torch.randperm(len(encoder_outputs))[: unused.sum()]]",
            )
        )
    elif enough and usage.dead > UNUSED * size:
        found.append(
            Finding(
                "dead-codes",
                "warning",
                f"{usage.dead} of {size} codes are never used.",
                f"{int(usage.counts.sum())} codes of these samples were counted; perplexity {usage.perplexity:.3g}.",
                "Use a smaller codebook, or restart unused codes at encoder outputs.",
                f"codebook_size = {2 ** math.ceil(math.log2(max(2, size - usage.dead)))}",
            )
        )
    return found


def _usage_figure(usage: CodebookUsage) -> Figure:
    shares = np.sort(usage.shares.numpy())[::-1]
    figure, (axis,) = figures.row_of_panels(1, width=8.0, height=2.8)
    axis.fill_between(np.arange(len(shares)), shares, step="mid", color=figures.COLOURS[0], alpha=0.7)
    axis.axhline(1 / len(shares), color="#222", lw=1)
    axis.set_xlabel("code, by frequency")
    axis.set_ylabel("share")
    axis.set_ylim(bottom=0)
    return figure
