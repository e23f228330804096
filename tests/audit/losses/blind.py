"""VAE losses, the part that was written after the rules of `vs.audit`, without knowledge of them, and scored once.

`Inputs` and `Truth` define the arguments of `add`.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, Poisson, kl_divergence

from tests.audit.losses import Case, case_adder

cases: list[Case] = []
add = case_adder(cases, "blind")


def closed_form_kl(mean, log_var):
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var)


# ELBOs ----------------------------------------------------------------------------------------


@add(
    "log_sigmoid_and_expm1",
    "google/flax",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
)
def log_sigmoid_and_expm1(logits, labels, mean, logvar):
    log_p = F.logsigmoid(logits)
    bce = -torch.sum(labels * log_p + (1.0 - labels) * torch.log(-torch.expm1(log_p)), dim=-1)
    kld = -0.5 * torch.sum(1 + logvar - torch.square(mean) - torch.exp(logvar), dim=-1)
    return bce.mean() + kld.mean()


@add(
    "minus_mean_elbo",
    "google-deepmind/dm-haiku",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(4, 4, 1),
    scale="variance",
    reconstruction="1",
    kl="1",
)
def minus_mean_elbo(x, logits, mean, var):
    per_pixel = logits.clamp(min=0) - logits * x + torch.log1p(torch.exp(-logits.abs()))
    log_likelihood = -per_pixel.sum(dim=(1, 2, 3))
    kl = 0.5 * torch.sum(-torch.log(var) - 1.0 + var + mean**2, dim=-1)
    return -(log_likelihood - kl).mean()


@add(
    "guarded_logarithms",
    "hwalsuklee/tensorflow-mnist-VAE",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="binary",
    scale="std",
    reconstruction="1",
    kl="1",
    total=1,
)
def guarded_logarithms(x, y, mu, sigma):
    y = torch.clamp(y, 1e-8, 1 - 1e-8)
    marginal_likelihood = torch.sum(x * torch.log(y) + (1 - x) * torch.log(1 - y), 1).mean()
    divergence = 0.5 * torch.sum(mu.square() + sigma.square() - torch.log(1e-8 + sigma.square()) - 1, 1).mean()
    elbo = marginal_likelihood - divergence
    return y, -elbo, -marginal_likelihood, divergence


@add(
    "trajectories",
    "rtqichen/torchdiffeq",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    data=(10, 2),
    latents=(4,),
    reconstruction="1 / 0.3**2",
    kl="1",
)
def trajectories(pred_x, samp_trajs, qz0_mean, qz0_logvar):
    noise_logvar = 2.0 * math.log(0.3) + torch.zeros_like(pred_x)
    log_px = -0.5 * (math.log(2 * math.pi) + noise_logvar + (samp_trajs - pred_x) ** 2 / torch.exp(noise_logvar))
    prior_mean = prior_logvar = torch.zeros_like(qz0_mean)
    difference = (prior_logvar - qz0_logvar) / 2.0
    kl = difference + (qz0_logvar.exp() + (qz0_mean - prior_mean) ** 2) / (2.0 * prior_logvar.exp()) - 0.5
    return torch.mean(-log_px.sum(-1).sum(-1) + kl.sum(-1), dim=0)


@add(
    "log_variance_called_variance",
    "wiseodd/generative-models",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="1",
)
def log_variance_called_variance(X_sample, X, z_mu, z_var):
    recon_loss = F.binary_cross_entropy(X_sample, X, reduction="sum") / X.shape[0]
    kl_loss = torch.mean(0.5 * torch.sum(torch.exp(z_var) + z_mu**2 - 1.0 - z_var, 1))
    return recon_loss + kl_loss


@add(
    "sampled_divergence",
    "jmtomczak/intro_dgm",
    "elbo",
    "x y mu s z",
    likelihood="bernoulli",
    output="probability",
    x="binary",
    reconstruction="1",
    kl="1",
    terms={"monte_carlo_kl": {"weight": 1.0}},
)
def sampled_divergence(x, probs, mu_e, log_var_e, z):
    probs = torch.clamp(probs, 1e-5, 1.0 - 1e-5)
    reconstruction = (x * torch.log(probs) + (1.0 - x) * torch.log(1.0 - probs)).sum(-1)
    log_q = -0.5 * math.log(2.0 * math.pi) - 0.5 * log_var_e - 0.5 * torch.exp(-log_var_e) * (z - mu_e) ** 2.0
    log_p = -0.5 * math.log(2.0 * math.pi) - 0.5 * z**2.0
    return -(reconstruction - (log_q - log_p).sum(-1)).mean()


@add(
    "weighted_by_one",
    "rasbt/deeplearning-models",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    data=(1, 4, 4),
    reconstruction="2",
    kl="1",
)
def weighted_by_one(decoded, features, z_mean, z_log_var, reconstruction_term_weight=1):
    kl_div = -0.5 * torch.sum(1 + z_log_var - z_mean**2 - torch.exp(z_log_var), dim=1)
    pixelwise = F.mse_loss(decoded, features, reduction="none")
    pixelwise = pixelwise.view(features.shape[0], -1).sum(dim=1).mean()
    return reconstruction_term_weight * pixelwise + kl_div.mean()


@add(
    "module_for_gaussians",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="10",
    kl="1",
)
def module_for_gaussians(x_hat, x, mu, log_sigma):
    variance = torch.full_like(x, 0.1)
    nll = nn.GaussianNLLLoss(full=True, reduction="sum")(x_hat, x, variance)
    kl = (0.5 * ((2 * log_sigma).exp() + mu.square()) - log_sigma - 0.5).sum()
    return (nll + kl) / x.shape[0]


@add(
    "independent_distributions",
    "applied-ai-lab/genesis",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    scale="softplus_std",
    reconstruction="1 / 0.7**2",
    kl="1",
    total="loss",
)
def independent_distributions(x, recon, mu, sigma_ps):
    q_z = Independent(Normal(mu, F.softplus(sigma_ps)), 1)
    p_z = Independent(Normal(torch.zeros_like(mu), torch.ones_like(mu)), 1)
    err = -Independent(Normal(recon, 0.7), 3).log_prob(x)
    kl = kl_divergence(q_z, p_z)
    return SimpleNamespace(loss=(err + kl).mean(), err=err.mean(), kl=kl.mean())


@add(
    "spike_counts",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="poisson",
    output="log_rate",
    x="counts",
    data=(5, 3),
    scale="std",
    reconstruction="1",
    kl="1",
)
def spike_counts(log_rates, spikes, post_mean, post_std):
    recon = F.poisson_nll_loss(log_rates, spikes, log_input=True, full=True, reduction="none").sum(dim=(1, 2))
    prior = Normal(torch.zeros_like(post_mean), torch.ones_like(post_std))
    return torch.mean(recon + kl_divergence(Normal(post_mean, post_std), prior).sum(dim=-1))


@add(
    "bits_per_dimension",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1 / (n * 0.6931471805599453)",
    kl="1 / (n * 0.6931471805599453)",
)
def bits_per_dimension(x, logits, mu, logvar):
    nll = F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)
    return (nll + closed_form_kl(mu, logvar).sum(1)).mean() / (x[0].numel() * math.log(2))


@add(
    "mean_times_volume",
    "public code",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    data=(1, 3, 3, 3),
    reconstruction="2",
    kl="1",
)
def mean_times_volume(x, x_recon, z_mean, z_log_var):
    volume = x.shape[-1] ** 3 * x.shape[1]
    recon_loss = torch.mean(torch.square(x - x_recon)) * volume
    kl = -0.5 * (1 + z_log_var - torch.square(z_mean) - torch.exp(z_log_var))
    return recon_loss + torch.mean(torch.sum(kl, dim=1))


# weights that somebody chose ------------------------------------------------------------------


@add(
    "action_chunks",
    "tonyzhaozh/act",
    "weighted",
    "y x mu s",
    likelihood="laplace",
    data=(5, 4),
    reconstruction="1 / n",
    kl="10",
    total="loss",
    arguable=("reconstruction_averaged_over_pixels",),
)
def action_chunks(a_hat, actions, mu, logvar, kl_weight=10):
    l1 = F.l1_loss(actions, a_hat, reduction="none").mean()
    total_kld = (-0.5 * (1 + logvar - mu.pow(2) - logvar.exp())).sum(1).mean(0)
    return {"l1": l1, "kl": total_kld, "loss": l1 + total_kld * kl_weight}


@add(
    "two_losses",
    "podgorskiy/VAE",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="0.1 / d",
    total="sum",
    arguable=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def two_losses(recon_x, x, mu, logvar):
    error = torch.mean((recon_x - x) ** 2)
    kld = -0.5 * torch.mean(torch.mean(1 + logvar - mu.pow(2) - logvar.exp(), 1))
    return error, kld * 0.1


@add(
    "general_prior",
    "taldatech/soft-intro-vae-pytorch",
    "weighted",
    "x y s mu",
    likelihood="gaussian",
    reconstruction="2",
    kl="0.5",
)
def general_prior(x, recon_x, logvar, mu, mu_o=0.0, logvar_o=0.0, beta_rec=1.0, beta_kl=0.5):
    recon_error = F.mse_loss(recon_x, x, reduction="none").sum(1).mean()
    prior_variance = math.exp(logvar_o)
    kl = 1 + logvar - logvar_o - logvar.exp() / prior_variance - (mu - mu_o).pow(2) / prior_variance
    return beta_rec * recon_error + beta_kl * (-0.5 * kl.sum(1)).mean()


@add(
    "half_of_a_small_weight",
    "theislab/scgen",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    scale="variance",
    reconstruction="1",
    kl="0.5 * 0.00005",
)
def half_of_a_small_weight(x, p, qz_m, qz_v, kl_weight=0.00005):
    kld = kl_divergence(Normal(qz_m, torch.sqrt(qz_v)), Normal(0, 1)).sum(dim=1)
    rl = F.mse_loss(p, x, reduction="none").sum(dim=1)
    return (0.5 * rl + 0.5 * (kld * kl_weight)).mean()


@add(
    "mean_over_tokens",
    "molecularsets/moses",
    "weighted",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(6,),
    outputs=(6, 5),
    reconstruction="1 / n",
    kl="0.05",
    arguable=("reconstruction_averaged_over_pixels",),
)
def mean_over_tokens(y, x, mu, logvar, kl_weight=0.05):
    recon_loss = F.cross_entropy(y.contiguous().view(-1, y.size(-1)), x.contiguous().view(-1))
    kl_loss = 0.5 * (logvar.exp() + mu**2 - 1 - logvar).sum(1).mean()
    return kl_weight * kl_loss + recon_loss


@add(
    "hyperbolic_annealing",
    "kefirski/pytorch_RVAE",
    "weighted",
    "x y mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(4,),
    outputs=(4, 7),
    reconstruction="79 / n",
    kl="0.5",
    arguable=("reconstruction_averaged_over_pixels",),
)
def hyperbolic_annealing(target, logits, mu, logvar, i=3500):
    kld = (-0.5 * torch.sum(logvar - mu.pow(2) - logvar.exp() + 1, 1)).mean().squeeze()
    cross_entropy = F.cross_entropy(logits.view(-1, 7), target.view(-1))
    return 79 * cross_entropy + (math.tanh((i - 3500) / 1000) + 1) / 2 * kld


@add(
    "tiny_weight",
    "explainingai-code/VAE-Pytorch",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(1, 4, 4),
    reconstruction="2 / n",
    kl="0.00001",
    arguable=("reconstruction_averaged_over_pixels",),
)
def tiny_weight(generated_im, im, mean, log_variance):
    kl_loss = torch.mean(0.5 * torch.sum(torch.exp(log_variance) + mean**2 - 1 - log_variance, dim=-1))
    recon_loss = nn.MSELoss()(generated_im, im)
    return recon_loss + 0.00001 * kl_loss


@add(
    "audio_bottleneck",
    "Stability-AI/stable-audio-tools",
    "weighted",
    "y x mu s",
    likelihood="laplace",
    data=(2, 16),
    latents=(3, 4),
    scale="softplus_std",
    reconstruction="1 / n",
    kl="2 * 1e-4 / 4",
    arguable=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents", "kl_missing_half"),
)
def audio_bottleneck(decoded, reals, mean, scale, kl_loss_weight=1e-4):
    stdev = F.softplus(scale)
    var = stdev * stdev
    kl = (mean * mean + var - torch.log(var) - 1).sum(1).mean()
    return F.l1_loss(decoded, reals) + kl_loss_weight * kl


@add(
    "sentence_and_weight",
    "jxhe/vae-lagging-encoder",
    "weighted",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(5,),
    outputs=(5, 6),
    reconstruction="1",
    kl="0.1",
    method="loss",
    total=0,
)
class SentenceAndWeight(nn.Module):
    def loss(self, output_logits, tgt, mu, logvar, kl_weight=0.1):
        batch_size, length, vocabulary = output_logits.shape
        loss = F.cross_entropy(output_logits.reshape(-1, vocabulary), tgt.reshape(-1), reduction="none")
        reconstruct_err = loss.view(batch_size, length).sum(-1)
        kl = 0.5 * (mu.pow(2) + logvar.exp() - logvar - 1).sum(1)
        return (reconstruct_err + kl_weight * kl).mean(), reconstruct_err, kl


# further terms --------------------------------------------------------------------------------


@add(
    "free_bits_of_bars",
    "magenta/magenta",
    "term",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(4,),
    outputs=(4, 5),
    scale="std",
    reconstruction="1",
    kl="0.2 * (1 - 0.99**100)",
    terms={"free_bits": {"level": 4 * 0.6931471805599453, "per": "sample"}},
)
def free_bits_of_bars(logits, notes, mu, sigma, step=100, rate=0.99, max_beta=0.2, free_bits=4):
    kl_div = kl_divergence(Normal(mu, sigma), Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum(1)
    kl_cost = torch.clamp(kl_div - free_bits * math.log(2.0), min=0)
    r_loss = F.cross_entropy(logits.transpose(1, 2), notes, reduction="none").sum(1)
    return r_loss.mean() + (1.0 - rate**step) * max_beta * kl_cost.mean()


@add(
    "capacity_with_minibatch_share",
    "AntixK/PyTorch-VAE",
    "term",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 / n",
    kl="1000 * 0.005",
    kwargs={"M_N": 0.005},
    method="loss_function",
    total="loss",
    terms={"capacity": {"level": 5.0, "over": "batch"}},
    arguable=("reconstruction_averaged_over_pixels",),
)
class CapacityWithMinibatchShare(nn.Module):
    gamma, max_iter, num_iter = 1000.0, 100000, 20000

    def __init__(self):
        super().__init__()
        self.C_max = torch.tensor([25.0])

    def loss_function(self, recons, input, mu, log_var, **kwargs):
        recons_loss = F.mse_loss(recons, input)
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        C = torch.clamp(self.C_max / self.max_iter * self.num_iter, 0, self.C_max.item())
        loss = recons_loss + self.gamma * kwargs["M_N"] * (kld_loss - C).abs()
        return {"loss": loss, "Reconstruction_Loss": recons_loss, "KLD": kld_loss}


@add(
    "bits_of_the_batch",
    "public code",
    "term",
    "y x mu s",
    likelihood="categorical",
    output="probability",
    x="tokens",
    data=(4,),
    outputs=(4, 5),
    scale="std",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 0.5, "per": "batch"}},
)
def bits_of_the_batch(x_hat, x, mu, sigma, free_bits=0.5):
    recon = F.nll_loss(torch.log(x_hat).permute(0, 2, 1), x, reduction="sum") / len(x)
    kl = kl_divergence(Normal(mu, sigma), Normal(0.0, 1.0)).sum(1).mean()
    return recon + torch.max(kl - free_bits, torch.zeros_like(kl))


@add(
    "classes_beside_pixels",
    "public code",
    "term",
    "x y mu s label_logits labels",
    likelihood="gaussian",
    data=(4, 4, 1),
    reconstruction="2000 / n",
    kl="0.1",
    terms={"label": {"weight": 1.0}},
    arguable=("reconstruction_averaged_over_pixels",),
)
def classes_beside_pixels(inputs, recon, z_mean, z_log_var, label_logits, labels):
    classification_loss = F.cross_entropy(label_logits, labels)
    reconstruction_loss = 1000 * F.mse_loss(recon, inputs)
    kl = -0.5 * (1 + z_log_var - torch.square(z_mean) - torch.exp(z_log_var))
    return 0.1 * kl.sum(1).mean() + reconstruction_loss + classification_loss


@add(
    "absolute_means",
    "after the usual form",
    "term",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    terms={"mean_sparsity": {"weight": 0.06 / 3}},
)
def absolute_means(x, x_hat, mu, log_var, l1=0.06):
    recon = 0.5 * (x - x_hat).pow(2).sum(1).mean()
    return recon + closed_form_kl(mu, log_var).sum(1).mean() + l1 * mu.abs().mean()


@add(
    "maximum_per_latent",
    "after the usual form",
    "term",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    scale="log_std",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 0.1, "per": "latent"}},
)
def maximum_per_latent(x, probs, mu, log_std, lamb=0.1):
    nll = F.binary_cross_entropy(probs, x, reduction="none").sum(1)
    kl = 0.5 * (mu**2 + torch.exp(2 * log_std) - 1) - log_std
    return (nll + torch.maximum(kl, torch.full_like(kl, lamb)).sum(1)).mean()


@add(
    "modified_elbo",
    "rtqichen/beta-tcvae",
    "term",
    "x y mu s z",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="1",
    kl="1",
    terms={"monte_carlo_kl": {"weight": 1.0}, "total_correlation": {"weight": 3.0, "from": "z"}},
)
def modified_elbo(x, x_params, mu, logsigma, zs, beta=4.0, dataset_size=1000):
    logpx = -F.binary_cross_entropy_with_logits(x_params, x, reduction="none").sum(1)
    log_density = Normal(mu, logsigma.exp()).log_prob(zs).sum(1)
    logpz = Normal(0.0, 1.0).log_prob(zs).sum(1)
    pairs = Normal(mu[None], logsigma.exp()[None]).log_prob(zs[:, None])
    log_weight = math.log(len(x) * dataset_size)
    logqz_prodmarginals = (torch.logsumexp(pairs, dim=1) - log_weight).sum(1)
    logqz = torch.logsumexp(pairs.sum(2), dim=1) - log_weight
    modified = logpx - (log_density - logqz) - beta * (logqz - logqz_prodmarginals) - (logqz_prodmarginals - logpz)
    return -modified.mean()


# likelihoods outside the table, of which only the KL is identified ------------------------------


@add(
    "feature_means_too",
    "public code",
    "weighted",
    "x y mu s",
    likelihood="other",
    data=(6, 4),
    reconstruction="1",
    kl="N",
    total=0,
)
def feature_means_too(x, x_recons, z_mean, z_log_var, reconstruction_wt=3.0):
    recon = torch.sum((x - x_recons) ** 2) + torch.sum((x.mean(dim=2) - x_recons.mean(dim=2)) ** 2)
    kl = torch.sum(torch.sum(-0.5 * (1 + z_log_var - z_mean**2 - torch.exp(z_log_var)), dim=1))
    return reconstruction_wt * recon + kl, recon, kl


@add(
    "heavy_tails",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="other",
    reconstruction="1",
    kl="0.5",
)
def heavy_tails(x, x_hat, mu, log_var, beta=0.5, df=4.0):
    nll = (df + 1) / 2 * torch.log1p((x - x_hat) ** 2 / df)
    return nll.sum(1).mean() + beta * closed_form_kl(mu, log_var).sum(1).mean()


# faults ---------------------------------------------------------------------------------------


@add(
    "log_std_once",
    "cern1710/MNIST-image-generation",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="1",
    kl="1",
    faults=("kl_log_std_as_log_variance",),
)
def log_std_once(logits, imgs, mean, log_std):
    rec = F.binary_cross_entropy_with_logits(logits, imgs, reduction="none").sum(1).mean()
    std = torch.exp(log_std)
    return rec + (-0.5 * torch.sum(1 + log_std - mean**2 - std**2, dim=-1)).mean()


@add(
    "means_everywhere",
    "CorcovadoMing/Researchlib",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    data=(1, 4, 4),
    reconstruction="2 / n",
    kl="1 / d",
    faults=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
class MeansEverywhere(nn.Module):
    def forward(self, x, recon_x, mu, logvar):
        img_loss = F.mse_loss(x, recon_x)
        return img_loss - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()


@add(
    "variance_subtracted",
    "public code",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 * N",
    kl="N",
    faults=("kl_sign_of_variance",),
)
def variance_subtracted(x_reconstructed, x, mu, logvar):
    kl = 0.5 * torch.sum(mu * mu - logvar.exp() - logvar - 1, dim=1).sum()
    return nn.MSELoss(reduction="sum")(x_reconstructed, x) + kl


@add(
    "mean_of_kl_beside_sum_of_entropy",
    "kuc2477/pytorch-vae",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="1 / d",
    faults=("kl_averaged_over_latents",),
)
def mean_of_kl_beside_sum_of_entropy(x_reconstructed, x, mean, logvar):
    reconstruction = nn.BCELoss(reduction="sum")(x_reconstructed, x) / x.size(0)
    return reconstruction + ((mean**2 + logvar.exp() - 1 - logvar) / 2).mean()


@add(
    "integer_division",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="0",
    faults=("kl_absent", "coefficient_without_effect"),
    ineffective=("step", "total_steps"),
)
def integer_division(x, x_hat, mu, log_var, step=100, total_steps=1000):
    recon = ((x_hat - x) ** 2).sum(1).mean()
    return recon + step // total_steps * closed_form_kl(mu, log_var).sum(1).mean()


@add(
    "mean_error_total_kl",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2",
    kl="N",
    faults=("reconstruction_averaged_over_batch",),
)
def mean_error_total_kl(pred, img, mu, logvar):
    recon = F.mse_loss(pred, img, reduction="none").sum(dim=(1, 2, 3)).mean()
    return recon + torch.sum(closed_form_kl(mu, logvar))


@add(
    "characters_of_molecules",
    "maxhodak/keras-molecules",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="binary",
    data=(6, 5),
    reconstruction="6 / n",
    kl="1 / d",
    faults=("kl_averaged_over_latents",),
    arguable=("reconstruction_averaged_over_pixels",),
)
def characters_of_molecules(x, x_decoded_mean, z_mean, z_log_var):
    max_length = 6
    xent_loss = max_length * F.binary_cross_entropy(x_decoded_mean.flatten(), x.flatten())
    kl_loss = -0.5 * torch.mean(1 + z_log_var - torch.square(z_mean) - torch.exp(z_log_var), dim=-1)
    return (xent_loss + kl_loss).mean()


@add(
    "step_exponential_without_half",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    data=(2, 4),
    reconstruction="1",
    kl="1",
    method="training_step",
    total="loss",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepExponentialWithoutHalf(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mean, log_variance = self.encoder(x)
        z = torch.addcmul(mean, torch.exp(log_variance), torch.randn_like(mean))
        recon = 0.5 * (self.decoder(z) - x).square().flatten(1).sum(1).mean()
        kl = closed_form_kl(mean, log_variance).sum(1).mean()
        return {"loss": recon + kl, "recon": recon.detach()}


@add(
    "step_small_noise",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="1",
    method="training_step",
    submodules={"encoder": "x", "z_mean": "mu", "z_log_var": "s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepSmallNoise(nn.Module):
    epsilon_std = 0.1

    def training_step(self, batch, batch_idx):
        x, _ = batch
        h = self.encoder(x)
        z_mean, z_log_var = self.z_mean(h), self.z_log_var(h)
        epsilon = torch.normal(0.0, self.epsilon_std, z_mean.shape, dtype=z_mean.dtype)
        decoded = self.decoder(z_mean + torch.exp(z_log_var / 2) * epsilon)
        xent = x.shape[1] * F.binary_cross_entropy(decoded, x, reduction="none").mean(-1)
        return (xent - 0.5 * (1 + z_log_var - z_mean**2 - torch.exp(z_log_var)).sum(-1)).mean()


@add(
    "step_noise_of_one_row",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_shared",),
)
class StepNoiseOfOneRow(nn.Module):
    def training_step(self, batch, batch_idx):
        x = batch[0]
        mu, logvar = self.encoder(x)
        eps = torch.randn(1, mu.size(1), dtype=mu.dtype).expand_as(mu)
        recon_x = self.decoder(eps.mul(logvar.mul(0.5).exp()).add(mu))
        return (F.mse_loss(recon_x, x, reduction="sum") + closed_form_kl(mu, logvar).sum()) / x.size(0)


@add(
    "kl_as_float",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="0",
    faults=("kl_detached",),
)
def kl_as_float(recon, x, mu, logvar, beta=1.0):
    kl = closed_form_kl(mu, logvar).sum(1).mean()
    return F.mse_loss(recon, x, reduction="sum") / len(x) + beta * float(kl.detach())


@add(
    "whole_kl",
    "public code",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1",
    kl="2",
    faults=("kl_missing_half",),
)
class WholeKL(nn.Module):
    def __init__(self):
        super().__init__()
        self.reconstruction_loss = nn.BCELoss()

    def forward(self, reconstruction, target, m, log_v):
        r_l = self.reconstruction_loss(reconstruction, target) * math.prod(reconstruction.size()[1:])
        return r_l + (log_v.exp() + m**2 - 1 - log_v).sum(-1).mean()


@add(
    "likelihood_plus_kl",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="poisson",
    output="rate",
    x="counts",
    scale="log_std",
    reconstruction="1",
    kl="-1",
    faults=("kl_wrong_sign",),
)
def likelihood_plus_kl(counts, rate, mean, log_std):
    log_px = Poisson(rate).log_prob(counts).sum(1)
    kl = kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(1)
    return -(log_px + kl).mean()


@add(
    "softmax_before_log_softmax",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="categorical",
    output="logit",
    y="probability",
    x="tokens",
    data=(3,),
    outputs=(3, 6),
    reconstruction="1",
    kl="1",
    faults=("softmax_twice",),
)
def softmax_before_log_softmax(tokens, output, mu, log_var):
    log_p = F.log_softmax(output, dim=-1)
    nll = -log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).sum(1)
    return (nll + closed_form_kl(mu, log_var).sum(1)).mean()


@add(
    "weight_of_the_module",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    method="loss_function",
    total="loss",
    faults=("coefficient_without_effect",),
    ineffective=("beta",),
)
class WeightOfTheModule(nn.Module):
    beta = 1.0

    def loss_function(self, recon, x, mu, log_var, beta=4.0):
        nll = F.binary_cross_entropy_with_logits(recon, x, reduction="none").sum(1).mean()
        kld = closed_form_kl(mu, log_var).sum(1).mean()
        return {"loss": nll + self.beta * kld, "kld": kld}


@add(
    "mean_over_image",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="1",
    faults=("reconstruction_averaged_over_pixels",),
)
def mean_over_image(img, recon, mu, logvar):
    error = torch.einsum("bchw,bchw->b", recon - img, recon - img) / img[0].numel()
    return torch.mean(error + closed_form_kl(mu, logvar).sum(1))


@add(
    "kl_per_pixel",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1",
    kl="1 / n",
    faults=("kl_divided_by_pixels",),
)
def kl_per_pixel(logits, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.shape[0]
    kld = closed_form_kl(mu, logvar).sum() / x.numel()
    return bce + kld
