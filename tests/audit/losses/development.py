"""VAE losses, the half that rules may be written with. `Inputs` and `Truth` define the arguments of `add`."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Bernoulli, Normal, Poisson, kl_divergence

from tests.audit.losses import Case, case_adder

cases: list[Case] = []
add = case_adder(cases, "development")
VAEOutput = namedtuple("VAEOutput", ["recon_x", "embedding", "log_covariance"])


@add(
    "conditional_mnist",
    "timbmg/VAE-CVAE-MNIST",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="binary",
    reconstruction="1",
    kl="1",
)
def conditional_mnist(recon_x, x, mean, log_var):
    bce = F.binary_cross_entropy(recon_x.view(-1, 12), x.view(-1, 12), reduction="sum")
    kld = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
    return (bce + kld) / x.size(0)


@add(
    "world_model",
    "ctallec/world-models",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    scale="log_std",
    data=(3, 4, 4),
    reconstruction="2 * N",
    kl="N",
)
def world_model(recon_x, x, mu, logsigma):
    squared = F.mse_loss(recon_x, x, reduction="sum")
    return squared - 0.5 * torch.sum(1 + 2 * logsigma - mu.pow(2) - (2 * logsigma).exp())


@add(
    "keras_digits",
    "keras-team/keras-io",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(4, 4, 1),
    reconstruction="1",
    kl="1",
    total=0,
)
def keras_digits(data, reconstruction, z_mean, z_log_var):
    pixels = F.binary_cross_entropy(reconstruction, data, reduction="none")
    reconstruction_loss = pixels.sum(dim=(1, 2, 3)).mean()
    kl_loss = -0.5 * (1 + z_log_var - torch.square(z_mean) - torch.exp(z_log_var))
    kl_loss = kl_loss.sum(dim=1).mean()
    return reconstruction_loss + kl_loss, reconstruction_loss, kl_loss


@add(
    "squared_error_of_sigmoid",
    "1Konny/Beta-VAE",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    output="logit",
    x="unit",
    reconstruction="2",
    kl="1",
)
def squared_error_of_sigmoid(x, x_recon, mu, logvar):
    recon_loss = F.mse_loss(torch.sigmoid(x_recon), x, reduction="sum").div(x.size(0))
    klds = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
    return recon_loss + klds.sum(1).mean(0)


@add(
    "variance_per_output",
    "public code",
    "elbo",
    "x y y_scale mu s",
    likelihood="gaussian_learned",
    reconstruction="1",
    kl="1",
    total="loss",
)
def variance_per_output(x, x_hat, x_log_var, mean, log_variance):
    nll = F.gaussian_nll_loss(x_hat, x, x_log_var.exp(), reduction="none", full=True).flatten(1).sum(1)
    kl = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).sum(1)
    return {"loss": (nll + kl).mean(), "log_likelihood": -nll.mean(), "kl_divergence": kl.mean()}


@add(
    "clicks_annealed",
    "dawenl/vae_cf",
    "elbo",
    "y x mu s",
    likelihood="multinomial",
    output="logit",
    x="counts",
    reconstruction="1",
    kl="1",
)
def clicks_annealed(logits, x, mu_q, logvar_q, anneal=1.0):
    neg_ll = -torch.mean(torch.sum(F.log_softmax(logits, dim=-1) * x, dim=-1))
    kl = torch.mean(torch.sum(0.5 * (-logvar_q + torch.exp(logvar_q) + mu_q**2 - 1), dim=1))
    return neg_ll + anneal * kl


@add(
    "counts_with_distributions",
    "scverse/scvi-tools",
    "elbo",
    "tensors inference generative",
    likelihood="poisson",
    output="rate",
    scale="std",
    x="counts",
    reconstruction="1",
    kl="1",
    total="loss",
    packs={
        "tensors": lambda t: {"X": t["x"]},
        "inference": lambda t: {"qz": Normal(t["mu"], t["s"])},
        "generative": lambda t: {
            "px": Poisson(t["y"]),
            "pz": Normal(torch.zeros_like(t["mu"]), torch.ones_like(t["s"])),
        },
    },
)
def counts_with_distributions(tensors, inference_outputs, generative_outputs, kl_weight=1.0):
    kl_z = kl_divergence(inference_outputs["qz"], generative_outputs["pz"]).sum(dim=-1)
    reconst_loss = -generative_outputs["px"].log_prob(tensors["X"]).sum(-1)
    return SimpleNamespace(loss=torch.mean(reconst_loss + kl_weight * kl_z), reconstruction_loss=reconst_loss)


@add(
    "poisson_log_rate",
    "public code",
    "elbo",
    "y x mu s",
    likelihood="poisson",
    output="log_rate",
    x="counts",
    reconstruction="N",
    kl="N",
)
def poisson_log_rate(recon_x, x, mu, logvar):
    rec = F.poisson_nll_loss(recon_x, x, reduction="sum", log_input=True)
    return rec - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "sentence_nll",
    "timbmg/Sentence-VAE",
    "elbo",
    "y x mu s",
    likelihood="categorical",
    output="log_probability",
    x="tokens",
    data=(5,),
    outputs=(5, 7),
    reconstruction="1",
    kl="1",
)
def sentence_nll(logp, target, mean, logv, step=5000, k=0.0025, x0=2500, anneal_function="none"):
    nll = F.nll_loss(logp.view(-1, logp.size(2)), target.reshape(-1), reduction="sum")
    kl = -0.5 * torch.sum(1 + logv - mean.pow(2) - logv.exp())
    weight = {"logistic": 1 / (1 + math.exp(-k * (step - x0))), "linear": min(1, step / x0), "none": 1.0}[
        anneal_function
    ]
    return (nll + weight * kl) / target.size(0)


@add(
    "softplus_scale",
    "altosaar/variational-autoencoder",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    scale="softplus_std",
    x="binary",
    reconstruction="N",
    kl="N",
)
def softplus_scale(x, logits, loc, scale_arg):
    q = Normal(loc, F.softplus(scale_arg))
    log_p_x = Bernoulli(logits=logits).log_prob(x).sum(-1)
    elbo = log_p_x - kl_divergence(q, Normal(torch.zeros_like(loc), torch.ones_like(loc))).sum(-1)
    return -elbo.sum(0)


@add(
    "graph_nodes",
    "tkipf/gae",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    scale="log_std",
    x="binary",
    data=(8,),
    reconstruction="1 / n",
    kl="1 / N",
)
def graph_nodes(preds, labels, z_mean, z_log_std, norm=1.0, pos_weight=1.0):
    cost = norm * F.binary_cross_entropy_with_logits(preds, labels, pos_weight=torch.tensor(pos_weight))
    kl = (0.5 / preds.shape[0]) * torch.mean(torch.sum(1 + 2 * z_log_std - z_mean**2 - torch.exp(z_log_std) ** 2, 1))
    return cost - kl


@add("neither_half", "public code", "elbo", "x y mu s", likelihood="gaussian", scale="std", reconstruction="2", kl="2")
def neither_half(x, x_hat, mu, sigma):
    squared = F.mse_loss(x, x_hat, reduction="sum")
    regularizer = torch.sum(mu**2 + sigma**2 - torch.log(sigma**2) - 1)
    return (squared + regularizer) / len(x)


@add(
    "unnamed_arguments",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="1 / N",
    kl="1 / N",
)
def unnamed_arguments(a, b, c, d):
    return (((a - b) ** 2).sum(1).mean() / 2 + (c**2 / 2 + d**2 / 2 - d.log() - 0.5).sum(1).mean()) / len(a)


@add(
    "negative_binomial",
    "scverse/scvi-tools",
    "elbo",
    "x y dispersion mu s",
    likelihood="negative_binomial",
    output="rate",
    x="counts",
    scale="variance",
    reconstruction="1",
    kl="1",
)
def negative_binomial(x, px_rate, px_r, qz_m, qz_v):
    total = px_r + px_rate
    log_px = torch.lgamma(x + px_r) - torch.lgamma(px_r) - torch.lgamma(x + 1)
    log_px = log_px + px_r * torch.log(px_r / total) + x * torch.log(px_rate / total)
    kl_z = 0.5 * (qz_v + qz_m**2 - 1 - torch.log(qz_v)).sum(1)
    return torch.mean(kl_z - log_px.sum(-1))


@add(
    "step_with_heads",
    "after the usual form",
    "elbo",
    "batch index",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    method="training_step",
    submodules={"encoder": "x", "fc_mu": "mu", "fc_var": "s", "decoder": "y"},
)
class StepWithHeads(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        h = self.encoder(x)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        std = torch.exp(log_var / 2)
        x_hat = self.decoder(mu + std * torch.randn_like(std))
        rec = F.mse_loss(x_hat, x, reduction="none").flatten(1).sum(1).mean()
        return rec - 0.5 * (1 + log_var - mu**2 - log_var.exp()).sum(1).mean()


@add(
    "minibatch_share",
    "AntixK/PyTorch-VAE",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="0.00025",
    kwargs={"M_N": 0.00025},
    method="loss_function",
    total="loss",
    arguable=("reconstruction_averaged_over_pixels",),
)
class MinibatchShare(nn.Module):
    def loss_function(self, *args, **kwargs):
        recons, input, mu, log_var = args
        recons_loss = F.mse_loss(recons, input)
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        loss = recons_loss + kwargs["M_N"] * kld_loss
        return {"loss": loss, "Reconstruction_Loss": recons_loss.detach(), "KLD": -kld_loss.detach()}


@add(
    "latent_distribution_pair",
    "YannDubs/disentangling-vae",
    "weighted",
    "x y latent",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1",
    kl="10",
    packs={"latent": lambda t: (t["mu"], t["s"])},
)
class LatentDistributionPair(nn.Module):
    def forward(self, data, recon_data, latent_dist, beta=10):
        mean, logvar = latent_dist
        rec_loss = F.binary_cross_entropy(recon_data, data, reduction="sum") / len(data)
        latent_kl = 0.5 * (-1 - logvar + mean.pow(2) + logvar.exp()).mean(dim=0)
        return rec_loss + beta * latent_kl.sum()


@add(
    "beta_sixteen",
    "google-research/disentanglement_lib",
    "weighted",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="unit",
    data=(4, 4, 1),
    reconstruction="1",
    kl="16",
)
def beta_sixteen(features, logits, z_mean, z_logvar, beta=16.0):
    per_sample = F.binary_cross_entropy_with_logits(logits, features, reduction="none").sum(dim=(1, 2, 3))
    kl_loss = torch.mean(0.5 * torch.sum(z_mean.square() + z_logvar.exp() - z_logvar - 1, 1))
    return per_sample.mean() + beta * kl_loss


@add(
    "table_factor_two",
    "sdv-dev/CTGAN",
    "weighted",
    "y x mu s",
    likelihood="mixed",
    x="table",
    data=(5,),
    reconstruction="2",
    kl="1",
    total="sum",
    method="loss",
)
class TableFactorTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor([0.1, 0.3]))

    def loss(self, reconstruction, real, mu, logvar, loss_factor=2):
        error = real[:, :2] - torch.tanh(reconstruction[:, :2])
        gaussian = (error**2 / 2 / self.sigma**2).sum() + torch.log(self.sigma).sum() * len(real)
        discrete = F.cross_entropy(reconstruction[:, 2:], real[:, 2:].argmax(-1), reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp())
        return (gaussian + discrete) * loss_factor / len(real), kld / len(real)


@add(
    "latent_map_small_weight",
    "CompVis/latent-diffusion",
    "weighted",
    "x y posterior",
    likelihood="laplace",
    data=(3, 4, 4),
    latents=(2, 2, 2),
    reconstruction="1",
    kl="1e-6",
    packs={"posterior": lambda t: torch.cat([t["mu"], t["s"]], 1)},
)
def latent_map_small_weight(inputs, reconstructions, moments, kl_weight=1e-6, pixelloss_weight=1.0):
    mean, logvar = torch.chunk(moments, 2, dim=1)
    rec_loss = pixelloss_weight * torch.abs(inputs - reconstructions)
    kl = 0.5 * torch.sum(mean.pow(2) + logvar.exp() - 1.0 - logvar, dim=[1, 2, 3])
    return torch.sum(rec_loss) / rec_loss.shape[0] + kl_weight * torch.sum(kl) / kl.shape[0]


@add(
    "clicks_capped_anneal",
    "dawenl/vae_cf",
    "weighted",
    "x y mu s",
    likelihood="multinomial",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="0.2",
    kwargs={"update": 200000},
)
def clicks_capped_anneal(x, recon, mu, log_var, update=0, total_anneal_steps=200000, anneal_cap=0.2):
    anneal = min(anneal_cap, update / total_anneal_steps)
    neg_ll = -(F.log_softmax(recon, 1) * x).sum(1).mean()
    return neg_ll - anneal * 0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).sum(1).mean()


@add(
    "cyclical_schedule",
    "haofuml/cyclical_annealing",
    "weighted",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(4,),
    outputs=(4, 6),
    reconstruction="1",
    kl="0.6",
    kwargs={"step": 130},
)
def cyclical_schedule(logits, target, recog_mu, recog_logvar, step=0, period=100, ratio=0.5):
    kl_weight = min(1.0, (step % period) / (period * ratio))
    rc = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape).sum(1)
    kld = -0.5 * (1 + recog_logvar - recog_mu.pow(2) - recog_logvar.exp()).sum(1)
    return rc.mean() + kl_weight * kld.mean()


@add(
    "smooth_absolute_error",
    "public code",
    "weighted",
    "y x mu s",
    likelihood="huber",
    likelihood_parameter=0.1,
    reconstruction="10 * N",
    kl="N",
    total="total_loss",
)
def smooth_absolute_error(recon_x, x, mu, log_var, recon_weight=1.0, kl_weight=1.0, beta=0.1):
    recon_loss = F.smooth_l1_loss(recon_x, x, reduction="sum", beta=beta)
    kl_loss = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
    return {"total_loss": recon_weight * recon_loss + kl_weight * kl_loss, "recon_loss": recon_loss, "kl_loss": kl_loss}


@add(
    "output_object_beta",
    "clementchadebec/benchmark_VAE",
    "weighted",
    "x outputs",
    likelihood="gaussian",
    reconstruction="1",
    kl="4",
    packs={"outputs": lambda t: VAEOutput(t["y"], t["mu"], t["s"])},
)
def output_object_beta(inputs, output, beta=4.0):
    recon = 0.5 * F.mse_loss(output.recon_x, inputs, reduction="none").sum(-1)
    kld = 0.5 * (output.log_covariance.exp() + output.embedding**2 - 1 - output.log_covariance).sum(-1)
    return (recon + beta * kld).mean()


@add(
    "bits_per_latent_mean",
    "public code",
    "term",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    terms={"free_bits": {"level": 0.4, "per": "latent_mean"}},
    total=0,
)
def bits_per_latent_mean(recon_x, x, mu, logvar, beta=1.0, free_bits=0.4):
    recon_loss = (recon_x - x).square().sum(1).mean()
    kl_per_dim = torch.mean(-0.5 * (1 + logvar - mu.pow(2) - logvar.exp()), dim=0)
    kl_div = torch.sum(torch.clamp(kl_per_dim, min=free_bits))
    return recon_loss + beta * kl_div, recon_loss.item(), kl_div.item()


@add(
    "bits_above_level",
    "public code",
    "term",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 0.25, "per": "latent"}},
)
def bits_above_level(pred, target, mu, logvar, free_bits=0.25):
    recon = F.binary_cross_entropy_with_logits(pred, target, reduction="none").sum(1).mean()
    kl_per_dim = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
    return recon + (torch.clamp(kl_per_dim, min=free_bits) - free_bits).sum(dim=-1).mean()


@add(
    "capacity_of_batch",
    "1Konny/Beta-VAE",
    "term",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="100",
    terms={"capacity": {"level": 2.5, "over": "batch"}},
    kwargs={"global_iter": 10000},
)
def capacity_of_batch(x, x_recon, mu, logvar, gamma=100, c_max=25.0, c_stop_iter=1e5, global_iter=0):
    recon_loss = F.binary_cross_entropy_with_logits(x_recon, x, reduction="sum").div(x.size(0))
    total_kld = (-0.5 * (1 + logvar - mu.pow(2) - logvar.exp())).sum(1).mean(0)
    c = min(max(c_max / c_stop_iter * global_iter, 0), c_max)
    return recon_loss + gamma * (total_kld - c).abs()


@add(
    "maximum_mean_discrepancy",
    "AntixK/PyTorch-VAE",
    "term",
    "y x z mu s",
    likelihood="gaussian",
    reconstruction="2 * 5 / n",
    kl="(1 + 0.5) * 0.01",
    kwargs={"M_N": 0.01},
    method="loss_function",
    total="loss",
    terms={"mmd": {"weight": 109.0, "bandwidth": 6.0}},
    arguable=("reconstruction_averaged_over_pixels",),
)
class MaximumMeanDiscrepancy(nn.Module):
    alpha, beta, reg_weight = -0.5, 5.0, 110.5

    def kernel(self, a, b):
        squared = (a[:, None] - b[None]).pow(2).mean(-1)
        return torch.exp(-squared / (2.0 * a.shape[1]))

    def loss_function(self, recons, input, z, mu, log_var, **kwargs):
        prior_z = torch.randn_like(z)
        mmd = self.kernel(prior_z, prior_z).mean() + self.kernel(z, z).mean() - 2 * self.kernel(prior_z, z).mean()
        kld = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        loss = self.beta * F.mse_loss(recons, input) + (1 - self.alpha) * kwargs["M_N"] * kld
        return {"loss": loss + (self.alpha + self.reg_weight - 1) * mmd, "MMD": mmd, "KLD": -kld}


@add(
    "total_correlation_of_sample",
    "google-research/disentanglement_lib",
    "term",
    "x y mu s z",
    likelihood="bernoulli",
    output="logit",
    x="unit",
    reconstruction="1",
    kl="1",
    terms={"total_correlation": {"weight": 5.0, "from": "z"}},
)
def total_correlation_of_sample(features, logits, z_mean, z_logvar, z_sampled, beta=6.0):
    reconstruction = F.binary_cross_entropy_with_logits(logits, features, reduction="none").sum(1).mean()
    kl = 0.5 * (z_mean.square() + z_logvar.exp() - z_logvar - 1).sum(1).mean()
    log_qz_prob = -0.5 * (
        (z_sampled[:, None] - z_mean[None]) ** 2 * torch.exp(-z_logvar)[None] + z_logvar[None] + math.log(2 * math.pi)
    )
    tc = torch.logsumexp(log_qz_prob.sum(2), 1) - torch.logsumexp(log_qz_prob, 1).sum(1)
    return reconstruction + kl + (beta - 1.0) * tc.mean()


@add(
    "covariance_of_means",
    "google-research/disentanglement_lib",
    "term",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    terms={"covariance": {"off_diagonal": 10.0, "diagonal": 50.0}},
)
def covariance_of_means(features, reconstruction, z_mean, z_logvar, lambda_od=10.0, lambda_d_factor=5.0):
    squared = (features - reconstruction).square().sum(1).mean()
    kl = 0.5 * (z_mean.square() + z_logvar.exp() - z_logvar - 1).sum(1).mean()
    centred = z_mean - z_mean.mean(0)
    cov = centred.T @ centred / len(z_mean)
    diagonal = torch.diagonal(cov)
    off_diagonal = cov - torch.diag(diagonal)
    dip = lambda_od * (off_diagonal**2).sum() + lambda_d_factor * lambda_od * ((diagonal - 1) ** 2).sum()
    return squared + kl + dip


@add(
    "penalty_on_means",
    "after the usual form",
    "term",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="2",
    kl="1",
    terms={"mean_penalty": {"weight": 0.1}},
)
def penalty_on_means(x, x_rec, mu, sigma, weight_decay=0.1):
    rec = ((x - x_rec) ** 2).sum(-1)
    kl = 0.5 * (mu**2 + sigma**2 - 2 * torch.log(sigma) - 1).sum(-1)
    return (rec + kl + weight_decay * (mu**2).sum(-1)).mean()


@add(
    "kl_without_half_of_std",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="categorical",
    output="logit",
    scale="std",
    x="tokens",
    data=(4,),
    outputs=(4, 5),
    reconstruction="1",
    kl="2",
    faults=("kl_missing_half",),
)
def kl_without_half_of_std(target, logits, mean, std):
    ce = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / len(target)
    return ce + (mean**2 + std**2 - torch.log(std**2) - 1).sum(-1).mean()


@add(
    "kl_subtracted",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="-1",
    faults=("kl_wrong_sign",),
)
def kl_subtracted(x, x_hat, mean, log_var):
    reconstruction = ((x - x_hat) ** 2).sum(1)
    kl = 0.5 * (mean**2 + log_var.exp() - log_var - 1).sum(1)
    return (reconstruction - kl).mean()


@add(
    "log_of_deviation",
    "public code",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="2 * N",
    kl="2 * N",
    faults=("kl_log_std_as_log_variance",),
)
class LogOfDeviation(nn.Module):
    def forward(self, x, x_hat, mu, sigma):
        mse_loss = torch.sum((x - x_hat) ** 2)
        return mse_loss + (sigma**2 + mu**2 - torch.log(sigma) - 1 / 2).sum()


@add(
    "variance_squared",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    scale="log_std",
    x="binary",
    reconstruction="1",
    kl="1",
    faults=("kl_log_std_as_log_variance",),
)
def variance_squared(x, y, mu, logvar):
    bce = F.binary_cross_entropy(y, x, reduction="none").sum(1)
    return (bce - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp().pow(2)).sum(1)).mean()


@add(
    "step_log_variance_as_std",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepLogVarianceAsStd(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, logvar = self.encoder(x)
        logits = self.decoder(mu + logvar * torch.randn_like(mu))
        bce = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
        return torch.mean(bce + 0.5 * (logvar.exp() + mu**2 - 1 - logvar).sum(1))


@add(
    "step_uniform_noise",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_normal",),
)
class StepUniformNoise(nn.Module):
    def training_step(self, batch, batch_idx):
        x = batch[0]
        mu, logvar = self.encoder(x)
        std = torch.exp(0.5 * logvar)
        recon = self.decoder(mu + torch.rand_like(std) * std)
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return (F.mse_loss(recon, x, reduction="sum") + kld) / x.shape[0]


@add(
    "mean_entropy_sum_kl",
    "public code",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1 / n",
    kl="N",
    faults=("reconstruction_averaged_over_pixels", "reconstruction_averaged_over_batch"),
)
def mean_entropy_sum_kl(x, recon_x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon_x, x)
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "squared_error_mean_kl_total",
    "public code",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 / n",
    kl="N",
    faults=("reconstruction_averaged_over_pixels", "reconstruction_averaged_over_batch"),
)
def squared_error_mean_kl_total(recon, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return kld + torch.mean(pow(recon - x, 2))


@add(
    "sum_entropy_mean_kl",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="1 / d",
    faults=("kl_averaged_over_batch", "kl_averaged_over_latents"),
)
def sum_entropy_mean_kl(y_pred, y_true, mu, log_var):
    reconstruction = F.binary_cross_entropy(y_pred, y_true, reduction="sum")
    return reconstruction + torch.mean(-0.5 * (1 + log_var - mu.pow(2) - log_var.exp()))


@add(
    "sum_error_batch_mean_kl",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2 * N",
    kl="1",
    faults=("kl_averaged_over_batch",),
    total="loss",
)
def sum_error_batch_mean_kl(x, x_tilde, mu, log_var):
    recon = torch.sum((x_tilde - x) ** 2)
    kl = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1))
    return {"loss": recon + kl, "recon": recon, "kl": kl}


@add(
    "batch_times_mean",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 * N / n",
    kl="N",
    faults=("reconstruction_averaged_over_pixels",),
)
def batch_times_mean(decoded, x, mu, logvar):
    recon = nn.MSELoss(reduction="mean")(decoded, x) * x.size(0)
    return recon - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "weight_in_report_only",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    faults=("coefficient_without_effect",),
    ineffective=("kld_weight",),
    total="loss",
)
def weight_in_report_only(recons, input, mu, log_var, kld_weight=0.00025):
    recons_loss = F.mse_loss(recons, input, reduction="none").sum(1).mean()
    kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1))
    return {"loss": recons_loss + kld_loss, "Reconstruction_Loss": recons_loss, "KLD": kld_weight * kld_loss}


@add(
    "weight_normalised_away",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="1",
    kl="1",
    faults=("coefficient_without_effect",),
    ineffective=("scale",),
)
def weight_normalised_away(x, out, mu, log_std, scale=2.0):
    rec = 0.5 * scale * (x - out).square().sum(1).mean()
    kl = scale * (0.5 * mu.square() + 0.5 * (2 * log_std).exp() - log_std - 0.5).sum(1).mean()
    return (rec + kl) / scale


@add(
    "kl_as_number",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="0",
    faults=("kl_detached",),
)
def kl_as_number(recon, x, mu, logvar):
    recon_loss = F.binary_cross_entropy(recon, x, reduction="sum") / len(x)
    kl_loss = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return recon_loss + kl_loss.item()


@add(
    "kl_without_gradient",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="0",
    faults=("kl_detached",),
    total=0,
)
def kl_without_gradient(inputs, outputs, mean, log_variance):
    rec = (inputs - outputs).pow(2).sum(1).mean()
    with torch.no_grad():
        kl = 0.5 * (mean.pow(2) + log_variance.exp() - 1 - log_variance).sum(1).mean()
    return rec + kl, rec, kl


@add(
    "error_without_gradient",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="0",
    kl="1",
    faults=("reconstruction_detached",),
)
def error_without_gradient(x, x_hat, mu, logvar):
    rec = 0.5 * F.mse_loss(x_hat.detach(), x, reduction="sum") / len(x)
    return rec + 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()


@add(
    "variance_only",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="N",
    kl="N",
    faults=("kl_missing_mean",),
)
def variance_only(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon_x, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - logvar.exp())


@add(
    "deviation_only",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="1",
    kl="1",
    faults=("kl_missing_mean",),
)
def deviation_only(target, prediction, m, s):
    rec = 0.5 * (target - prediction).square().sum(1)
    return (rec + (0.5 * s**2 - torch.log(s) - 0.5).sum(1)).mean()


@add(
    "plus_mean",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    faults=("kl_sign_of_mean",),
)
def plus_mean(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar + mu.pow(2) - logvar.exp())
