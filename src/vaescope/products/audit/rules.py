"""Findings of an audit: every fault in a sentence, with the line to write instead in the user's own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vaescope.analysis.loss.measure import Identified
from vaescope.analysis.loss.reading import LossReading, divided_axes
from vaescope.inference.linear import Spectrum, used_count
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import number


@dataclass(frozen=True)
class Facts:
    """What the rules read.

    Args:
        read: the loss.
        faults, ineffective: of the loss.
        spectrum: of the data, if there are any.
        schedule: β over training, if a schedule was given.
    """

    read: LossReading
    faults: tuple[str, ...]
    ineffective: tuple[str, ...]
    spectrum: Spectrum | None = None
    schedule: Sequence[tuple[float, float]] = ()

    @property
    def found(self) -> Identified:
        """What was identified."""
        return self.read.found

    @property
    def names(self) -> Mapping[str, str]:
        """What the user calls x, y, mu and s."""
        return self.read.objective.names

    def reconstruction_line(self) -> str:
        """The reconstruction, summed over a sample's numbers and averaged over samples."""
        x, y = self.names.get("x", "x"), self.names.get("y", "y")
        y = "y" if "(" in y else y
        known = self.found.reconstruction
        sums = {
            ("gaussian", "mean"): "F.mse_loss({y}, {x}, reduction='sum') / len({x})",
            ("gaussian", "logit"): "F.mse_loss(torch.sigmoid({y}), {x}, reduction='sum') / len({x})",
            ("laplace", "mean"): "F.l1_loss({y}, {x}, reduction='sum') / len({x})",
            ("bernoulli", "logit"): "F.binary_cross_entropy_with_logits({y}, {x}, reduction='sum') / len({x})",
            ("bernoulli", "probability"): "F.binary_cross_entropy({y}, {x}, reduction='sum') / len({x})",
            ("swapped", "probability"): "F.binary_cross_entropy({y}, {x}, reduction='sum') / len({x})",
            ("poisson", "log_rate"): "F.poisson_nll_loss({y}, {x}, reduction='sum') / len({x})",
            ("categorical", "logit"): "F.cross_entropy({y}.flatten(0, 1), {x}.flatten(), reduction='sum') / len({x})",
        }
        line = sums.get((known.likelihood, known.output), "")
        return line.format(x=x, y=y) and f"reconstruction = {line.format(x=x, y=y)}"

    def kl_line(self) -> str:
        """The KL, summed over latents and averaged over samples."""
        mu, s = ("mu", "s") if self.read.objective.is_step else (self.names.get(role, role) for role in ("mu", "s"))
        s = "log_var" if (s, self.found.divergence.scale) == ("s", "log_variance") else s
        mu, s = ("mu", "log_var") if mu == s or not (mu.isidentifier() and s.isidentifier()) else (mu, s)
        forms = {
            "log_variance": f"{mu}**2 + {s}.exp() - 1 - {s}",
            "variance": f"{mu}**2 + {s} - 1 - {s}.log()",
            "std": f"{mu}**2 + {s}**2 - 1 - 2 * {s}.log()",
            "log_std": f"{mu}**2 + (2 * {s}).exp() - 1 - 2 * {s}",
            "softplus_std": f"{mu}**2 + F.softplus({s})**2 - 1 - 2 * F.softplus({s}).log()",
            "log_precision": f"{mu}**2 + (-{s}).exp() - 1 + {s}",
        }
        return f"kl = 0.5 * ({forms[self.found.divergence.scale]}).flatten(1).sum(1).mean()"


def findings(facts: Facts) -> list[Finding]:
    """Of every fault, and notes; most severe first."""
    found = [made for fault in facts.faults if (made := _finding(facts, fault)) is not None]
    rules = (_maximised, _collapse, _no_reconstruction, _warm_up, _beta, _zero_now, _unrecognised)
    return by_severity([*found, *(made for rule in rules if (made := rule(facts)) is not None)])


def _finding(facts: Facts, fault: str) -> Finding | None:
    if fault in ("reconstruction_averaged_over_pixels", "reconstruction_averaged_over_batch"):
        return _averaged(facts, fault)
    severity, title, evidence, advice, lines = Sentences.faults[fault]
    values = {
        "names": ", ".join(facts.ineffective),
        "beta": number(facts.read.beta) if facts.read.beta is not None else "not defined",
        "s": facts.names.get("s", "s"),
        "N": len(facts.found.space.x),
        "shared": facts.found.noise.shared if facts.found.noise else "",
        "noise": _noise_words(facts),
        **{key: facts.found.space.sizes[key] for key in ("n", "d")},
    }
    written = {"kl": facts.kl_line(), "reconstruction": facts.reconstruction_line()}
    line = "\n".join(filter(None, (written.get(part, part) for part in lines)))
    return Finding(fault.replace("_", "-"), severity, title, evidence.format(**values), advice.format(**values), line)


def _noise_words(facts: Facts) -> str:
    noise = facts.found.noise
    words = {"s itself": "the encoder's second output itself", "another": "something else", "variance": "the variance"}
    return "" if noise is None else words.get(noise.scale, f"the {noise.scale.replace('_', ' ')} reading")


def _averaged(facts: Facts, fault: str) -> Finding:
    """Means in the reconstruction alone: what β that amounts to."""
    found = facts.found
    pixels = fault.endswith("pixels")
    sizes = [found.space.x.shape[1 + k] for k in divided_axes(found, "reconstruction", facts.read.bare.reconstruction)]
    count = math.prod(sizes) if pixels else len(found.space.x)
    what = f"the {count} numbers of a sample" if pixels else f"the samples of a batch, {count} here,"
    precision = "" if found.fixes_scale else f" at γ² = {facts.read.precision:g}"
    amount = f"β = {number(facts.read.beta)}{precision}" if facts.read.beta is not None else "another β"
    return Finding(
        fault.replace("_", "-"),
        "note" if facts.read.bare.explicit else "warning",
        f"The reconstruction is averaged over {'the numbers of a sample' if pixels else 'the batch'}, the KL is not.",
        f"The mean over {what} divides the likelihood by {count if pixels else 'their number'} and not the KL: the "
        f"loss is that of a VAE with {amount}.",
        "Sum over a sample's numbers and average over samples, in both terms; then weigh the KL explicitly."
        if pixels
        else "Reduce both terms in the same way over samples.",
        "\n".join(filter(None, (facts.reconstruction_line(), facts.kl_line()))),
    )


class Sentences:
    """The sentences of each fault."""

    faults: ClassVar[Mapping[str, tuple[str, str, str, str, tuple[str, ...]]]] = {
        "kl_missing_half": (
            "warning",
            "The KL is twice as large as it should be.",
            "Its ½ is missing, so the loss is that of a VAE with β = {beta}.",
            "Multiply the KL by ½.",
            ("kl",),
        ),
        "kl_wrong_sign": (
            "error",
            "The KL has the wrong sign.",
            "Minimising the loss makes the KL larger without limit.",
            "Add the KL; -0.5 * (1 + log_var - mu**2 - log_var.exp()) is already positive.",
            ("kl",),
        ),
        "kl_log_std_as_log_variance": (
            "error",
            "The KL takes log σ for log σ².",
            "The logarithm counts half of what it should: without data the loss is smallest at σ² = ½, not at 1.",
            "Use the logarithm of the variance, 2 log σ.",
            ("kl",),
        ),
        "kl_exp_of_exp": (
            "error",
            "The KL takes exp(σ²) for σ².",
            "The variance is exponentiated once more.",
            "Decide whether {s} is a variance or its logarithm, and use it so in both places.",
            ("kl",),
        ),
        "kl_missing_mean": (
            "error",
            "The KL has no μ².",
            "Means are not drawn to the prior.",
            "Add the squared means.",
            ("kl",),
        ),
        "kl_sign_of_mean": (
            "error",
            "μ² has the wrong sign in the KL.",
            "The loss has no minimum: it falls without limit as means grow.",
            "Change the sign of the squared means.",
            ("kl",),
        ),
        "kl_sign_of_variance": (
            "error",
            "σ² has the wrong sign in the KL.",
            "The loss has no minimum: it falls without limit as variances grow.",
            "Change the sign of the variance.",
            ("kl",),
        ),
        "kl_mean_not_squared": (
            "error",
            "The KL has μ in the place of μ².",
            "It falls without limit as means become negative.",
            "Square the means.",
            ("kl",),
        ),
        "kl_entropy_only": (
            "error",
            "The KL has the logarithm of the variance only.",
            "μ² and σ² are missing: the loss falls without limit as σ² grows.",
            "Write the whole KL.",
            ("kl",),
        ),
        "kl_detached": (
            "error",
            "The KL has no gradient.",
            "The loss changes with the encoder's outputs, but has no gradient in them: this trains an autoencoder.",
            "Remove .item(), .detach() or torch.no_grad() around the KL that is added to the loss.",
            (),
        ),
        "kl_absent": (
            "error",
            "The KL is not in the loss.",
            "The loss does not change with {s} or with the means: the model is trained as an autoencoder.",
            "Add the KL to what is returned.",
            ("kl", "loss = reconstruction + kl"),
        ),
        "kl_averaged_over_batch": (
            "warning",
            "The KL is averaged over the batch, the reconstruction is not.",
            "The KL is divided by the {N} samples of a batch: the loss is that of a VAE with β = {beta}, which changes "
            "with the batch size.",
            "Reduce both terms in the same way over samples.",
            ("reconstruction", "kl"),
        ),
        "kl_averaged_over_latents": (
            "warning",
            "The KL is averaged over latents.",
            "A KL is a sum over latents; the mean divides it by {d}, so that β changes with the number of latents.",
            "Sum over latents.",
            ("kl",),
        ),
        "kl_divided_by_pixels": (
            "warning",
            "The KL is divided by the numbers of a sample, the reconstruction is not.",
            "Divided by {n}: the loss is that of a VAE with β = {beta}.",
            "Divide neither, or both.",
            ("kl",),
        ),
        "reconstruction_detached": (
            "error",
            "The reconstruction has no gradient.",
            "The loss changes with the decoder's output, and its gradient does not: the decoder is not trained.",
            "Remove .item(), .detach() or torch.no_grad() around the reconstruction.",
            (),
        ),
        "coefficient_without_effect": (
            "warning",
            "A coefficient changes nothing.",
            "The loss is the same for every value of {names}.",
            "Multiply the term that it is meant for, in the value that is returned.",
            (),
        ),
        "sigmoid_twice": (
            "error",
            "The sigmoid is applied twice.",
            "The loss takes the decoder's output for logits, and all of it lies between 0 and 1.",
            "Return logits from the decoder, or use the loss for probabilities.",
            ("F.binary_cross_entropy(y, x, reduction='sum') / len(x)  # if y are probabilities",),
        ),
        "softmax_twice": (
            "error",
            "The softmax is applied twice.",
            "The loss takes the decoder's output for logits, and its rows are probabilities that sum to 1.",
            "Return logits from the decoder, or take the logarithm and use F.nll_loss.",
            (),
        ),
        "arguments_swapped": (
            "error",
            "x and the reconstruction are swapped.",
            "The cross-entropy reads x as the prediction and the decoder's output as the target.",
            "The prediction comes first.",
            ("reconstruction",),
        ),
        "noise_not_std": (
            "error",
            "The noise of z does not have the standard deviation of the posterior.",
            "z = μ + σ ε, but ε is multiplied by {noise}.",
            "Multiply by the standard deviation that the KL has.",
            ("z = mu + (0.5 * log_var).exp() * torch.randn_like(mu)  # if the encoder returns log-variances",),
        ),
        "noise_not_normal": (
            "error",
            "The noise of z is not standard normal.",
            "Its mean, skewness or kurtosis are not those of a normal distribution.",
            "Draw it with torch.randn_like.",
            ("z = mu + std * torch.randn_like(std)",),
        ),
        "noise_shared": (
            "error",
            "Several numbers of z share a draw of the noise.",
            "The noise is the same for all {shared}.",
            "Draw one number for each sample and latent.",
            ("z = mu + std * torch.randn_like(std)",),
        ),
        "noise_absent": (
            "error",
            "z has no noise.",
            "The decoder is given the same z at every repetition: the model is trained as an autoencoder.",
            "Draw z from the posterior while training.",
            ("z = mu + std * torch.randn_like(std)",),
        ),
        "depends_on_batch_size": (
            "note",
            "The balance of the two terms changes with the batch size.",
            "The weights of the KL and of the reconstruction depend on the number of samples in different ways.",
            "Reduce both terms in the same way over samples.",
            (),
        ),
    }
    """Severity, title, evidence, advice, and the lines to write: `kl` and `reconstruction` in the user's own names."""


def _unrecognised(facts: Facts) -> Finding | None:
    parts = []
    if facts.found.reconstruction.likelihood == "other":
        parts.append("the term in the decoder's output is none of the known likelihoods")
    if not facts.found.divergence.recognised:
        parts.append("the terms in the encoder's outputs and z are not only a KL and known penalties")
    parts += [f"the effect of {facts.names.get(role, role)} is not a known one" for role in facts.found.unknown]
    if not parts:
        return None
    evidence = "; ".join(parts)
    return Finding(
        "unrecognised",
        "note",
        "A part of the loss was not recognised.",
        evidence[0].upper() + evidence[1:] + ".",
        "Weights that are given as unknown could not be measured; audit the loss without that part.",
    )


def _maximised(facts: Facts) -> Finding | None:
    found = facts.found
    if not (found.reconstruction.weight < 0 and found.divergence.weight < 0):
        return None
    return Finding(
        "maximised",
        "note",
        "This is the ELBO, not minus the ELBO.",
        "Both terms have a negative weight: it has to be maximised.",
        "Minimise its negative.",
    )


def _beta(facts: Facts) -> Finding | None:
    """β other than 1, where it is defined on its own and no fault explains it."""
    beta = facts.read.beta
    explained = {"kl_missing_half", "kl_wrong_sign", "kl_averaged_over_batch", "kl_averaged_over_latents"}
    if (
        not facts.found.fixes_scale
        or beta is None
        or math.isclose(beta, 1.0, rel_tol=1e-5)
        or explained & {*facts.faults}
    ):
        return None
    if beta <= 0 or "reconstruction_averaged_over_pixels" in facts.faults:
        return None
    return Finding(
        "beta",
        "note",
        f"The KL has the weight β = {number(beta)}.",
        "The loss is an ELBO at β = 1 only; with another value it is a β-VAE, and no bound on log p(x) for β below 1.",
        "Nothing, if this is what you want.",
    )


def _collapse(facts: Facts) -> Finding | None:
    """What the data leave of the latents."""
    ratio, spectrum = facts.found.ratio, facts.spectrum
    if spectrum is None or ratio is None or ratio <= 0 or facts.found.reconstruction.likelihood != "gaussian":
        return None
    latents = facts.found.space.sizes["d"]
    used = used_count(spectrum.eigenvalues, ratio, latents)
    largest = float(spectrum.eigenvalues.max(initial=0.0))
    if used == latents:
        return None
    return Finding(
        "collapse" if used == 0 else "latents-in-use",
        "warning" if used == 0 else "note",
        "All latents collapse on these data." if used == 0 else f"These data keep {used} of {latents} latents in use.",
        f"β/γ² = {number(ratio)}, and a linear VAE uses a latent for each principal axis of the data with a larger "
        f"variance; the largest is {number(largest)}.",
        f"Lower β/γ² below {number(largest)}."
        if used == 0
        else "Lower β/γ² if more latents should be used; see `vs.preflight`.",
    )


def _warm_up(facts: Facts) -> Finding | None:
    betas = [beta for _, beta in facts.schedule]
    if not betas or not all(map(math.isfinite, betas)) or max(betas) >= 1 - 1e-6:
        return None
    return Finding(
        "warm-up",
        "warning",
        "The schedule of the KL never reaches β = 1.",
        f"Over the given values, β goes from {number(betas[0])} to {number(betas[-1])}, at most {number(max(betas))}.",
        "Lengthen training, shorten the warm-up, or set its last value to 1.",
    )


def _no_reconstruction(facts: Facts) -> Finding | None:
    if facts.found.reconstruction.likelihood != "absent":
        return None
    y = facts.names.get("y", "y")
    return Finding(
        "reconstruction-absent",
        "error",
        "The reconstruction is not in the loss.",
        f"The loss does not change with {y}: the decoder is not trained.",
        "Add the reconstruction to what is returned.",
    )


def _zero_now(facts: Facts) -> Finding | None:
    """A weight of zero at the given keyword arguments, such as the first step of a warm-up."""
    if facts.found.divergence.weight != 0 or {"kl_absent", "kl_detached"} & {*facts.faults}:
        return None
    settings = ", ".join(f"{name} = {c.value:g}" for name, c in facts.found.coefficients.items())
    return Finding(
        "weight-zero",
        "note",
        "The KL has the weight 0 at these settings.",
        f"It has another weight at other values of {settings}.",
        "Pass keywords= with the values at which the loss should be audited, or schedule=.",
    )
