"""VAE losses, the half that measures the rules. `Inputs` and `Truth` define the arguments of `add`."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from tests.audit.losses import Case, case_adder

cases: list[Case] = []
add = case_adder(cases, "scored")
VAEOutput = namedtuple("VAEOutput", ["recon_x", "embedding", "log_covariance"])


@add(
    "mnist_example",
    "pytorch/examples",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    outputs=(16,),
    reconstruction="N",
    kl="N",
)
def mnist_example(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 16), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "half_squared_error",
    "clementchadebec/benchmark_VAE",
    "elbo",
    "y x mu s z",
    likelihood="gaussian",
    data=(2, 3, 3),
    reconstruction="1",
    kl="1",
    method="loss_function",
    total=0,
)
class HalfSquaredError(nn.Module):
    def loss_function(self, recon_x, x, mu, log_var, z):
        recon_loss = 0.5 * (recon_x - x).pow(2).flatten(1).sum(dim=-1)
        kld = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp(), dim=-1)
        return (recon_loss + kld).mean(dim=0), recon_loss.mean(dim=0), kld.mean(dim=0)


@add(
    "logits_per_sample",
    "1Konny/FactorVAE",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 3, 3),
    reconstruction="1",
    kl="1",
)
def logits_per_sample(x_true, x_recon, mu, logvar):
    n = x_true.size(0)
    recon = F.binary_cross_entropy_with_logits(x_recon, x_true, reduction="sum").div(n)
    kld = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
    return recon + kld


@add(
    "sigma_parameter",
    "orybkin/sigma-vae-pytorch",
    "elbo",
    "y x mu s",
    likelihood="gaussian_learned",
    data=(1, 3, 3),
    reconstruction="N",
    kl="N",
    method="loss_function",
    total="sum",
)
class SigmaParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_sigma = nn.Parameter(torch.full((1,), -0.4))

    def loss_function(self, recon_x, x, mu, logvar):
        nll = 0.5 * ((x - recon_x) / self.log_sigma.exp()) ** 2 + self.log_sigma + 0.5 * math.log(2 * math.pi)
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return nll.sum(), kl


@add(
    "optimal_sigma",
    "orybkin/sigma-vae-pytorch",
    "elbo",
    "y x mu s",
    likelihood="gaussian_optimal",
    data=(1, 3, 3),
    reconstruction="N",
    kl="N",
)
def optimal_sigma(x_hat, x, mu, logvar):
    log_sigma = ((x - x_hat) ** 2).mean().sqrt().log()
    rec = (0.5 * ((x - x_hat) / log_sigma.exp()) ** 2 + log_sigma).sum()
    return rec - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "nats_per_dimension",
    "openai/vdvae",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    scale="log_std",
    data=(3, 4, 4),
    latents=(2, 2, 2),
    reconstruction="1 / n",
    kl="1 / n",
    total="elbo",
)
def nats_per_dimension(px_z, x_target, qm, qv):
    ndims = x_target[0].numel()
    distortion = 0.5 * (px_z - x_target).square().sum(dim=(1, 2, 3)) / ndims
    rate = (-0.5 - qv + 0.5 * (torch.exp(qv) ** 2 + qm**2)).sum(dim=(1, 2, 3)) / ndims
    return {"elbo": (distortion + rate).mean(), "distortion": distortion.mean(), "rate": rate.mean()}


@add(
    "both_divided_by_pixels",
    "public code",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1 / n",
    kl="1 / n",
)
def both_divided_by_pixels(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 12))
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    kld /= x.size(0) * 12
    return bce + kld


@add(
    "perceptual_without_discriminator",
    "CompVis/latent-diffusion",
    "elbo",
    "x y posterior",
    likelihood="laplace_learned",
    data=(3, 4, 4),
    latents=(2, 2, 2),
    reconstruction="1",
    kl="1",
    packs={"posterior": lambda t: SimpleNamespace(mean=t["mu"], logvar=t["s"])},
)
class PerceptualWithoutDiscriminator(nn.Module):
    def __init__(self, kl_weight=1.0, logvar_init=0.3):
        super().__init__()
        self.kl_weight = kl_weight
        self.logvar = nn.Parameter(torch.ones(size=()) * logvar_init)

    def forward(self, inputs, reconstructions, posteriors):
        nll = torch.abs(inputs - reconstructions) / torch.exp(self.logvar) + self.logvar
        kl = 0.5 * torch.sum(posteriors.mean**2 + posteriors.logvar.exp() - 1.0 - posteriors.logvar, dim=[1, 2, 3])
        return torch.sum(nll) / nll.shape[0] + self.kl_weight * torch.sum(kl) / kl.shape[0]


@add(
    "table_columns",
    "sdv-dev/CTGAN",
    "elbo",
    "y x mu s",
    likelihood="mixed",
    x="table",
    data=(5,),
    reconstruction="1",
    kl="1",
    total="sum",
    method="loss",
)
class TableColumns(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor([0.4, 0.8]))

    def loss(self, recon_x, x, mu, logvar, factor=1):
        terms = [((x[:, :2] - torch.tanh(recon_x[:, :2])) ** 2 / 2 / self.sigma**2).sum()]
        terms.append(torch.log(self.sigma).sum() * x.size(0))
        terms.append(F.cross_entropy(recon_x[:, 2:], torch.argmax(x[:, 2:], dim=-1), reduction="sum"))
        kld = -0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp())
        return sum(terms) * factor / x.size(0), kld / x.size(0)


@add(
    "variance_output",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    scale="variance",
    reconstruction="1",
    kl="1",
)
def variance_output(inputs, outputs, mean, var):
    kl = kl_divergence(Normal(mean, var.sqrt()), Normal(torch.zeros_like(mean), torch.ones_like(var))).sum(-1)
    log_px = Normal(outputs, 1.0).log_prob(inputs).sum(-1)
    return (kl - log_px).mean()


@add(
    "log_precision_output",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    scale="log_precision",
    x="binary",
    reconstruction="N",
    kl="N",
)
def log_precision_output(t, y, q_mean, q_log_precision):
    log_likelihood = (t * torch.log(y + 1e-10) + (1 - t) * torch.log(1 - y + 1e-10)).sum()
    kl = 0.5 * (q_mean**2 + torch.exp(-q_log_precision) + q_log_precision - 1).sum()
    return kl - log_likelihood


@add(
    "token_cross_entropy",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(5,),
    outputs=(5, 6),
    reconstruction="1",
    kl="1",
)
def token_cross_entropy(logits, tokens, mu, logvar):
    rec = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").sum(1).mean()
    return rec - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()


@add(
    "step_log_std",
    "after the usual form",
    "elbo",
    "batch index",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="N",
    kl="N",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
)
class StepLogStd(nn.Module):
    def training_step(self, batch, batch_idx):
        x = batch[0]
        mu, log_sigma = self.encoder(x)
        sigma = log_sigma.exp()
        logits = self.decoder(torch.randn_like(mu) * sigma + mu)
        kl = torch.sum(sigma**2 / 2 + mu**2 / 2 - log_sigma - 0.5)
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") + kl


@add(
    "step_monte_carlo",
    "public code",
    "elbo",
    "batch index",
    likelihood="gaussian_learned",
    reconstruction="1",
    kl="1",
    terms={"monte_carlo_kl": {"weight": 1.0}},
    method="training_step",
    total="loss",
    submodules={"encoder": "x", "fc_mu": "mu", "fc_var": "s", "decoder": "y"},
)
class StepMonteCarlo(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.2]))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        encoded = self.encoder(x)
        mu, std = self.fc_mu(encoded), torch.exp(self.fc_var(encoded) / 2)
        q = Normal(mu, std)
        z = q.rsample()
        recon = Normal(self.decoder(z), torch.exp(self.log_scale)).log_prob(x).flatten(1).sum(1)
        kl = (q.log_prob(z) - Normal(torch.zeros_like(mu), torch.ones_like(std)).log_prob(z)).sum(-1)
        return {"loss": (kl - recon).mean(), "kl": kl.mean(), "recon_loss": recon.mean()}


@add(
    "beta_and_minibatch_share",
    "AntixK/PyTorch-VAE",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="4 * 0.001",
    kwargs={"M_N": 0.001},
    method="loss_function",
    total="loss",
    arguable=("reconstruction_averaged_over_pixels",),
)
class BetaAndMinibatchShare(nn.Module):
    def __init__(self, beta=4):
        super().__init__()
        self.beta = beta

    def loss_function(self, recons, input, mu, log_var, **kwargs):
        recons_loss = F.mse_loss(recons, input)
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        loss = recons_loss + self.beta * kwargs["M_N"] * kld_loss
        return {"loss": loss, "Reconstruction_Loss": recons_loss, "KLD": kld_loss}


@add(
    "beta_bernoulli",
    "1Konny/Beta-VAE",
    "weighted",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1",
    kl="4",
)
def beta_bernoulli(x, x_recon, mu, logvar, beta=4):
    recon_loss = F.binary_cross_entropy_with_logits(x_recon, x, reduction="sum").div(x.size(0))
    return recon_loss + beta * (-0.5 * (1 + logvar - mu.pow(2) - logvar.exp())).sum(1).mean(0)


@add(
    "grey_levels",
    "YannDubs/disentangling-vae",
    "weighted",
    "x y latent",
    likelihood="gaussian",
    x="unit",
    data=(1, 4, 4),
    reconstruction="510",
    kl="1",
    packs={"latent": lambda t: (t["mu"], t["s"])},
)
def grey_levels(data, recon_data, latent_dist):
    mean, logvar = latent_dist
    rec_loss = F.mse_loss(recon_data * 255, data * 255, reduction="sum") / 255 / len(data)
    return rec_loss + 0.5 * (-1 - logvar + mean.pow(2) + logvar.exp()).mean(dim=0).sum()


@add(
    "step_coefficient",
    "Lightning-AI/lightning-bolts",
    "weighted",
    "batch index",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="0.1 / d",
    method="training_step",
    total=0,
    submodules={"encoder": "x", "fc_mu": "mu", "fc_var": "s", "decoder": "y"},
    arguable=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
class StepCoefficient(nn.Module):
    kl_coeff = 0.1

    def training_step(self, batch, batch_idx):
        x, _y = batch
        h = self.encoder(x)
        mu, std = self.fc_mu(h), torch.exp(self.fc_var(h) / 2)
        p, q = Normal(torch.zeros_like(mu), torch.ones_like(std)), Normal(mu, std)
        recon_loss = F.mse_loss(self.decoder(q.rsample()), x, reduction="mean")
        kl = kl_divergence(q, p).mean() * self.kl_coeff
        return kl + recon_loss, {"recon_loss": recon_loss, "kl": kl}


@add(
    "counts_warm_up",
    "scverse/scvi-tools",
    "weighted",
    "inference generative",
    likelihood="poisson",
    output="rate",
    scale="variance",
    x="counts",
    reconstruction="1",
    kl="0.25",
    kwargs={"epoch": 100},
    packs={
        "inference": lambda t: {"qz_m": t["mu"], "qz_v": t["s"]},
        "generative": lambda t: {"x": t["x"], "rate": t["y"]},
    },
)
def counts_warm_up(inference_outputs, generative_outputs, epoch=0, n_epochs_kl_warmup=400):
    kl_weight = min(1.0, epoch / n_epochs_kl_warmup)
    qz_m, qz_v = inference_outputs["qz_m"], inference_outputs["qz_v"]
    x, rate = generative_outputs["x"], generative_outputs["rate"]
    reconst = (rate - x * torch.log(rate) + torch.lgamma(x + 1)).sum(-1)
    return torch.mean(reconst + kl_weight * 0.5 * (qz_v + qz_m**2 - 1 - torch.log(qz_v)).sum(-1))


@add(
    "share_of_data_set",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 / n",
    kl="N / 60000",
    total=0,
    arguable=("reconstruction_averaged_over_pixels",),
)
def share_of_data_set(recon, x, mu, logvar, dataset_size=60000):
    kld_weight = len(x) / dataset_size
    mse = F.mse_loss(recon, x)
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp(), dim=1))
    return mse + kld_weight * kld, mse, kld


@add(
    "absolute_error_weighted",
    "public code",
    "weighted",
    "y x mu s beta",
    likelihood="laplace",
    reconstruction="1 / n",
    kl="0.01 / d",
    total=0,
    packs={"beta": lambda t: 0.01},
    arguable=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def absolute_error_weighted(reconstructed, x, mu, log_var, beta):
    recon_loss = F.l1_loss(reconstructed, x, reduction="mean")
    kl_loss = -0.5 * torch.mean(1 + log_var - mu.pow(2) - log_var.exp())
    return recon_loss + beta * kl_loss, recon_loss, kl_loss


@add(
    "log_hyperbolic_cosine",
    "AntixK/PyTorch-VAE",
    "weighted",
    "y x mu s",
    likelihood="log_cosh",
    likelihood_parameter=10.0,
    reconstruction="0.1 / n",
    kl="0.00025",
    kwargs={"M_N": 0.00025},
    method="loss_function",
    total="loss",
    arguable=("reconstruction_averaged_over_pixels",),
)
class LogHyperbolicCosine(nn.Module):
    def loss_function(self, recons, input, mu, log_var, alpha=10.0, beta=1.0, **kwargs):
        t = alpha * (recons - input)
        recons_loss = (t + torch.log(1 + torch.exp(-2 * t)) - math.log(2.0)).mean() / alpha
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        return {"loss": recons_loss + beta * kwargs["M_N"] * kld_loss, "Reconstruction_Loss": recons_loss}


@add(
    "anomaly_score_weight",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    scale="log_std",
    reconstruction="2",
    kl="0.5",
)
def anomaly_score_weight(x, x_reconstructed, z_mean, z_log_sigma, kl_weight=0.5):
    reconstruction_error = torch.sum(torch.square(x - x_reconstructed), dim=-1)
    kl = -0.5 * torch.sum(1 + 2 * z_log_sigma - z_mean**2 - torch.exp(2 * z_log_sigma), dim=-1)
    return torch.mean(reconstruction_error + kl_weight * kl)


@add(
    "bits_tolerance",
    "hardmaru/WorldModelsExperiments",
    "term",
    "x y mu s",
    likelihood="gaussian",
    data=(4, 4, 3),
    reconstruction="2",
    kl="1",
    terms={"free_bits": {"level": 0.5 * 3, "per": "sample"}},
)
def bits_tolerance(x, y, mu, logvar, kl_tolerance=0.5):
    r_loss = torch.sum((x - y) ** 2, dim=(1, 2, 3)).mean()
    kl_loss = -0.5 * torch.sum(1 + logvar - mu**2 - torch.exp(logvar), dim=1)
    return r_loss + torch.clamp(kl_loss, min=kl_tolerance * mu.shape[1]).mean()


@add(
    "bits_per_latent",
    "public code",
    "term",
    "y x mu s",
    likelihood="categorical",
    output="log_probability",
    x="tokens",
    data=(4,),
    outputs=(4, 5),
    reconstruction="1 / n",
    kl="1",
    terms={"free_bits": {"level": 0.3, "per": "latent"}},
    arguable=("reconstruction_averaged_over_pixels",),
    total=0,
)
def bits_per_latent(log_probs, targets, mu, log_var, beta=1.0, free_bits=0.3):
    nll = F.nll_loss(log_probs.reshape(-1, log_probs.shape[-1]), targets.reshape(-1))
    kl_per_dim = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp())
    kld = torch.clamp(kl_per_dim, min=free_bits).sum(dim=1).mean()
    return nll + beta * kld, nll, kld


@add(
    "capacity_of_sample",
    "clementchadebec/benchmark_VAE",
    "term",
    "y x mu s z epoch",
    likelihood="gaussian",
    reconstruction="1",
    kl="10",
    terms={"capacity": {"level": 3.0, "over": "sample"}},
    total=0,
    method="loss_function",
    packs={"epoch": lambda t: 60},
)
class CapacityOfSample(nn.Module):
    beta, capacity, warmup_epoch = 10.0, 3.0, 20

    def loss_function(self, recon_x, x, mu, log_var, z, epoch):
        recon_loss = 0.5 * F.mse_loss(recon_x.flatten(1), x.flatten(1), reduction="none").sum(dim=-1)
        kld = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp(), dim=-1)
        kld_diff = torch.abs(kld - self.capacity * min(epoch / (self.warmup_epoch + 1), 1))
        return (recon_loss + self.beta * kld_diff).mean(), recon_loss.mean(), kld.mean()


@add(
    "capacity_annealed",
    "google-research/disentanglement_lib",
    "term",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="unit",
    data=(4, 4, 1),
    reconstruction="1",
    kl="1000",
    terms={"capacity": {"level": 5.0, "over": "batch"}},
    kwargs={"step": 20000},
)
def capacity_annealed(features, logits, z_mean, z_logvar, gamma=1000.0, c_max=25.0, iteration_threshold=100000, step=0):
    reconstruction = F.binary_cross_entropy_with_logits(logits, features, reduction="none").sum(dim=(1, 2, 3)).mean()
    kl_loss = 0.5 * (z_mean.square() + z_logvar.exp() - z_logvar - 1).sum(1).mean()
    c = min(c_max * step / iteration_threshold, c_max)
    return reconstruction + gamma * torch.abs(kl_loss - c)


@add(
    "decomposed_kl",
    "YannDubs/disentangling-vae",
    "term",
    "x y latent z",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="1",
    terms={"monte_carlo_kl": {"weight": 1.0}, "total_correlation": {"weight": 5.0, "from": "z"}},
    packs={"latent": lambda t: (t["mu"], t["s"])},
)
def decomposed_kl(data, recon_batch, latent_dist, latent_sample, alpha=1.0, beta=6.0, gamma=1.0):
    mean, logvar = latent_dist
    rec_loss = F.binary_cross_entropy(recon_batch, data, reduction="sum") / len(data)
    log_q_zx = Normal(mean, torch.exp(0.5 * logvar)).log_prob(latent_sample).sum(1)
    log_pz = Normal(0.0, 1.0).log_prob(latent_sample).sum(1)
    mat = Normal(mean[None], torch.exp(0.5 * logvar)[None]).log_prob(latent_sample[:, None])
    log_qz = torch.logsumexp(mat.sum(2), dim=1)
    log_prod_qzi = torch.logsumexp(mat, dim=1).sum(1)
    mi, tc = (log_q_zx - log_qz).mean(), (log_qz - log_prod_qzi).mean()
    return rec_loss + alpha * mi + beta * tc + gamma * (log_prod_qzi - log_pz).mean()


@add(
    "discriminator_ratio",
    "1Konny/FactorVAE",
    "term",
    "x y mu s discriminator",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    terms={"total_correlation": {"weight": 6.4, "from": "discriminator"}},
)
def discriminator_ratio(x, x_recon, mu, logvar, d_z, gamma=6.4):
    recon = F.binary_cross_entropy_with_logits(x_recon, x, reduction="sum").div(x.size(0))
    kld = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
    return recon + kld + gamma * (d_z[:, :1] - d_z[:, 1:]).mean()


@add(
    "classifier_on_latents",
    "public code",
    "term",
    "x y mu s label_logits labels",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    terms={"label": {"weight": 1.0}},
)
def classifier_on_latents(img, img_rec, z_mean, z_log_var, class_logits, label):
    reconstr_loss = F.mse_loss(img_rec, img, reduction="sum") / len(img)
    kl_loss = torch.mean(0.5 * torch.sum(torch.exp(z_log_var) + z_mean**2 - 1.0 - z_log_var, 1))
    return reconstr_loss + kl_loss + F.cross_entropy(class_logits, label)


@add(
    "sparse_means",
    "after the usual form",
    "term",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    terms={"mean_sparsity": {"weight": "0.05 * N"}},
)
def sparse_means(x, decoded, mu, logvar, sparsity=0.05):
    bce = F.binary_cross_entropy(decoded, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) + sparsity * mu.abs().sum()


@add(
    "kl_without_half",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="2 * N",
    faults=("kl_missing_half",),
)
def kl_without_half(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce - torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "minus_forgotten",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="N",
    kl="-N",
    faults=("kl_wrong_sign",),
)
def minus_forgotten(recon, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon, x, reduction="sum")
    kld = 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


@add(
    "step_std_from_log_variance",
    "public code",
    "fault",
    "batch index",
    likelihood="gaussian",
    reconstruction="2 * N",
    kl="N",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepStdFromLogVariance(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, log_sigma = self.encoder(x)
        recon_x = self.decoder(mu + torch.exp(log_sigma) * torch.randn_like(mu))
        kl = -0.5 * torch.sum(1 + log_sigma - mu.pow(2) - log_sigma.exp())
        return (recon_x - x).pow(2).sum() + kl


@add(
    "step_std_read_as_variance",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    scale="variance",
    reconstruction="1",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepStdReadAsVariance(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, std = self.encoder(x)
        x_hat = self.decoder(mu + std * torch.randn_like(std))
        kl = -0.5 * (1 + torch.log(std) - mu**2 - std).sum(-1)
        return (0.5 * (x - x_hat).square().sum(-1) + kl).mean()


@add(
    "step_one_draw",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="1",
    kl="1",
    method="training_step",
    total=0,
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_shared",),
)
class StepOneDraw(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mean, log_std = self.encoder(x)
        epsilon = torch.randn(mean.shape[1], dtype=mean.dtype)
        logits = self.decoder(mean + log_std.exp() * epsilon)
        nll = F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1).mean()
        kl = (-log_std + (log_std.exp() ** 2 + mean**2) / 2 - 0.5).sum(1).mean()
        return nll + kl, nll, kl


@add(
    "kl_over_pixels_alone",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="1 / n",
    faults=("kl_divided_by_pixels", "kl_averaged_over_batch"),
)
def kl_over_pixels_alone(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    kld /= x.shape[0] * x.shape[1]
    return bce + kld


@add(
    "mean_squared_error_sum_kl",
    "public code",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    data=(1, 4, 4),
    reconstruction="2 / n",
    kl="1",
    faults=("reconstruction_averaged_over_pixels",),
)
def mean_squared_error_sum_kl(recon_x, x, mu, logvar):
    mse = F.mse_loss(recon_x, x, reduction="mean")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.size(0)
    return mse + kld


@add(
    "both_means",
    "public code",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="unit",
    reconstruction="1 / n",
    kl="1 / d",
    total=0,
    faults=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def both_means(recon_x, x, mean, logvar):
    recon_loss = F.binary_cross_entropy_with_logits(recon_x, x, reduction="mean")
    kl_div = -0.5 * torch.mean(1 + logvar - mean.pow(2) - logvar.exp())
    return recon_loss + kl_div, recon_loss, kl_div


@add(
    "strings_mean_kl",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="probability",
    x="binary",
    data=(5, 4),
    reconstruction="5 / n",
    kl="1 / d",
    faults=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def strings_mean_kl(x, x_decoded_mean, z_mean, z_log_var, max_length=5):
    xent_loss = max_length * F.binary_cross_entropy(x_decoded_mean, x)
    kl_loss = -0.5 * torch.mean(1 + z_log_var - z_mean**2 - torch.exp(z_log_var), dim=-1)
    return (xent_loss + kl_loss).mean()


@add(
    "beta_unused",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    faults=("coefficient_without_effect",),
    ineffective=("beta",),
)
def beta_unused(recon_x, x, mu, logvar, beta=4.0):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


@add(
    "kl_computed_not_added",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2 / n",
    kl="0",
    faults=("kl_absent", "coefficient_without_effect"),
    ineffective=("beta",),
    total=0,
    arguable=("reconstruction_averaged_over_pixels",),
)
def kl_computed_not_added(recon_x, x, mu, logvar, beta=1.0):
    loss = F.mse_loss(recon_x, x)
    kld = beta * -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return loss, kld


@add(
    "sigmoid_and_logits",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    y="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    faults=("sigmoid_twice",),
)
def sigmoid_and_logits(recon_x, x, mu, logvar):
    bce = nn.BCEWithLogitsLoss(reduction="sum")(recon_x, x)
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@add(
    "sigmoid_in_loss",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    output="logit",
    y="probability",
    x="unit",
    data=(1, 3, 3),
    reconstruction="2",
    kl="1",
    faults=("sigmoid_twice",),
)
def sigmoid_in_loss(x, x_recon, mu, logvar):
    recon_loss = F.mse_loss(torch.sigmoid(x_recon), x, reduction="sum") / x.size(0)
    return recon_loss + 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()


@add(
    "probabilities_as_logits",
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
def probabilities_as_logits(probabilities, tokens, mu, logvar):
    ce = nn.CrossEntropyLoss(reduction="sum")(probabilities.flatten(0, 1), tokens.flatten())
    return (ce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())) / len(tokens)


@add(
    "exponential_twice",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    faults=("kl_exp_of_exp",),
)
def exponential_twice(x, x_hat, mu, logvar):
    var = torch.exp(logvar)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - var.exp(), dim=1)
    return (((x - x_hat) ** 2).sum(1) + kl).mean()


@add(
    "mean_not_squared",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    faults=("kl_mean_not_squared",),
)
def mean_not_squared(x, x_reconstructed, mean, logvar):
    rec = torch.sum((x - x_reconstructed) ** 2, dim=1).mean()
    return rec - 0.5 * (1 + logvar - mean - logvar.exp()).sum(1).mean()


@add(
    "entropy_only",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    faults=("kl_entropy_only",),
)
def entropy_only(x, x_rec, mu, log_var, entropy_weight=1.0):
    rec = (x - x_rec).square().sum(1)
    return (rec - entropy_weight * 0.5 * (1 + log_var).sum(1)).mean()


@add(
    "prediction_as_target",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="none",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    faults=("arguments_swapped",),
)
def prediction_as_target(x, recon_x, mu, logvar):
    bce = F.binary_cross_entropy(x, recon_x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
