"""VAE losses for a fourth score of `vs.audit`, written before the failures of the third were repaired.

The rules had not been read by whoever wrote them. `Inputs` and `Truth` define the arguments of `add`.
"""

from __future__ import annotations

import math
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, Poisson, kl_divergence

from tests.audit.losses import Case, case_adder

cases: list[Case] = []
add = case_adder(cases, "fourth")


def kl_normal(mu, logvar):
    return 0.5 * (mu**2 + logvar.exp() - 1.0 - logvar)


# ELBOs ----------------------------------------------------------------------------------------


@add(
    "mean_times_a_number",
    "keras-team/keras-io",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1",
    kl="1",
)
def mean_times_a_number(data, reconstruction, z_mean, z_log_var):
    reconstruction_loss = torch.mean(F.binary_cross_entropy(reconstruction, data)) * 4 * 4
    kl_loss = 1 + z_log_var - torch.square(z_mean) - torch.exp(z_log_var)
    return reconstruction_loss + torch.mean(-0.5 * torch.sum(kl_loss, dim=-1))


@add(
    "scale_as_parameter",
    "Lightning-AI/lightning-bolts",
    "elbo",
    "y x mu s",
    likelihood="gaussian_learned",
    data=(3, 4, 4),
    reconstruction="1",
    kl="1",
    method="compute_loss",
    total=1,
)
class ScaleAsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.2]))

    def gaussian_likelihood(self, mean, logscale, sample):
        return Normal(mean, torch.exp(logscale)).log_prob(sample).sum(dim=(1, 2, 3))

    def compute_loss(self, x_hat, x, mu, log_var):
        recon_loss = self.gaussian_likelihood(x_hat, self.log_scale, x)
        kl = kl_normal(mu, log_var).sum(-1)
        elbo = kl - recon_loss
        return recon_loss.mean(), elbo.mean()


@add(
    "decoder_deviation_as_argument",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="1 / 0.1**2",
    kl="1",
)
def decoder_deviation_as_argument(x, x_dec, mu, logstd, sigma=0.1):
    nll = ((x - x_dec) ** 2).sum(1) / (2 * sigma**2)
    kl = torch.sum(-logstd - 0.5 + 0.5 * (torch.exp(logstd) ** 2 + mu**2), dim=1)
    return (nll + kl).mean(0)


@add(
    "softplus_of_logits",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(4, 4),
    reconstruction="N",
    kl="N",
)
def softplus_of_logits(v, a, m, lv):
    nll = (F.softplus(a) - v * a).sum()
    return nll + kl_normal(m, lv).sum()


@add(
    "grey_levels_as_classes",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(3, 3),
    outputs=(3, 3, 6),
    reconstruction="1",
    kl="1",
)
def grey_levels_as_classes(logits, levels, mu, logvar):
    nll = F.cross_entropy(logits.permute(0, 3, 1, 2), levels, reduction="none").flatten(1).sum(1)
    return nll.mean() + kl_normal(mu, logvar).sum(1).mean()


@add(
    "dictionary_of_outputs",
    "after the usual form",
    "elbo",
    "x output",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    total="loss",
    packs={"output": lambda t: {"recon": t["y"], "mu": t["mu"], "logvar": t["s"]}},
)
def dictionary_of_outputs(x, output):
    nll = F.binary_cross_entropy_with_logits(output["recon"], x, reduction="none").sum(1).mean()
    kl = kl_normal(output["mu"], output["logvar"]).sum(1).mean()
    return {"loss": nll + kl, "nll": nll, "kl": kl}


Output = namedtuple("Output", "x_hat mean variance")


@add(
    "named_tuple_of_outputs",
    "after the usual form",
    "elbo",
    "output x",
    likelihood="poisson",
    output="log_rate",
    x="counts",
    scale="variance",
    reconstruction="1",
    kl="1",
    packs={"output": lambda t: Output(t["y"], t["mu"], t["s"])},
)
def named_tuple_of_outputs(output, x):
    nll = -Poisson(output.x_hat.exp()).log_prob(x).sum(-1)
    kl = 0.5 * (output.variance + output.mean**2 - 1 - output.variance.log()).sum(-1)
    return torch.mean(nll + kl)


@add(
    "step_that_calls_forward",
    "after the usual form",
    "elbo",
    "batch index",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1",
    kl="1",
    method="training_step",
    submodules={"encoder": "x", "fc_mu": "mu", "fc_var": "s", "decoder": "y"},
)
class StepThatCallsForward(nn.Module):
    def forward(self, x):
        h = self.encoder(x)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        std = torch.exp(log_var / 2)
        return self.decoder(mu + torch.randn_like(std) * std), mu, log_var

    def _shared_step(self, batch):
        x, _ = batch
        x_hat, mu, log_var = self(x)
        recon = F.binary_cross_entropy(x_hat, x, reduction="none").view(x.size(0), -1).sum(1)
        return (recon + kl_normal(mu, log_var).sum(1)).mean()

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch)


@add(
    "guarded_by_tiny_numbers",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    scale="std",
    reconstruction="1",
    kl="1",
)
def guarded_by_tiny_numbers(x, x_, mean, stddev):
    eps = 1e-12
    nll = -torch.sum(x * torch.log(x_ + eps) + (1 - x) * torch.log(1 - x_ + eps), 1)
    kl = 0.5 * torch.sum(mean**2 + stddev**2 - torch.log(stddev**2 + eps) - 1.0, 1)
    return torch.mean(nll + kl)


@add(
    "one_minus_forms",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="laplace",
    data=(2, 8),
    scale="log_std",
    reconstruction="1 / 0.2",
    kl="1",
)
def one_minus_forms(audio_hat, audio, loc, log_scale):
    log_px = torch.distributions.Laplace(audio_hat, 0.2).log_prob(audio).sum((1, 2))
    neg_kl = 0.5 * (1 + 2 * log_scale - loc**2 - torch.exp(2 * log_scale)).sum(-1)
    return -torch.mean(log_px + neg_kl)


# weights that somebody chose ------------------------------------------------------------------


@add(
    "factor_of_a_thousand",
    "davidADSP/GDL_code",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2000 / n",
    kl="1",
    arguable=("reconstruction_averaged_over_pixels",),
)
def factor_of_a_thousand(y_true, y_pred, mu, log_var, r_loss_factor=1000):
    r_loss = torch.mean(torch.square(y_true - y_pred), dim=[1, 2, 3])
    kl_loss = -0.5 * torch.sum(1 + log_var - torch.square(mu) - torch.exp(log_var), dim=1)
    return torch.mean(r_loss_factor * r_loss + kl_loss)


@add(
    "weights_in_a_dictionary",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="laplace",
    data=(3, 4, 4),
    reconstruction="1",
    kl="1e-3",
    total="total",
)
def weights_in_a_dictionary(pred, gt, mu, logvar, weights=None):
    weights = weights or {"rec": 1.0, "kl": 1e-3}
    losses = {
        "rec": torch.abs(pred - gt).sum(dim=(1, 2, 3)).mean(),
        "kl": kl_normal(mu, logvar).sum(dim=1).mean(),
    }
    losses["total"] = sum(weights[k] * v for k, v in losses.items())
    return losses


@add(
    "entry_of_a_schedule",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(5,),
    outputs=(5, 4),
    reconstruction="1",
    kl="0.4",
    kwargs={"step": 4},
)
def entry_of_a_schedule(logits, ids, mu, logvar, step=0):
    betas = [i / 10 for i in range(11)]
    nll = -F.log_softmax(logits, -1).gather(2, ids[..., None]).sum((1, 2))
    return nll.mean() + betas[min(step, 10)] * kl_normal(mu, logvar).sum(1).mean()


@add(
    "stable_log_cosh",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="log_cosh",
    reconstruction="1",
    kl="0.5",
)
def stable_log_cosh(y, x, mu, logvar, kl_coef=0.5):
    t = (y - x).abs()
    return (t + F.softplus(-2 * t) - math.log(2)).sum(1).mean() + kl_coef * kl_normal(mu, logvar).sum(1).mean()


@add(
    "latent_volume",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    data=(1, 4, 4),
    latents=(2, 2, 2),
    reconstruction="2 / n",
    kl="1e-6",
    arguable=("reconstruction_averaged_over_pixels",),
)
def latent_volume(volume, recon, z_mu, z_sigma_log, kl_weight=1e-6):
    kl = 0.5 * torch.sum(z_mu.pow(2) + z_sigma_log.exp() - z_sigma_log - 1, dim=[1, 2, 3])
    return F.mse_loss(recon, volume) + kl_weight * torch.sum(kl) / kl.shape[0]


@add(
    "beta_of_the_object",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="softplus_std",
    reconstruction="1",
    kl="8",
    method="forward",
)
class BetaOfTheObject(nn.Module):
    def __init__(self, beta=8.0):
        super().__init__()
        self.beta, self.bce = beta, nn.BCEWithLogitsLoss(reduction="none")

    def forward(self, logits, x, loc, raw_scale):
        q = Normal(loc, nn.functional.softplus(raw_scale))
        kl = kl_divergence(q, Normal(torch.zeros_like(loc), torch.ones_like(loc)))
        return self.bce(logits, x).sum(-1).mean() + self.beta * kl.sum(-1).mean()


# further terms --------------------------------------------------------------------------------


@add(
    "python_maximum",
    "after the usual form",
    "term",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 1.0, "per": "batch"}},
)
def python_maximum(y, x, mu, logvar):
    kl = kl_normal(mu, logvar).sum(1).mean()
    return 0.5 * (x - y).pow(2).sum(1).mean() + max(kl, torch.ones_like(kl))


@add(
    "weighted_bits_per_latent",
    "after the usual form",
    "term",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    scale="std",
    reconstruction="1",
    kl="2",
    terms={"free_bits": {"level": 0.25, "per": "latent"}},
)
def weighted_bits_per_latent(x, p, mean, std, beta=2.0, lam=0.25):
    nll = F.binary_cross_entropy(p, x, reduction="none").sum(-1)
    kl = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).clamp(min=lam)
    return (nll + beta * kl.sum(-1)).mean()


@add(
    "norm_of_codes",
    "after the usual form",
    "term",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    terms={"mean_sparsity": {"weight": 0.3}},
)
def norm_of_codes(recon, x, mu, logvar, lambda_l1=0.3):
    mse = F.mse_loss(recon, x, reduction="sum") / x.size(0)
    return mse + kl_normal(mu, logvar).sum(1).mean() + lambda_l1 * torch.norm(mu, p=1) / mu.size(0)


@add(
    "absolute_and_squared",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="other",
    reconstruction="1",
    kl="0.1",
)
def absolute_and_squared(x, x_rec, mu, logvar):
    rec = 0.7 * F.l1_loss(x_rec, x, reduction="sum") + 0.3 * F.mse_loss(x_rec, x, reduction="sum")
    return rec / len(x) + 0.1 * kl_normal(mu, logvar).sum(1).mean()


# faults ---------------------------------------------------------------------------------------


@add(
    "step_with_mean_error",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    data=(1, 4, 4),
    reconstruction="2 / n",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("reconstruction_averaged_over_pixels",),
)
class StepWithMeanError(nn.Module):
    criterion = nn.MSELoss()

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def training_step(self, batch, batch_idx):
        img, _ = batch
        mu, logvar = self.encoder(img)
        out = self.decoder(self.reparameterize(mu, logvar))
        kl = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1), dim=0)
        return self.criterion(out, img) + kl


@add(
    "mean_of_latents_sum_of_samples",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="N",
    kl="N / d",
    faults=("kl_averaged_over_latents",),
)
def mean_of_latents_sum_of_samples(logits, target, mu, logvar):
    kl = kl_normal(mu, logvar).mean(dim=1).sum()
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") + kl


@add(
    "positive_kl_subtracted",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="-N",
    faults=("kl_wrong_sign",),
)
def positive_kl_subtracted(x, x_hat, mean, log_var):
    bce = F.binary_cross_entropy(x_hat, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
    return bce - kld


@add(
    "step_without_exponential",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepWithoutExponential(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, log_var = self.encoder(x)
        z = mu + 0.5 * log_var * torch.randn_like(mu)
        return ((self.decoder(z) - x) ** 2).sum(1).mean() + kl_normal(mu, log_var).sum(1).mean()


@add(
    "probabilities_into_cross_entropy",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    y="probability",
    x="tokens",
    data=(4,),
    outputs=(4, 5),
    reconstruction="1",
    kl="1",
    faults=("softmax_twice",),
)
def probabilities_into_cross_entropy(probs, tokens, mu, logvar):
    ce = nn.CrossEntropyLoss(reduction="none")(probs.permute(0, 2, 1), tokens).sum(1).mean()
    return ce + kl_normal(mu, logvar).sum(1).mean()


@add(
    "without_gradient_by_context",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="1",
    kl="0",
    faults=("kl_detached",),
)
def without_gradient_by_context(y, x, mean, log_std):
    with torch.no_grad():
        kl = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).sum(1).mean()
    return 0.5 * F.mse_loss(y, x, reduction="sum") / len(x) + kl


@add(
    "returned_but_not_added",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="0",
    method="loss_function",
    total="loss",
    faults=("kl_absent",),
    arguable=("coefficient_without_effect",),
)
class ReturnedButNotAdded(nn.Module):
    def loss_function(self, recons, input, mu, log_var):
        recons_loss = F.binary_cross_entropy(recons, input, reduction="sum") / input.shape[0]
        kld_loss = kl_normal(mu, log_var).sum(1).mean()
        return {"loss": recons_loss, "Reconstruction_Loss": recons_loss.detach(), "KLD": kld_loss}


@add(
    "entropy_and_kl_averaged",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1 / n",
    kl="1 / d",
    faults=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def entropy_and_kl_averaged(logits, x, mu, logvar):
    return nn.BCEWithLogitsLoss()(logits, x) + kl_normal(mu, logvar).mean()


@add(
    "kl_over_a_number_of_pixels",
    "public code",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1",
    kl="1 / 16",
    faults=("kl_divided_by_pixels",),
)
def kl_over_a_number_of_pixels(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x, reduction="sum") / x.size(0)
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    KLD /= x.size(0) * 16
    return BCE + KLD


@add(
    "sum_of_kl_beside_mean_of_samples",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="laplace",
    data=(2, 6),
    reconstruction="1",
    kl="N",
    faults=("reconstruction_averaged_over_batch",),
)
def sum_of_kl_beside_mean_of_samples(sequence, decoded, mu, logvar):
    l1 = (sequence - decoded).abs().flatten(1).sum(1).mean()
    return l1 + -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()


@add(
    "two_kl_of_log_std",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="1",
    kl="2",
    faults=("kl_missing_half",),
)
def two_kl_of_log_std(out, x, mu, log_sigma):
    kl = (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1).sum(1)
    return (0.5 * (out - x).square().sum(1) + kl).mean()


@add(
    "exponent_of_the_deviation",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="N",
    kl="N",
    faults=("kl_log_std_as_log_variance",),
)
def exponent_of_the_deviation(recon, x, mu, log_sigma):
    sigma = torch.exp(log_sigma)
    kl = -0.5 * torch.sum(1 + torch.log(sigma) - mu**2 - sigma**2)
    return F.binary_cross_entropy_with_logits(recon, x, reduction="sum") + kl


@add(
    "weight_for_the_log_only",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    faults=("coefficient_without_effect",),
    ineffective=("kl_weight",),
    total=0,
)
def weight_for_the_log_only(y, x, mu, logvar, kl_weight=0.1):
    mse = 0.5 * ((y - x) ** 2).sum(1).mean()
    kl = kl_normal(mu, logvar).sum(1).mean()
    weighted = kl_weight * kl
    return mse + kl, {"mse": mse.item(), "kl": weighted.item()}
