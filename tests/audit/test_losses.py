"""The truths of the collected losses, checked against torch's distributions by differences of values in float64."""

from __future__ import annotations

import inspect
import math
from collections import Counter

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import Tensor, nn

from tests.audit.losses import Case, blind, development, fourth, scored, third

cases = [*development.cases, *scored.cases, *blind.cases, *third.cases, *fourth.cases]
every_case = pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def standard_deviation(case: Case, s: Tensor) -> Tensor:
    return {
        "log_variance": lambda: (s / 2).exp(),
        "variance": lambda: s.sqrt(),
        "std": lambda: s,
        "log_std": lambda: s.exp(),
        "softplus_std": lambda: F.softplus(s),
        "log_precision": lambda: (-s / 2).exp(),
    }[case.truth.scale]()


def minus_log_likelihood(case: Case, t: dict[str, Tensor]) -> Tensor:
    """Of every sample, with the unit scale that the weights refer to."""
    x, y, module, half_width = t["x"], t["y"], case.loss, case.truth.likelihood_parameter
    x = x if x.dtype == torch.long or case.truth.likelihood == "mixed" else x.reshape(y.shape)
    mean = torch.sigmoid(y) if case.truth.output == "logit" else y
    soft_bernoulli = td.Bernoulli(mean, validate_args=False)
    log_class = {"probability": torch.log, "log_probability": lambda v: v, "logit": lambda v: v - v.logsumexp(-1, True)}
    rate = y.exp() if case.truth.output == "log_rate" else y
    match case.truth.likelihood:
        case "gaussian":
            terms = -td.Normal(mean, 1.0).log_prob(x)
        case "gaussian_learned":
            parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
            terms = -td.Normal(y, parameters[0].exp() if parameters else (t["y_scale"] / 2).exp()).log_prob(x)
        case "gaussian_optimal":
            terms = -td.Normal(y, ((x - y) ** 2).mean().sqrt()).log_prob(x)
        case "laplace":
            terms = -td.Laplace(y, 1.0).log_prob(x)
        case "laplace_learned":
            terms = -td.Laplace(y, next(module.parameters()).exp()).log_prob(x)
        case "huber":
            error = (x - y).abs()
            inside = error.clamp(max=half_width)
            terms = inside**2 / 2 + half_width * (error - inside)
        case "log_cosh":
            terms = torch.log(torch.cosh(half_width * (x - y)))
        case "bernoulli":
            terms = -soft_bernoulli.log_prob(x)
        case "categorical":
            terms = -log_class[case.truth.output](y).gather(-1, x[..., None])
        case "multinomial":
            terms = -td.Multinomial(logits=y, validate_args=False).log_prob(x)
        case "poisson":
            terms = -td.Poisson(rate).log_prob(x)
        case "negative_binomial":
            r = t["dispersion"]
            terms = -td.NegativeBinomial(r, probs=y / (y + r)).log_prob(x)
        case "mixed":
            continuous = td.Normal(torch.tanh(y[:, :2]), next(module.parameters())).log_prob(x[:, :2]).sum(1)
            terms = -continuous - td.OneHotCategorical(logits=y[:, 2:]).log_prob(x[:, 2:])
        case "none":
            terms = -(y * torch.log(x) + (1 - y) * torch.log(1 - x))
        case "other":
            terms = torch.zeros_like(y)
    return terms.reshape(len(y), -1).sum(1)


def divergence(case: Case, t: dict[str, Tensor]) -> Tensor:
    """The KL that the loss has, per sample and latent: the right one, or with the part that the fault replaces."""
    mu, sigma = t["mu"].flatten(1), standard_deviation(case, t["s"].flatten(1))
    if "monte_carlo_kl" in case.truth.terms:
        z = t["z"].flatten(1)
        return td.Normal(mu, sigma).log_prob(z) - td.Normal(0.0, 1.0).log_prob(z)
    right = td.kl_divergence(td.Normal(mu, sigma), td.Normal(torch.zeros_like(mu), torch.ones_like(mu)))
    changes = {
        "kl_log_std_as_log_variance": torch.log(sigma) / 2,
        "kl_exp_of_exp": ((sigma**2).exp() - sigma**2) / 2,
        "kl_missing_mean": -(mu**2) / 2,
        "kl_sign_of_mean": -(mu**2),
        "kl_mean_not_squared": (mu - mu**2) / 2,
        "kl_entropy_only": -(mu**2 + sigma**2) / 2,
        "kl_sign_of_variance": -(sigma**2),
    }
    return right + sum((changes[fault] for fault in case.truth.faults if fault in changes), torch.zeros_like(mu))


def kl_part(case: Case, t: dict[str, Tensor], weight: float) -> Tensor:
    kl, terms = divergence(case, t), case.truth.terms
    if "capacity" in terms:
        level, batch = terms["capacity"]["level"], terms["capacity"]["over"] == "batch"
        per_sample = kl.sum(1)
        return weight * ((per_sample.mean() - level).abs() if batch else (per_sample - level).abs().mean())
    if "free_bits" in terms and terms["free_bits"]["per"] == "batch":
        return weight * kl.sum(1).mean().clamp(min=terms["free_bits"]["level"])
    if "free_bits" in terms:
        parts = {"sample": kl.sum(1, True), "latent": kl, "latent_mean": kl.mean(0, True)}[terms["free_bits"]["per"]]
        return weight * parts.clamp(min=terms["free_bits"]["level"]).sum(1).mean()
    return weight * kl.sum(1).mean()


def extra_terms(case: Case, t: dict[str, Tensor]) -> Tensor:
    total, mu, z = torch.zeros((), dtype=torch.float64), t["mu"], t["z"]
    for name, given in case.truth.terms.items():
        factor = given.get("weight", 1.0)
        factor = eval(factor, {"N": len(mu)}) if isinstance(factor, str) else factor
        if name == "mean_penalty":
            total = total + factor * torch.linalg.norm(mu, dim=1).square().mean()
        elif name == "mean_sparsity":
            total = total + factor * torch.linalg.norm(mu, ord=1, dim=1).mean()
        elif name == "label":
            total = total - factor * td.Categorical(logits=t["label_logits"]).log_prob(t["labels"]).mean()
        elif name == "covariance":
            excess = torch.cov(mu.T, correction=0) - torch.eye(mu.shape[1])
            on = excess.diagonal().square().sum()
            total = total + given["diagonal"] * on + given["off_diagonal"] * (excess.square().sum() - on)
        elif name == "mmd":
            torch.manual_seed(1)
            points = torch.cat([torch.randn_like(z), z])
            signs = torch.cat([torch.ones(len(z)), -torch.ones(len(z))]).double() / len(z)
            kernel = torch.exp(-(torch.cdist(points, points) ** 2) / given["bandwidth"] / mu.shape[1])
            total = total + factor * signs @ kernel @ signs
        elif name == "total_correlation" and given["from"] == "discriminator":
            total = total + factor * (t["discriminator"] @ torch.tensor([1.0, -1.0]).double()).mean()
        elif name == "total_correlation":
            densities = td.Normal(mu, standard_deviation(case, t["s"])).log_prob(z[:, None]).exp()
            total = total + factor * (densities.prod(2).sum(1).log() - densities.sum(1).log().sum(1)).mean()
    return total


def value(case: Case, t: dict[str, Tensor]) -> Tensor:
    """Of the loss; where it draws z itself, that z is put into the tensors."""
    torch.manual_seed(1)
    result = case.value(t).squeeze()
    if case.inputs.submodules:
        t["z"] = case.loss.decoder.received
    return result


def reference(case: Case, t: dict[str, Tensor], samples: int) -> Tensor:
    w_r, w_k = case.truth.weights(case.inputs_for(samples))
    w_r = 1.0 if "reconstruction_detached" in case.truth.faults else w_r
    w_k = 1.0 if "kl_detached" in case.truth.faults else w_k
    return w_r * minus_log_likelihood(case, t).mean() + kl_part(case, t, w_k) + extra_terms(case, t)


@every_case
@pytest.mark.parametrize("samples", [None, 5])
def test_value_differences_are_those_of_the_stated_objective(case, samples):
    """Between pairs of inputs that differ in y, in the encoder's outputs, in z, and in everything."""
    n_samples = samples or case.inputs.samples
    with torch.no_grad():
        first, second = case.draw(0, samples), case.draw(1, samples)
        second["x"], second["dispersion"] = first["x"], first["dispersion"]
        if case.truth.likelihood == "gaussian_optimal":
            second["y"] = first["x"] + 1.5 * (first["y"] - first["x"])
        only_kl = [["mu"], ["s"], ["mu", "s"]]
        every = [["y", "y_scale"], *only_kl, ["z", "discriminator", "label_logits"], list(second)]
        for roles in only_kl if case.truth.likelihood == "other" else every:
            changed = {**first, **{role: second[role] for role in roles}}
            got = value(case, changed) - value(case, first)
            expected = reference(case, changed, n_samples) - reference(case, first, n_samples)
            precision = 1e-7 if got.dtype == torch.float64 else 1e-5  # a tensor of the module may be in float32
            torch.testing.assert_close(got.double(), expected, rtol=precision, atol=precision)


@every_case
def test_gradients_vanish_exactly_where_a_weight_is_zero(case):
    t = case.draw()
    for role in ("y", "mu", "s"):
        t[role].requires_grad_()
    torch.manual_seed(0)
    gradients = torch.autograd.grad(case.value(t), [t["y"], t["mu"], t["s"]], allow_unused=True)
    y, mu, s = (gradient is not None and bool(gradient.abs().max() > 0) for gradient in gradients)
    w_r, w_k = case.truth.weights(case.inputs)
    no_mean = {"kl_missing_mean", "kl_entropy_only"} & set(case.truth.faults)
    assert (y, mu, s) == (w_r != 0, w_k != 0 and not no_mean, w_k != 0)


@every_case
def test_weights_of_the_elbo_follow_from_the_stated_numbers(case):
    truth = case.truth
    w_r, w_k = truth.weights(case.inputs)
    if truth.beta_over_precision is not None:
        assert math.isclose(truth.beta_over_precision, w_k / w_r)
    if truth.beta is not None:
        assert math.isclose(truth.beta, w_k / w_r)
        assert truth.overall == w_r
    assert (case.kind == "fault") == bool(truth.faults)
    assert (case.kind == "term") == bool(set(truth.terms) - ({"monte_carlo_kl"} if case.kind == "elbo" else set()))
    assert truth.is_elbo or case.kind != "elbo"


@every_case
def test_exactly_the_named_coefficients_have_no_effect(case):
    target = getattr(case.loss, case.inputs.method or "forward") if isinstance(case.loss, nn.Module) else case.loss
    numbers = {
        name: parameter.default
        for name, parameter in inspect.signature(target).parameters.items()
        if isinstance(parameter.default, int | float)
    }
    t = case.draw()
    before = value(case, t)
    at_once = [name for name in numbers if name in case.truth.ineffective]
    assert at_once == list(case.truth.ineffective)
    for name in at_once:
        torch.testing.assert_close(case.value(t, **{name: 3.0 * numbers[name] + 1}), before)
    for name in set(numbers) & {"beta", "kl_weight", "kld_weight", "gamma", "free_bits"} - set(at_once):
        torch.manual_seed(1)
        assert not torch.isclose(case.value(t, **{name: 3.0 * numbers[name] + 1}), before)


@pytest.mark.parametrize("case", [case for case in cases if case.inputs.submodules], ids=lambda case: case.name)
def test_noise_of_steps_is_normal_with_the_stated_deviation_unless_a_fault_says_otherwise(case):
    t = case.draw(samples=4000)
    torch.manual_seed(0)
    case.value(t)
    noise = ((case.loss.decoder.received - t["mu"]) / standard_deviation(case, t["s"])).detach()
    faults = set(case.truth.faults) & {"noise_not_std", "noise_not_normal", "noise_shared"}
    if "noise_shared" in faults:
        torch.testing.assert_close(noise, noise[:1].expand_as(noise))
    elif "noise_not_normal" in faults:
        assert noise.mean().abs() > 0.05
    else:
        excess, s = noise.square() - 1, t["s"] - t["s"].mean()
        right = bool(excess.mean().abs() < 0.05 and (excess * s).mean().abs() < 0.05 * s.square().mean().sqrt())
        assert right == (not faults)
        assert noise.mean().abs() < 0.05
        assert noise.std(0).mean() > 0.05


def test_halves_are_balanced_and_names_unique():
    by_half = [
        Counter(case.kind for case in half.cases) for half in (development, scored)
    ]  # drawn; the others were not
    assert all(sum(half.values()) >= 32 for half in by_half)
    assert all(abs(by_half[0][kind] - by_half[1][kind]) <= 1 for kind in by_half[0] | by_half[1])
    assert len({case.name for case in cases}) == len(cases)
