"""A preflight as one self-contained page: what to do first, then why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from vaescope.forecast.drawings import drawings
from vaescope.report.figures import svg
from vaescope.report.page import number, render, versions

if TYPE_CHECKING:
    from vaescope.forecast.result import Preflight

VERDICTS = {
    None: "No problems found.",
    "note": "No problems found; see the notes.",
    "warning": "Read the warnings before you train.",
    "error": "Repair the data before you train.",
}
PIXELS = 96  # per inch of figure width, at most
GLOSSARY = {
    "λ": "Eigenvalues of the covariance: the variance of the data along its principal axes, largest first.",
    "γ²": "Precision: 1 / variance of the decoder. A squared error is multiplied by γ²/2.",
    "β": "What the KL is multiplied by in the loss; 1 is the ELBO.",
    "β/γ²": "All that matters for which latents are used: latent i of a linear VAE is used exactly if λ is larger.",
    "collapse": "No latent differs from its prior, and the decoder ignores them.",
    "KL": "Information in the code of a sample, in nats; ½ log(λγ²/β) for a latent of a linear VAE.",
    "stands out": "Larger than the largest eigenvalue of noise would be, at the 99.5 % quantile.",
    "intrinsic dimension": "Numbers needed to locate a sample on the curved surface on which the data lie.",
}


def notebook_frame(page: str) -> str:
    """A page inside a notebook, with its own styles."""
    return str(Markup('<iframe srcdoc="{}" style="width: 100%; height: 50rem; border: 0"></iframe>').format(page))


def html(found: Preflight) -> str:
    """The page; text from users is escaped."""
    rows = found.summary()
    pictures = [
        (name, Markup(svg(figure)), caption, round(PIXELS * figure.get_figwidth()))
        for name, figure, caption in drawings(found)
    ]
    return render(
        "preflight.html",
        found=found,
        verdict=VERDICTS[found.worst],
        facts=facts(found),
        drawings=pictures,
        columns=list(rows[0]) if rows else [],
        rows=rows,
        glossary=GLOSSARY,
        versions=versions(),
    )


def facts(found: Preflight) -> list[tuple[str, str]]:
    """Single numbers with their labels; what to set first."""
    recommended = found.recommended
    chosen = [
        ("latents", str(recommended.latent_dim)),
        ("likelihood", recommended.likelihood),
        ("scaling", recommended.scaling),
    ]
    if recommended.precision is not None:
        chosen.append(("precision γ², at the start", number(recommended.precision)))
    low, high = recommended.beta
    chosen += [
        ("β that keeps the latents needed", f"{low:.3g} to {high:.3g}"),
        ("β that collapses everything", f"from {recommended.collapse_beta:.3g}"),
        ("batch size, epochs", f"{recommended.batch_size}, {recommended.epochs}"),
    ]
    if found.dimension is not None:
        dimension = found.dimension
        chosen.append(("intrinsic dimension", f"{dimension.value:.1f} ({dimension.low:.1f}–{dimension.high:.1f})"))
    return chosen
