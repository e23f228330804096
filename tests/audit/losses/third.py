"""VAE losses for a third score of `vs.audit`, written after its rules were repaired and without a look at them.

Styles that the other files lack: functions of one sample under `vmap`, scripted helpers, objects that are no modules,
distributions and tuples as arguments, full covariance matrices, loops, sizes written as numbers, weights in global
settings. `Inputs` and `Truth` define the arguments of `add`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Bernoulli, ContinuousBernoulli, Independent, MultivariateNormal, Normal, kl_divergence

from tests.audit.losses import Case, case_adder

cases: list[Case] = []
add = case_adder(cases, "third")


# ELBOs ----------------------------------------------------------------------------------------


@add(
    "covariance_matrices",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    scale="variance",
    reconstruction="1",
    kl="1",
)
def covariance_matrices(images, logits, loc, var):
    posterior = MultivariateNormal(loc, torch.diag_embed(var))
    prior = MultivariateNormal(torch.zeros_like(loc), torch.eye(loc.shape[-1], dtype=loc.dtype))
    log_px = Independent(Bernoulli(logits=logits), 3).log_prob(images)
    return -(log_px - kl_divergence(posterior, prior)).mean()


@add(
    "trace_and_determinant",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
)
def trace_and_determinant(x_hat, x, m, log_s2):
    covariance = torch.diag_embed(torch.exp(log_s2))
    trace = torch.einsum("bii->b", covariance)
    kl = 0.5 * (trace + torch.einsum("bi,bi->b", m, m) - m.shape[1] - torch.logdet(covariance))
    return (0.5 * torch.linalg.vector_norm(x - x_hat, dim=1) ** 2 + kl).mean()


@add(
    "one_example_under_vmap",
    "dslisleedh/Generative_models-flax",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
)
def one_example_under_vmap(logits, x, mean, logvar):
    def bce(logit, label):
        log_p = F.logsigmoid(logit)
        return -torch.sum(label * log_p + (1.0 - label) * (log_p - logit))

    def kl(mu, log_variance):
        return -0.5 * torch.sum(1 + log_variance - torch.square(mu) - torch.exp(log_variance))

    return torch.vmap(bce)(logits, x).mean() + torch.vmap(kl)(mean, logvar).mean()


@torch.jit.script
def scripted_kl(mu: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.pow(mu, 2) + torch.exp(sigma) - sigma - 1).sum()


@add(
    "scripted_parts",
    "AlessandroCesaTs/Street_View_Generator",
    "elbo",
    "y x mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 * N",
    kl="N",
)
def scripted_parts(input, target, mu, sigma):
    return F.mse_loss(input, target, reduction="sum") + scripted_kl(mu, sigma)


@dataclass
class LossOut:
    total: Tensor
    recon: Tensor
    kld: Tensor


@add(
    "dataclass_of_losses",
    "public code",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="N",
    kl="N",
    total="total",
)
def dataclass_of_losses(x_recon, x, mu, logvar, beta: float = 1.0) -> LossOut:
    recon = F.binary_cross_entropy(x_recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return LossOut(recon + beta * kld, recon, kld)


@add(
    "loop_over_the_batch",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="poisson",
    output="rate",
    x="counts",
    data=(5,),
    scale="std",
    reconstruction="1",
    kl="1",
)
def loop_over_the_batch(batch, rates, means, stds):
    total = 0.0
    for counts, rate, mean, std in zip(batch, rates, means, stds, strict=True):
        total += (rate - counts * torch.log(rate) + torch.lgamma(counts + 1)).sum()
        for j in range(len(mean)):
            total += 0.5 * (mean[j] ** 2 + std[j] ** 2 - 1) - torch.log(std[j])
    return total / len(batch)


@add(
    "object_that_is_called",
    "jjgsherwood/COMSOC",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="N",
    kl="N",
)
class ObjectThatIsCalled:
    def __init__(self):
        self.criterion = nn.BCEWithLogitsLoss(reduction="sum")

    def __call__(self, logits, target, mu, log_std):
        return self.criterion(logits, target) + ObjectThatIsCalled.KLD(mu, log_std)

    @staticmethod
    def KLD(mu, log_std):
        return 0.5 * torch.sum(torch.exp(2 * log_std) + mu**2 - 2 * log_std - 1)


@add(
    "cross_entropy_minus_entropy",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="gaussian",
    scale="softplus_std",
    reconstruction="4",
    kl="1",
)
def cross_entropy_minus_entropy(x, px_mean, mu, rho):
    sigma = F.softplus(rho)
    entropy = Normal(mu, sigma).entropy().sum(-1)
    cross_entropy = 0.5 * (math.log(2 * math.pi) + mu**2 + sigma**2).sum(-1)
    log_px = Normal(px_mean, 0.5).log_prob(x).sum(-1)
    return (cross_entropy - entropy - log_px).mean()


@add(
    "sizes_as_numbers",
    "public code",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="N",
    kl="N",
)
def sizes_as_numbers(recon_x, x, mu, logvar):
    BCE = nn.BCELoss(reduction="sum")(recon_x.view(-1, 16), x.view(-1, 16))
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


@add(
    "one_hot_of_tokens",
    "after the usual form",
    "elbo",
    "x y mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(6,),
    outputs=(6, 5),
    reconstruction="1",
    kl="1",
)
def one_hot_of_tokens(tokens, logits, mu, log_var):
    log_p = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    nll = -(F.one_hot(tokens, logits.shape[-1]) * log_p).sum((1, 2))
    return (nll + 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1)).mean()


@add(
    "padding_never_met",
    "molecularsets/moses",
    "elbo",
    "y x mu s",
    likelihood="categorical",
    output="logit",
    x="tokens",
    data=(4,),
    outputs=(4, 6),
    reconstruction="1",
    kl="1",
    total=0,
)
def padding_never_met(logits, sentence, mu, logvar):
    recon = F.cross_entropy(logits.transpose(1, 2), sentence, ignore_index=-1, reduction="sum") / sentence.shape[0]
    kl = 0.5 * torch.sum(torch.exp(logvar) + mu * mu - 1 - logvar, -1)
    return recon + kl.mean(), recon.item(), kl.mean().item()


@add(
    "accumulated_over_four_batches",
    "after the usual form",
    "elbo",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="0.25",
    kl="0.25",
)
def accumulated_over_four_batches(out, img, mean, logvar, accumulation_steps=4):
    nll = F.binary_cross_entropy_with_logits(out, img, reduction="none").flatten(1).sum(-1).mean(0)
    kl = (-0.5 * (1 + logvar - mean**2 - torch.exp(logvar))).sum(-1).mean(0)
    return (nll + kl) / accumulation_steps


@add(
    "distributions_as_arguments",
    "badrmarani/rolex",
    "elbo",
    "x qzx pxz",
    likelihood="gaussian",
    scale="std",
    reconstruction="1 / 0.09",
    kl="1",
    total=0,
    packs={"qzx": lambda t: Normal(t["mu"], t["s"]), "pxz": lambda t: Normal(t["y"], 0.3)},
)
class DistributionsAsArguments(nn.Module):
    beta = 1.0

    def forward(self, x, qzx, pxz):
        log_likelihood = pxz.log_prob(x).sum(-1).mean(-1)
        kld = kl_divergence(qzx, Normal(0.0, 1.0)).sum(-1).mean(-1)
        return -(log_likelihood - kld * self.beta), -log_likelihood, kld * self.beta


@add(
    "step_of_distributions",
    "after the usual form",
    "elbo",
    "batch index",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="log_std",
    reconstruction="1",
    kl="1",
    method="training_step",
    total="loss",
    submodules={"encoder": "mu s", "decoder": "y"},
)
class StepOfDistributions(nn.Module):
    def training_step(self, batch, batch_idx):
        images, _labels = batch
        q = Normal(*self.moments(images))
        out = self.decoder(q.rsample())
        log_px = Bernoulli(logits=out).log_prob(images).flatten(1).sum(1)
        kl = kl_divergence(q, Normal(torch.zeros_like(q.loc), torch.ones_like(q.scale))).sum(1)
        loss = torch.mean(kl - log_px)
        return {"loss": loss, "log": {"kl": kl.mean().detach(), "nll": -log_px.mean().detach()}}

    def moments(self, images):
        mean, log_scale = self.encoder(images)
        return mean, log_scale.exp()


# weights that somebody chose ------------------------------------------------------------------

cfg = SimpleNamespace(beta=0.1, lambda_recon=10.0)


@add(
    "weight_of_the_settings",
    "Khrylx/DLow",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(5, 4),
    reconstruction="20",
    kl="0.1",
    total=0,
)
def weight_of_the_settings(Y_r, Y, mu, logvar):
    MSE = (Y_r - Y).pow(2).sum() / Y.shape[0]
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / Y.shape[0]
    loss = cfg.lambda_recon * MSE + cfg.beta * KLD
    return loss, [loss.item(), MSE.item(), KLD.item()]


@add(
    "everything_averaged_and_weighted",
    "starccato/starccato_jax",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="2 / n",
    kl="0.3 / d",
    total="loss",
    arguable=("reconstruction_averaged_over_pixels", "kl_averaged_over_latents"),
)
def everything_averaged_and_weighted(x, reconstructed, mean, logvar, beta=0.3):
    reconstruction_loss = torch.mean((x - reconstructed) ** 2)
    kl_divergence = -0.5 * torch.mean(1 + logvar - torch.square(mean) - torch.exp(logvar))
    net_loss = reconstruction_loss + beta * kl_divergence
    return SimpleNamespace(reconstruction_loss=reconstruction_loss, kl_divergence=kl_divergence, loss=net_loss)


@add(
    "tuple_of_predictions",
    "ZhonghuaYi/AutoEncoder",
    "weighted",
    "pred",
    likelihood="gaussian",
    data=(3, 4, 4),
    reconstruction="2 / n",
    kl="0.00025",
    kwargs={"kld_weight": 0.00025},
    total="loss",
    packs={"pred": lambda t: (t["y"], t["x"], t["mu"], t["s"])},
    arguable=("reconstruction_averaged_over_pixels",),
)
class TupleOfPredictions(nn.Module):
    def forward(self, pred, kld_weight):
        recons, input, mu, log_var = pred
        recons_loss = F.mse_loss(recons, input)
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1), dim=0)
        return {"loss": recons_loss + kld_weight * kld_loss, "KLD": -kld_loss.detach()}


@add(
    "quadratic_then_linear",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="huber",
    likelihood_parameter=0.5,
    data=(4, 6),
    reconstruction="1 / n",
    kl="0.01",
    arguable=("reconstruction_averaged_over_pixels",),
)
def quadratic_then_linear(pose, target, mu, logvar, delta=0.5, lambda_kl=1e-2):
    kl = (-0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=-1)).mean()
    return F.huber_loss(pose, target, delta=delta) + lambda_kl * kl


@add(
    "convex_combination",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="0.9",
    kl="0.1",
)
def convex_combination(x, out, mu, sigma, alpha=0.9):
    recon = 0.5 * ((x - out) ** 2).sum(dim=1)
    kl = -torch.log(sigma) + 0.5 * (sigma.pow(2) + mu.pow(2) - 1)
    return torch.mean(alpha * recon + (1 - alpha) * kl.sum(dim=1))


@add(
    "beta_normalised_by_sizes",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1 / n",
    kl="4 / n",
    arguable=("reconstruction_averaged_over_pixels", "kl_divided_by_pixels"),
)
def beta_normalised_by_sizes(img, logits, z_mu, z_logvar, beta=4.0):
    beta_norm = beta * z_mu.shape[1] / img[0].numel()
    kl = torch.mean(-0.5 * (1 + z_logvar - z_mu**2 - z_logvar.exp()))
    return F.binary_cross_entropy_with_logits(logits, img) + beta_norm * kl


@add(
    "warm_up_of_the_module",
    "public code",
    "weighted",
    "y x mu s",
    likelihood="gaussian",
    data=(2, 6),
    reconstruction="2",
    kl="0.35",
    method="compute_loss",
)
class WarmUpOfTheModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.beta_max, self.current_step, self.warmup_steps = 0.7, 500, 1000

    def get_beta(self):
        return self.beta_max * min(1.0, self.current_step / max(1, self.warmup_steps))

    def compute_loss(self, x_hat, x, z_mean, z_logvar):
        rec = torch.sum(F.mse_loss(x_hat, x, reduction="none"), dim=[1, 2]).mean()
        kl = -0.5 * torch.sum(1 + z_logvar - z_mean.square() - z_logvar.exp(), dim=1)
        return rec + self.get_beta() * kl.mean()


def beta_elbo(x, x_rec, mu, log_var, weight, kl_first):
    kl = 0.5 * (mu**2 + log_var.exp() - 1 - log_var).sum(1).mean()
    absolute = (x - x_rec).abs().sum(1).mean()
    return weight * kl + absolute if kl_first else absolute + weight * kl


add(
    "partial_of_a_function",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="laplace",
    reconstruction="1",
    kl="2.5",
)(functools.partial(beta_elbo, weight=2.5, kl_first=True))


@add(
    "clicks_with_free_scale",
    "boostcampaitech7/level2-recsys-movierecommendation-recsys-02-lv3",
    "weighted",
    "y x mu s",
    likelihood="multinomial",
    output="logit",
    x="counts",
    reconstruction="1",
    kl="0.2",
)
def clicks_with_free_scale(recon_x, x, mu, logvar, anneal=0.2):
    BCE = -torch.mean(torch.sum(torch.log(torch.softmax(recon_x, 1)) * x, -1))
    KLD = -0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))
    return BCE + anneal * KLD


# further terms --------------------------------------------------------------------------------


@add(
    "free_nats_by_relu",
    "danijar/dreamer",
    "term",
    "x y mu s",
    likelihood="gaussian",
    data=(3, 4, 4),
    scale="std",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 2.0, "per": "sample"}},
)
def free_nats_by_relu(obs, image_pred, post_mean, post_std, free_nats=2.0):
    likelihood = Independent(Normal(image_pred, 1.0), 3).log_prob(obs)
    div = kl_divergence(Normal(post_mean, post_std), Normal(0.0, 1.0)).sum(-1)
    return -likelihood.mean() + torch.relu(div - free_nats).mean()


@add(
    "free_nats_of_the_batch",
    "danijar/dreamer",
    "term",
    "x y mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="0.5",
    terms={"free_bits": {"level": 1.5, "per": "batch"}},
)
def free_nats_of_the_batch(obs, pred, mu, log_var, free_nats=1.5, kl_scale=0.5):
    nll = -Normal(pred, torch.ones_like(pred)).log_prob(obs).sum(-1).mean()
    div = (0.5 * (mu**2 + log_var.exp() - 1 - log_var)).sum(-1).mean()
    return nll + kl_scale * torch.maximum(div, torch.tensor(free_nats))


@add(
    "chosen_by_where",
    "after the usual form",
    "term",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="1",
    terms={"free_bits": {"level": 0.3, "per": "latent_mean"}},
)
def chosen_by_where(logits, x, mu, logvar, threshold=0.3):
    nll = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
    kl = (-0.5 * (1 + logvar - mu**2 - logvar.exp())).mean(0)
    return nll + torch.where(kl > threshold, kl, torch.full_like(kl, threshold)).sum()


@add(
    "capacity_that_grew",
    "1Konny/Beta-VAE",
    "term",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    data=(1, 4, 4),
    reconstruction="1",
    kl="30",
    terms={"capacity": {"level": 12.5, "over": "batch"}},
    kwargs={"global_iter": 500},
)
def capacity_that_grew(x_recon, x, mu, logvar, gamma=30.0, C_max=25.0, C_stop_iter=1000, global_iter=0):
    recon_loss = F.binary_cross_entropy_with_logits(x_recon, x, reduction="sum").div(x.size(0))
    klds = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
    total_kld = klds.sum(1).mean(0, True)
    C = min(max(C_max / C_stop_iter * global_iter, 0), C_max)
    return recon_loss + gamma * (total_kld - C).abs()


@add(
    "classes_with_small_weight",
    "after the usual form",
    "term",
    "y x mu s label_logits labels",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    terms={"label": {"weight": 0.1}},
    total="sum",
)
def classes_with_small_weight(x_hat, x, mu, logvar, y_pred, y_true, alpha=0.1):
    rec = 0.5 * (x_hat - x).pow(2).sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    clf = -F.log_softmax(y_pred, dim=1)[torch.arange(len(y_true)), y_true].mean()
    return rec, kl, alpha * clf


@add(
    "decay_of_codes",
    "after the usual form",
    "term",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="0.5",
    terms={"mean_penalty": {"weight": 0.01 / 3}},
)
def decay_of_codes(x_hat, x, z_mu, z_logvar, beta=0.5, z_decay=0.01):
    rec = ((x_hat - x) ** 2).sum(1).mean()
    kl = 0.5 * (z_mu**2 + z_logvar.exp() - 1 - z_logvar).sum(1).mean()
    return rec + beta * kl + z_decay * z_mu.pow(2).mean()


# likelihoods outside the table, of which only the KL is identified ------------------------------


@add(
    "charbonnier",
    "after the usual form",
    "weighted",
    "y x mu s",
    likelihood="other",
    data=(5, 4),
    reconstruction="1",
    kl="0.02",
)
def charbonnier(pred, gt, mu, logvar, kl_weight=0.02):
    rec = torch.sqrt((pred - gt) ** 2 + 1e-4).sum((1, 2)).mean()
    return rec + kl_weight * (0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum(1)).mean()


@add(
    "continuous_bernoulli",
    "after the usual form",
    "weighted",
    "x y mu s",
    likelihood="other",
    y="probability",
    x="unit",
    scale="std",
    reconstruction="1",
    kl="1",
)
def continuous_bernoulli(x, probs, mu, std):
    log_px = ContinuousBernoulli(probs).log_prob(x).sum(1)
    return (kl_divergence(Normal(mu, std), Normal(0.0, 1.0)).sum(1) - log_px).mean()


@add(
    "root_of_the_mean",
    "public code",
    "weighted",
    "y x mu s",
    likelihood="other",
    reconstruction="1",
    kl="1 / d",
    arguable=("kl_averaged_over_latents",),
)
class RootOfTheMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.MSELoss(reduction="mean")

    def kld_loss(self, mu, logvar):
        return -0.5 * torch.mean(1 + logvar - mu**2 - logvar.exp())

    def forward(self, x, x0, mu, logvar):
        return torch.sqrt(self.criterion(x, x0)) + self.kld_loss(mu, logvar)


# faults ---------------------------------------------------------------------------------------


@add(
    "half_of_the_logarithm",
    "public code",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="2",
    kl="1",
    faults=("kl_log_std_as_log_variance",),
)
def half_of_the_logarithm(prediction, truth, mean, logvar):
    kl = -0.5 * torch.sum(1 + logvar / 2 - torch.square(mean) - torch.exp(logvar), dim=1)
    return torch.sum((prediction - truth) ** 2, dim=1).mean() + kl.mean()


@add(
    "mean_entropy_scripted_kl",
    "AlessandroCesaTs/Street_View_Generator",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    data=(1, 4, 4),
    reconstruction="1 / n",
    kl="N",
    faults=("reconstruction_averaged_over_batch", "reconstruction_averaged_over_pixels"),
)
def mean_entropy_scripted_kl(input, target, mu, sigma):
    return F.binary_cross_entropy(input, target, reduction="mean") + scripted_kl(mu, sigma)


@add(
    "divergence_commented_out",
    "bahtman/Adv_ML_Lira",
    "fault",
    "x z p_x_z q_z_x",
    likelihood="gaussian",
    scale="std",
    data=(3, 4),
    reconstruction="2 / n",
    kl="0",
    total=0,
    packs={"p_x_z": lambda t: Normal(t["y"], 1.0), "q_z_x": lambda t: Normal(t["mu"], t["s"])},
    faults=("kl_absent",),
    arguable=("reconstruction_averaged_over_pixels",),
)
def divergence_commented_out(x, z, p_x_z, q_z_x):
    p_z = Normal(torch.zeros_like(q_z_x.loc), torch.ones_like(q_z_x.scale))
    kl = kl_divergence(q_z_x, p_z).sum()
    log_px = nn.MSELoss()(p_x_z.mean, x)
    loss = log_px  # + kl
    return loss.mean(), loss, log_px, kl


@add(
    "elbo_with_two_signs",
    "public code",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="1 / 0.2",
    kl="-1",
    faults=("kl_wrong_sign",),
    total=0,
    method="forward",
)
class ElboWithTwoSigns(nn.Module):
    _noise_std = 0.2

    def forward(self, x_hat, x_true, z0_mean, z0_log_var):
        kl_div_loss = torch.sum(1 + z0_log_var - torch.square(z0_mean) - torch.exp(z0_log_var), dim=-1) / 2
        likelihood_loss = torch.mean(torch.sum(torch.pow(x_hat - x_true, 2) / (2 * self._noise_std), dim=-1))
        return likelihood_loss + torch.mean(kl_div_loss), likelihood_loss, kl_div_loss


@add(
    "widths_without_means",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="gaussian",
    scale="std",
    reconstruction="1",
    kl="1",
    faults=("kl_missing_mean",),
)
def widths_without_means(x, y, mean, std):
    kl = 0.5 * (std**2 - 1 - 2 * std.log()).sum(-1).mean() + 0 * mean.sum()
    return F.gaussian_nll_loss(y, x, torch.ones_like(y), reduction="sum") / len(x) + kl


@add(
    "detached_moments",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    reconstruction="1",
    kl="0",
    faults=("kl_detached",),
)
def detached_moments(logits, x, mu, logvar):
    q = Normal(mu.detach(), (0.5 * logvar.detach()).exp())
    kl = kl_divergence(q, Normal(0.0, 1.0)).sum(1).mean()
    return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.shape[0] + kl


@add(
    "error_as_a_number",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="0",
    kl="1",
    faults=("reconstruction_detached",),
)
def error_as_a_number(recon, x, mu, logvar):
    kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()
    return kl + 0.5 * F.mse_loss(recon.data, x, reduction="sum") / len(x)


@add(
    "probabilities_as_logits_of_bernoulli",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="bernoulli",
    output="logit",
    y="probability",
    x="binary",
    data=(1, 4, 4),
    scale="std",
    reconstruction="1",
    kl="1",
    faults=("sigmoid_twice",),
)
def probabilities_as_logits_of_bernoulli(x, decoded, loc, scale):
    log_px = Independent(Bernoulli(logits=decoded), 3).log_prob(x)
    kl = kl_divergence(Independent(Normal(loc, scale), 1), Independent(Normal(0 * loc, 1 + 0 * scale), 1))
    return (kl - log_px).mean()


@add(
    "weight_overwritten",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    faults=("coefficient_without_effect",),
    ineffective=("beta",),
)
def weight_overwritten(recon_x, x, mu, logvar, beta=5.0):
    beta = 1.0
    rec = 0.5 * torch.square(recon_x - x).sum(1)
    return torch.mean(rec + beta * 0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum(1))


@add(
    "divided_by_the_batch_twice",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="1",
    kl="1 / N",
    faults=("kl_averaged_over_batch",),
)
def divided_by_the_batch_twice(recon, x, mu, logvar):
    batch_size = x.size(0)
    bce = F.binary_cross_entropy(recon, x, reduction="sum") / batch_size
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    kld /= batch_size
    return bce + kld


@add(
    "batchmean_beside_mean",
    "after the usual form",
    "fault",
    "x y mu s",
    likelihood="laplace",
    data=(3, 4, 4),
    reconstruction="1",
    kl="1 / d",
    faults=("kl_averaged_over_latents",),
)
def batchmean_beside_mean(image, output, mu, logvar):
    l1 = nn.L1Loss(reduction="sum")(output, image) / image.shape[0]
    return l1 + torch.mean(-0.5 * (1 + logvar - mu.pow(2) - logvar.exp()))


@add(
    "whole_divergence_of_std",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="bernoulli",
    output="logit",
    x="binary",
    scale="std",
    reconstruction="1",
    kl="2",
    faults=("kl_missing_half",),
)
def whole_divergence_of_std(logits, x, z_mean, z_std):
    bce = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    kl = (z_mean.square() + z_std.square() - torch.log(z_std.square()) - 1).sum(1)
    return (bce + kl).mean()


@add(
    "step_noise_of_variance",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    reconstruction="1",
    kl="1",
    method="training_step",
    submodules={"enc": "x", "fc_mu": "mu", "fc_logvar": "s", "decoder": "y"},
    faults=("noise_not_std",),
)
class StepNoiseOfVariance(nn.Module):
    def reparameterize(self, mu, logvar):
        return mu + logvar.exp() * torch.randn_like(mu)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        h = self.enc(x)
        mu, logvar = self.fc_mu(h), self.fc_logvar(h)
        x_hat = self.decoder(self.reparameterize(mu, logvar))
        rec = 0.5 * F.mse_loss(x_hat, x, reduction="none").sum(-1)
        return (rec + 0.5 * (mu**2 + logvar.exp() - 1 - logvar).sum(-1)).mean()


@add(
    "step_noise_by_rand",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="bernoulli",
    output="probability",
    x="unit",
    reconstruction="N",
    kl="N",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_not_normal",),
)
class StepNoiseByRand(nn.Module):
    def training_step(self, batch, batch_idx):
        x = batch[0]
        mean, log_var = self.encoder(x)
        epsilon = torch.rand(mean.shape, dtype=mean.dtype)
        x_hat = self.decoder(mean + epsilon * torch.exp(0.5 * log_var))
        bce = F.binary_cross_entropy(x_hat, x, reduction="sum")
        return bce - 0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())


@add(
    "step_noise_of_one_vector",
    "after the usual form",
    "fault",
    "batch index",
    likelihood="gaussian",
    scale="std",
    reconstruction="2",
    kl="1",
    method="training_step",
    submodules={"encoder": "mu s", "decoder": "y"},
    faults=("noise_shared",),
)
class StepNoiseOfOneVector(nn.Module):
    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, sigma = self.encoder(x)
        z = mu + sigma * torch.randn(mu.shape[-1], dtype=mu.dtype)
        error = (self.decoder(z) - x).square().sum(1)
        return (error + kl_divergence(Normal(mu, sigma), Normal(0.0, 1.0)).sum(1)).mean()


@add(
    "mean_over_frames_and_joints",
    "after the usual form",
    "fault",
    "y x mu s",
    likelihood="gaussian",
    data=(4, 6),
    reconstruction="2 / n",
    kl="1",
    faults=("reconstruction_averaged_over_pixels",),
)
def mean_over_frames_and_joints(motion_hat, motion, mu, logvar):
    rec = (motion_hat - motion).square().mean(dim=(1, 2))
    return (rec - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)).mean()
