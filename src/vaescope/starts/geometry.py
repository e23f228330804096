"""Weights from the geometry of the data: latents start as coordinates of a geodesic embedding instead of at random.

No label is used. Some training samples are embedded in several ways; encoder and decoder are fitted to each embedding
and trained for a while; the weights with the highest validation ELBO are kept, beside those of a random start. Then the
latents of the best candidate are unmixed by the linear map that lowers the contrast of its decoder and the total
correlation of the latents, and trained on with and without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.core.validation import ImageShape
from vaescope.distributions import Prior
from vaescope.distributions.likelihoods import bernoulli_log_likelihood
from vaescope.inference.derivatives import jacobian
from vaescope.models import VAE, Member
from vaescope.models.networks import Params
from vaescope.starts import Trials, better_members
from vaescope.starts.embedding import Neighbourhood, OnStep, embed, no_report

IMAGE_CANDIDATES = (Neighbourhood(15, conformal=True, blurs=(1.5 / 32, 3 / 32)),)
CANDIDATES = (Neighbourhood(15, conformal=True), Neighbourhood(10))


@dataclass(frozen=True)
class GeometricStart:
    """How weights are found. No part takes more than half of the steps of the training that follows."""

    candidates: tuple[Neighbourhood, ...] = ()
    """Embeddings that are tried; by default those that suit the kind of data."""
    samples: int = 4000
    """Training samples that are embedded, at most."""
    fit_steps: int = 400
    """Steps in which encoder and decoder are fitted to an embedding."""
    longer_fit_steps: int = 1200
    """The same for members that lost a latent of the embedding in their trial."""
    trial_steps: int = 2200
    """Steps for which every candidate is trained."""
    unmixing_steps: int = 1500
    """Steps for which the best candidate is trained on, with and without the unmixing map."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Latents to which encoder and decoder are fitted."""

    u: Float[Tensor, "N d"]
    """In the unbounded coordinate; not used where a latent is not."""
    used: Bool[Tensor, " d"]
    """The other latents keep the prior as their posterior, and the decoder does not depend on them."""
    variance: Float[Tensor, " d"]
    """Of the posteriors."""


def prior_samples(prior: Prior, latent_dim: int, samples: int = 20_000) -> Float[Tensor, "M d"]:
    """Sorted samples of every latent under the prior, in the unbounded coordinate; always the same."""
    z = prior.sample(samples, latent_dim, generator=randomness.generator(0, "prior of a start"))
    return prior.from_support(z).sort(0).values.float()


def at_ranks(values: Float[Tensor, "N q"], ordered: Float[Tensor, "M q"]) -> Float[Tensor, "N q"]:
    """Every value replaced by the quantile of the ordered samples that belongs to its rank.

    >>> at_ranks(torch.tensor([[5.0], [1.0]]), torch.tensor([[0.0], [10.0], [20.0], [30.0], [40.0]]))
    tensor([[30.],
            [10.]])
    """
    ranks = values.double().argsort(dim=0, stable=True).argsort(dim=0)
    places = ((ranks + 0.5) / len(values) * (len(ordered) - 1)).round().long()
    return ordered.gather(0, places)


# fitting encoder and decoder to given latents -------------------------------------------------


def fit_to_latents(
    model: VAE,
    rows: Float[Tensor, "N r"],
    targets: Targets,
    seed: int,
    *,
    initial: Params | None = None,
    steps: int = 400,
    batch: int = 64,
    learning_rate: float = 1e-3,
    on_step: OnStep = no_report,
) -> Params:
    """Weights of one member whose latents are the targets, by regression of encoder and decoder.

    Args:
        model: the VAE.
        rows: observations, followed by the auxiliary input of an iVAE.
        targets: the latents of the rows.
        seed: of initial weights and batches.
        initial: weights to start from; those of the seed by default.
        steps: of the regression.
        batch: rows per step.
        learning_rate: of Adam.
        on_step: called with the steps done, and all steps.
    """
    params = {name: value.clone().requires_grad_() for name, value in (initial or model.init([seed])).items()}
    optimiser = torch.optim.Adam(params.values(), lr=learning_rate)
    generator = randomness.generator(seed, "geometric start")
    ordered = prior_samples(model.prior, model.latent_dim)
    width = torch.where(targets.used, targets.variance, ordered.var(0))
    for step in range(steps):
        chosen = torch.randint(len(rows), (min(batch, len(rows)),), generator=generator)
        drawn = torch.randint(len(ordered), (len(chosen), model.latent_dim), generator=generator)
        u = torch.where(targets.used, targets.u[chosen], ordered.gather(0, drawn))
        centre = torch.where(targets.used, targets.u[chosen], ordered.mean(0))
        posterior = model.encode(params, rows[None, chosen])
        encoded = (posterior.mean - centre).square() / (2 * width)
        spread = (posterior.marginal_variance.log() - width.log()).square()
        x, _auxiliary = model.split_auxiliary(rows[None, chosen])
        # Adam is indifferent to the scale of the loss, and encoder and decoder share no weights
        loss = (encoded + spread).sum(-1).mean() + decoding_loss(model, params, x, u[None])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        on_step(step + 1, steps)
    return {name: value.detach() for name, value in params.items()}


def decoding_loss(
    model: VAE, params: Params, x: Float[Tensor, "E B n"], u: Float[Tensor, "E B d"]
) -> Float[Tensor, ""]:
    """What the likelihood says about the decoder at given latents, without its precision."""
    output = model.decoder_output(params, model.prior.to_support(u))
    if model.likelihood == "bernoulli":
        return -bernoulli_log_likelihood(x, output).mean()
    return (x - output).square().sum(-1).mean()


# unmixing latents -----------------------------------------------------------------------------


def unmixing_map(gram: Float[Tensor, "P d d"], covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    r"""The linear map of latents by which a near-deterministic ELBO gains most: u = A v for new latents v.

    .. math:: \min_A \; \tfrac12 \sum_k \mathbb{E} \log (A^\top G A)_{kk} + \log (A^{-1} C A^{-\top})_{kk}

    The first part is the IMA contrast of the decoder, by its metric tensors :math:`G = J^\top J`, the second the total
    correlation of the new latents, as if they were normal: these two are what the ELBO of such a model loses, up to a
    constant. The contrast alone (joint diagonalisation, Pham 2001) would correlate the latents where it can.

    Args:
        gram: G at every point.
        covariance: C, of the codes.

    >>> mixing = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    >>> gram = torch.stack([mixing.T @ torch.diag(torch.tensor([a, 1.0])) @ mixing for a in (1.0, 4.0)])
    >>> codes = torch.linalg.inv(mixing).double().numpy()
    >>> product = mixing.numpy() @ unmixing_map(gram, codes @ codes.T)
    >>> bool(np.allclose(product, np.diag(np.diag(product)), atol=1e-4))
    True
    """
    metric = gram.double().numpy()
    latents = metric.shape[1]
    size = np.trace(metric, axis1=1, axis2=2) / latents
    usable = np.isfinite(size) & (size > 0)
    if not usable.any():
        return np.eye(latents)
    metric = metric[usable] / size[usable, None, None] + 1e-9 * np.eye(latents)

    def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
        A = flat.reshape(latents, latents)
        inverse = np.linalg.inv(A)
        GA, WC = metric @ A, inverse @ covariance
        lengths, variances = (A * GA).sum(1), (WC * inverse).sum(1)
        value = 0.5 * (np.log(lengths).sum(1).mean() + np.log(variances).sum())
        slope = (GA / lengths[:, None]).mean(0) - inverse.T @ (WC / variances[:, None]) @ inverse.T
        return float(value), slope.ravel()

    found = minimize(cost, np.eye(latents).ravel(), jac=True, method="BFGS").x.reshape(latents, latents)
    unit: np.ndarray = found / np.linalg.norm(found, axis=0)
    return unit


def unmixed_targets(member: Member, rows: Float[Tensor, "N r"], *, points: int = 256) -> Targets | None:
    """The latents of a member after the unmixing map; None if fewer than two are in use.

    Args:
        member: a trained member.
        rows: some training data.
        points: codes at which the decoder is differentiated.
    """
    model = member.model
    posterior = model.encode(member.params, rows[None]).member(0)
    mean, variance = posterior.mean.detach(), posterior.marginal_variance.detach().mean(0)
    used = mean.var(0) > variance
    if int(used.sum()) < 2:
        return None
    scale = mean[:, used].std(0)
    J = jacobian(_metric_output(member), mean[:points])[..., used] * scale
    codes = (mean[:, used] / scale).double()
    back = np.linalg.inv(unmixing_map(J.mT @ J, torch.cov(codes.T).numpy()))
    new = mean.clone()
    new[:, used] = (codes @ torch.from_numpy(back.T)).to(mean)
    ordered = prior_samples(model.prior, model.latent_dim)
    return Targets(at_ranks(new, ordered), used, variance)


@dataclass(frozen=True)
class _metric_output:
    """The decoder of a member as a function of u, in units in which every output has the same noise everywhere."""

    member: Member

    def __call__(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        model = self.member.model
        output = model.decoder_output(self.member.params, model.prior.to_support(u)[None])[0]
        # the derivative of 2 arctan exp(l/2) is √(p (1 - p)), the standard deviation of a binary output
        return 2 * (output / 2).exp().atan() if model.likelihood == "bernoulli" else output


# the start ------------------------------------------------------------------------------------


def embedding_targets(
    model: VAE,
    rows: Float[Tensor, "N r"],
    kind: Neighbourhood,
    image_shape: ImageShape | None,
    *,
    relative_variance: float = 0.05,
    on_step: OnStep = no_report,
) -> Targets:
    """An embedding of some observations, mapped to the prior.

    Args:
        model: the VAE.
        rows: observations, followed by the auxiliary input of an iVAE.
        kind: of the embedding.
        image_shape: (channels, height, width) if the rows are images.
        relative_variance: of the posteriors, as a part of the prior's.
        on_step: called with the parts of the embedding that are done, and all parts.
    """
    x = model.split_auxiliary(rows)[0].numpy()
    found = embed(x, model.latent_dim, kind, image_shape, on_step=on_step)
    values = torch.zeros(len(rows), model.latent_dim, dtype=torch.float64)
    values[:, : found.shape[1]] = torch.from_numpy(found.copy())
    ordered = prior_samples(model.prior, model.latent_dim)
    used = torch.arange(model.latent_dim) < found.shape[1]
    return Targets(at_ranks(values, ordered), used, relative_variance * ordered.var(0))


def lost_latents(
    member: Member, rows: Float[Tensor, "N r"], targets: Targets, *, least: float = 0.5
) -> Bool[Tensor, " d"]:
    """The latents that were fitted to a coordinate of the embedding and do not follow it any more after training.

    Args:
        member: a trained member; one that diverged has no codes.
        rows: the samples that were embedded.
        targets: what it was fitted to.
        least: correlation of posterior means and coordinates of a latent that is not lost.
    """
    if member.status != "finished":
        return torch.zeros_like(targets.used)
    mean = member.model.encode(member.params, rows[None]).member(0).mean.detach()
    both = torch.stack([mean, targets.u.to(mean)])
    both = both - both.mean(1, keepdim=True)
    correlation = both.prod(0).sum(0) / both.square().sum(1).prod(0).sqrt()
    return targets.used & ~(correlation >= least)


def forgotten_latents(
    before: Member, after: Member, rows: Float[Tensor, "N r"], *, least: float = 0.5
) -> Bool[Tensor, " d"]:
    """The latents of a member that no linear map of the codes of another one recovers, such as after more training.

    Args:
        before: a member; of one that diverged there is nothing to forget.
        after: the member whose codes are used.
        rows: some training data.
        least: multiple correlation of a latent that is not forgotten; those with a wider posterior are not in use.
    """
    if not before.status == after.status == "finished":
        return torch.zeros(before.model.latent_dim, dtype=torch.bool)
    own, other = (m.model.encode(m.params, rows[None]).member(0) for m in (before, after))
    mean, codes = own.mean.detach().double(), other.mean.detach().double()
    mean, codes = mean - mean.mean(0), codes - codes.mean(0)
    left = mean - codes @ torch.linalg.lstsq(codes, mean).solution
    in_use = mean.var(0) > own.marginal_variance.detach().mean(0)
    return in_use & ~(1 - left.var(0) / mean.var(0) >= least**2)


@dataclass(frozen=True, eq=False)
class GeometryTrials(Trials):
    """The trials of one stack that starts from the geometry of its data."""

    title: ClassVar[str] = "Geometric start"
    start: GeometricStart = field(default_factory=GeometricStart)
    image_shape: ImageShape | None = None

    def weights(self) -> Params:
        """Weights for every member: those of the trial with the highest validation ELBO."""
        problem = self.problem
        if (samples := problem.train_data.shape[1]) < 10:
            raise InputError(f"start='geometry' needs at least 10 training samples, got {samples}; use start='random'.")
        best = self._trained("random weights", problem.model.init(problem.seeds), self.start.trial_steps)
        for kind in self.start.candidates or (CANDIDATES if self.image_shape is None else IMAGE_CANDIDATES):
            best = better_members(best, self._candidate(kind))
        longer = self._trained_on("the best of them, trained on", best, self._weights_of(best))
        unmixed = self._trained_on("the same with unmixed latents", best, self._unmixed(best))
        return self._weights_of(better_members(better_members(best, longer), unmixed))

    @cached_property
    def _rows(self) -> Float[Tensor, "D N r"]:
        """Training samples that are embedded."""
        return self.problem.train_data.sample(self.start.samples).cpu()

    def _candidate(self, kind: Neighbourhood) -> list[Member]:
        """Members that are trained from an embedding; where one lost a latent, from a longer fit if that is better.

        A decoder that has not learned a latent when training begins gives it up, although the data depend on it.
        """
        targets = self._embedded(kind)
        found = self._trained(str(kind), self._fitted(targets, self.start.fit_steps), self.start.trial_steps)
        specs = self.problem.members
        lost = [
            bool(lost_latents(m, self._rows[s.data], targets[s.data]).any()) for m, s in zip(found, specs, strict=True)
        ]
        longer = self.start.longer_fit_steps
        if not any(lost) or self._at_most_half(longer) == self._at_most_half(self.start.fit_steps):
            return found
        self.progress.message(
            f"{self.title}: {sum(lost)} of {len(lost)} members lost a latent, which is fitted for longer."
        )
        weights = self._fitted(targets, longer)
        better = better_members(found, self._trained(f"{kind}, fitted for longer", weights, self.start.trial_steps))
        return [new if was_lost else own for new, own, was_lost in zip(better, found, lost, strict=True)]

    def _trained_on(self, name: str, before: Sequence[Member], weights: Params) -> list[Member]:
        """Members that are trained from these weights; those before it where that lost what a latent encoded."""
        after, specs = self._trained(name, weights, self.start.unmixing_steps), self.problem.members
        lost = [
            bool(forgotten_latents(own, new, self._rows[spec.data]).any())
            for own, new, spec in zip(before, after, specs, strict=True)
        ]
        if any(lost):
            self.progress.message(f"{self.title}: {name}: {sum(lost)} of {len(lost)} members lost a latent: not kept.")
        return [b if was_lost else a for b, a, was_lost in zip(before, after, lost, strict=True)]

    def _embedded(self, kind: Neighbourhood) -> dict[int, Targets]:
        """The embedding of every data set."""
        model, rows = self.problem.model, self._rows
        data_sets = sorted({spec.data for spec in self.problem.members})
        self.progress.message(f"Geometric start: embedding {rows.shape[1]} samples ({kind}).")
        return {
            k: embedding_targets(model, rows[k], kind, self.image_shape, on_step=on_step)
            for k, on_step in zip(data_sets, self._parts(len(data_sets)), strict=True)
        }

    def _fitted(self, targets: Mapping[int, Targets], steps: int) -> Params:
        """Weights that are fitted to the embedding of the data set of every member."""
        model, rows, specs = self.problem.model, self._rows, self.problem.members
        steps = self._at_most_half(steps)
        fitted = [
            fit_to_latents(model, rows[s.data], targets[s.data], s.seed, steps=steps, on_step=on_step)
            for s, on_step in zip(specs, self._parts(len(specs)), strict=True)
        ]
        return _stacked(fitted)

    def _unmixed(self, members: Sequence[Member]) -> Params:
        """Weights with the latents of every member unmixed; the same weights where there is nothing to unmix."""
        found, steps = [], self._at_most_half(self.start.fit_steps)
        own_weights = self._split(self._weights_of(members))
        for member, own, spec, on_step in zip(
            members, own_weights, self.problem.members, self._parts(len(members)), strict=True
        ):
            rows = self._rows[spec.data]
            targets = unmixed_targets(member, rows) if member.status == "finished" else None
            if targets is not None:
                own = fit_to_latents(member.model, rows, targets, spec.seed, initial=own, steps=steps, on_step=on_step)
            found.append(own)
        return _stacked(found)

    def _parts(self, count: int) -> list[OnStep]:
        """Show a bar for so many parts that follow, and return what reports the steps of each."""
        self.progress.begin(len(self.problem.members), 1)

        def part(index: int) -> OnStep:
            return lambda done, total: self.progress.step(index * total + done, count * total)

        return [part(index) for index in range(count)]

    def _split(self, weights: Params) -> list[Params]:
        """The weights of every member, with a member axis of length one."""
        count = len(self.problem.members)
        return [{name: value[k : k + 1] for name, value in weights.items()} for k in range(count)]


def _stacked(weights: Sequence[Params]) -> Params:
    return {name: torch.cat([own[name] for own in weights]) for name in weights[0]}
