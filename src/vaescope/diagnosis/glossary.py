"""Plain words for every symbol on a page, linked where a word is first used."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markupsafe import Markup, escape

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
    "precision": "1 / variance of the decoder: 1 for half the summed squared error, 2/n for a mean over n numbers.",
    "Eq. 12": "σ² = 1 / (1 + precision · ‖column‖²), the variance of the best narrow posterior.",
    "gap": "log p(x) - ELBO. Family: what the best posterior of its kind loses. Amortisation: what the encoder loses "
    "beyond it.",
    "amortisation": "The part of the gap that is due to the encoder.",
    "c_IMA": "How far the columns of the decoder's Jacobian are from orthogonal, in nats; 0 if they are.",
    "column norm": "How far the output moves per unit of a latent.",
    "variance ratio": "Variance of the posterior over that of the prior: near 1 if a latent is not used.",
    "effect": "Squared error added by drawing a latent from its prior, as a share of the variance of x.",
    "active": "A latent with information about every sample. Passive: at the prior. Mixed: for some samples only.",
    "AUC": "How well codes of data and draws from the prior are distinguished: 0.5 if they are alike, 1 if always.",
    "Pareto k̂": "How reliable importance sampling is: reliable below 0.7.",
    "identified as": "axis: a latent may be read on its own; subspace: only together with others; none: neither.",
    "±": "Two standard errors, everywhere on this page.",
}


def anchor(word: str) -> str:
    """The name of a word's entry in the page.

    >>> anchor("log p(x)")
    'term-log-p-x'
    """
    spelled = word.replace("β", "beta").replace("±", "plus-minus")
    return "term-" + re.sub(r"[^a-z0-9]+", "-", spelled.lower()).strip("-")


@dataclass
class Glosses:
    """Escapes text, and links each word of the glossary where it occurs first on a page."""

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

    def _link(self, match: re.Match[str]) -> str:
        shown = match.group()
        word = shown if shown in GLOSSARY else shown.removesuffix("s")
        if word in self.linked:
            return shown
        self.linked.add(word)
        return f'<a class="term" href="#{anchor(word)}">{shown}</a>'
