"""The words of reports: verdicts, numbers in sentences, and one glossary for all pages."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

VERDICTS = {
    None: "No issues found.",
    "note": "No issues found; see the notes.",
    "warning": "Read the warnings before you rely on this model.",
    "error": "This model has a serious problem.",
}
GLOSSARY = {
    "latent": "One coordinate of the code z that the encoder gives a sample.",
    "posterior": "q(z|x), the distribution of codes that the encoder gives a sample: mean and variance per latent.",
    "prior": "p(z), the distribution of codes before a sample is seen, usually N(0, I). To generate, draw from it.",
    "nats": "Units of information with the natural logarithm; 1 nat is 1.44 bits.",
    "ELBO": "What training maximises, minus rate and distortion, per sample. It is at most log p(x).",
    "log p(x)": "How probable the model finds a sample. Higher is better; only comparable on the same data and scale.",
    "rate": "KL between posterior and prior, summed over latents: the information that the code of a sample carries.",
    "distortion": "-log p(x|z) of reconstructions: the reconstruction term of the loss, with its constants.",
    "KL": "How far the posterior of a latent is from its prior. Zero: the latent carries no information.",
    "β": "What the KL is multiplied by in the loss. 1 is the ELBO. Only precision / β has an effect on the optimum.",
    "λ": "Eigenvalues of the covariance: the variance of the data along its principal axes, largest first.",
    "γ²": "Precision: 1 / variance of the decoder. A squared error is multiplied by γ²/2.",
    "β/γ²": "All that matters for which latents are used: latent i of a linear VAE is used exactly if λ is larger.",
    "collapse": "No latent differs from its prior, and the decoder ignores them.",
    "precision": "1 / variance of the decoder: 1 for half the summed squared error, 2/n for a mean over n numbers.",
    "Eq. 12": "σ² = 1 / (1 + precision · ‖column‖²), the variance of the best narrow posterior.",
    "gap": "log p(x) - ELBO. Family: what the best posterior of its kind loses. Amortization: what the encoder loses "
    "beyond it.",
    "amortization": "The part of the gap that is due to the encoder.",
    "c_IMA": "How far the columns of the decoder's Jacobian are from orthogonal, in nats; 0 if they are.",
    "column norm": "How far the output moves per unit of a latent.",
    "variance ratio": "Variance of the posterior over that of the prior: near 1 if a latent is not used.",
    "effect": "Squared error added by drawing a latent from its prior, as a share of the variance of x.",
    "active": "A latent with information about every sample. Passive: at the prior. Mixed: for some samples only.",
    "AUC": "How well two sets are distinguished, such as codes and draws from the prior: 0.5 if alike, 1 if always.",
    "Pareto k̂": "How reliable importance sampling is: reliable below 0.7.",
    "identified as": "axis: a latent may be read on its own; subspace: only together with others; none: neither.",
    "simulated x": "z drawn from the prior, x drawn from the decoder at z: z is then an exact sample of p(z|x).",
    "rank": "The share of q(z|x) below the true z. Uniform if q is exact; U-shaped if q is too narrow.",
    "perplexity": "exp of the entropy of the codes: the number of equally frequent codes with the same entropy.",
    "canonical correlation": "Of two sets of latents: 1 for a direction in both, 0 for one that they do not share.",
    "intrinsic dimension": "Numbers needed to locate a sample on the curved surface on which the data lie.",
    "stands out": "Larger than the largest eigenvalue of noise would be, at the 99.5 % quantile.",
    "±": "Two standard errors, everywhere on this page.",
}


def anchor(word: str) -> str:
    """The name of a word's entry in the page.

    >>> anchor("log p(x)")
    'term-log-p-x'
    """
    names = {"β": "beta", "γ²": "gamma2", "λ": "eigenvalue", "±": "plus-minus"}
    spelled = "".join(names.get(part, part) for part in re.split("(β|γ²|λ|±)", word))
    return "term-" + re.sub(r"[^a-z0-9]+", "-", spelled.lower()).strip("-")


@dataclass
class Glosses:
    """Escapes text, links each word of the glossary where it occurs first on a page, and lists the linked words."""

    linked: set[str] = field(default_factory=set)

    def __call__(self, text: object) -> Markup:
        """The text as HTML.

        >>> Glosses()("The ELBO, and the ELBO again")
        Markup('The <a class="term" href="#term-elbo">ELBO</a>, and the ELBO again')
        """
        html = str(escape(str(text)))
        words = sorted((word for word in GLOSSARY if word not in self.linked), key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(word)}s?(?!\w)" for word in words) or "$^"
        return Markup(re.sub(pattern, self._link, html))

    def entries(self) -> list[tuple[str, str, str]]:
        """Word, anchor and meaning of the words that were linked so far."""
        return [(word, anchor(word), meaning) for word, meaning in GLOSSARY.items() if word in self.linked]

    def _link(self, match: re.Match[str]) -> str:
        shown = match.group()
        word = shown if shown in GLOSSARY else shown.removesuffix("s")
        if word in self.linked:
            return shown
        self.linked.add(word)
        return f'<a class="term" href="#{anchor(word)}">{shown}</a>'


def times(factor: float, *, largest: float = 1000.0) -> str:
    """A factor with few digits; beyond `largest` none.

    >>> times(0.02), times(1e40), times(3.21)
    ('1/50 times', 'more than 1000 times', '3.2 times')
    """
    if not math.isfinite(factor) or factor > largest:
        return f"more than {largest:.0f} times"
    if factor < 1 / largest:
        return f"less than 1/{largest:.0f} times"
    return f"{factor:.2g} times" if factor >= 0.5 else f"1/{1 / factor:.0f} times"


def amount(value: float) -> str:
    """A quantity with three digits; absurd ones as such.

    >>> amount(0.01234), amount(1473.2), amount(2e29)
    ('0.0123', '1,470', 'above a million')
    """
    if not math.isfinite(value) or value >= 1e6:
        return "above a million"
    if value < 1e-4:
        return "below 0.0001"
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def interval(value: float, stderr: float, unit: str = "", *, sign: str = "-") -> str:
    """A number with two standard errors, both rounded to the leading digit of the error, never in powers of ten.

    Args:
        value: the number; a millionth and less is zero.
        stderr: its standard error; NaN if it is unknown.
        unit: what follows, after a blank if it needs one.
        sign: "+" to write it before positive numbers.

    >>> interval(-12.3456, 0.0412), interval(3.0, float("nan")), interval(3.11, 6.0), interval(2e-9, 0.0, " nats")
    ('-12.35 ± 0.08', '3', '3 ± 12', '0 nats')
    """
    value = 0.0 if abs(value) < 1e-6 else value
    if not math.isfinite(stderr) or stderr < 1e-6:
        return f"{value:{sign}.4g}{unit}" if abs(value) < 1e4 else f"{value:{sign},.0f}{unit}"
    digits = max(0, min(6, -math.floor(math.log10(2 * stderr))))
    return f"{value:{sign}.{digits}f} ± {2 * stderr:.{digits}f}{unit}"


def span(low: float, high: float, *, digits: int = 2) -> str:
    """Two numbers with a few significant digits; one if they are the same when rounded.

    >>> span(2.91, 2.94), span(2.9, 3.1), span(-1e-9, 0.0)
    ('2.9', '2.9 to 3.1', '0')
    """
    first, last = ("0" if abs(value) < 5e-4 else f"{float(f'{value:.{digits}g}'):g}" for value in (low, high))
    return first if first == last else f"{first} to {last}"


def enumerated(latents: Sequence[int]) -> str:
    """All latents, with runs of three and more as their ends.

    >>> enumerated([0, 1, 2, 3, 7]), enumerated([4, 5]), enumerated([2])
    ('0 to 3 and 7', '4 and 5', '2')
    """
    runs: list[list[int]] = []
    for k in sorted(latents):
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def listed(latents: list[int]) -> str:
    """Some latents.

    >>> listed([3, 1])
    '1, 3'
    """
    return ", ".join(map(str, sorted(latents)[:8])) + (", …" if len(latents) > 8 else "")
