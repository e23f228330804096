"""What counts as a fault, with the source of each number."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """What counts as a fault. Unless a comment says otherwise, values were calibrated on the development half of the
    zoo (`tests/zoo`): beyond what its healthy models have."""

    # reconstructions and inputs, as shares of the variance of x that are explained
    worse_than_mean: float = -0.1
    poor: float = 0.05  # below it, another input may be the right one
    halved_error: float = 0.5  # of another input, relative to that of x, which makes it the right one
    reduced_error: float = 0.67  # the same if the decoder's mean output is far from the mean of x
    far_centre: float = 1.0  # squared distance of these means, in units of the variance of x; convention
    alignment: float = 0.3  # of the decoder's output with x, from which on the decoder knows the data
    linear_share: float = 0.1  # of x that codes explain linearly, from which on the encoder knows the data
    own_codes: float = 5.0  # standard errors by which own codes of a trained model decode better; untrained: up to 2.5
    nearly_constant: float = 0.15  # variance of outputs of an untrained decoder, as a share of that of x
    off_centre: float = 0.1  # squared distance of means that training removes first
    # scale of codes: |log E[(μ² + σ²)/σ†²]|, which is 0 at any optimum
    dispersed: float = math.log(4)
    wide_codes: float = 2.0  # that a KL with little weight does not explain
    unregularised: float = 0.5  # of codes that were not trained with a prior
    # deterministic codes
    tiny_ratio: float = 1e-4  # posterior over prior variance
    made_up: float = 4.0  # factor from Eq. 12 that a made-up variance has
    lost_by_draws: float = 0.5  # share of the variance of x that means explain and draws do not
    # latents
    little_kl: float = 0.5  # nats of all latents together with which a model has nearly collapsed
    little_explained: float = 0.1  # share of the variance of x that it then explains, at most
    told_otherwise: float = 0.5  # share of the variance of x that an auxiliary input determines if x may be in it
    wide_share: float = 0.2  # of posteriors wider than their prior
    rotation_gain: float = 0.15  # nats of contrast that a rotation saves
    rotation_share: float = 0.6  # of the contrast that it saves
    narrow: float = 0.5  # variance ratio of latents that carry enough to have an axis; two are needed
    same_axes: float = 0.8  # mean correlation of matched latents between seeds; convention
    same_subspace: float = 0.8  # mean squared canonical correlation; convention
    scaled_std: float = 2.0  # factor from 1 of the std of scaled codes; convention
    # codes against draws from the prior, as AUC
    apart: float = 0.88
    entirely_apart: float = 0.95  # a warning; codes with the best ELBO have up to 0.92
    nearly_apart: float = 0.85  # of codes whose mean and covariance are off too, or that had a weak KL
    apart_gain: float = 0.6  # nats that a normal distribution fitted to such codes saves
    weak_kl: float = 0.25  # β below which codes need not follow the prior, nor axes be aligned
    # decoder variance and β
    variance_factor: float = 10.0  # between declared and measured decoder variance
    beta_factor: float = 3.0  # between declared and effective β
    doubled: float = 0.5 * math.log(2)  # |log| of a weight of the KL that is known well, halfway from 1 to 2
    doubled_errors: float = 4.0
    doubled_spread: float = 0.3  # of log weights between latents
    beyond_scatter: float = 1.5  # times the scatter around Eq. 12, which the log of that factor exceeds
    certain_factor: float = 10.0  # such a factor that is reported whatever the scatter
    # the encoder: shifts in squared posterior deviations, losses as shares of the KL
    shifted: float = 0.25  # distance of means from those that a high β makes optimal
    slightly_shifted: float = 0.07  # below it means are right, whatever the decoder was trained with
    miscalibrated: tuple[float, float] = (0.05, 4.0)  # distance of the slope from 1, absolute and in standard errors
    lags: float = 0.18  # of `_lag`, up to which posteriors are wide because of β; with β = 6 it is at most 0.1
    lost_nats: float = 0.5  # of the worst quarter of samples; convention
    lost_share: float = 0.3
    lost_spread: float = 0.5  # of the variation of the best ELBO between samples
    lost_share_warning: float = 1.0
    lost_spread_warning: float = 0.15
    lost_share_poor_means: float = 0.5  # that is a warning if means reconstruct badly
    poor_means: float = 1.75  # such an excess error; healthy models have up to 1.5
    # convergence: |log E[(μ² + σ²)/σ†²]| and |E[μ - μ†]/σ†| of a latent, with their standard errors; the average of the
    # first over latents, or the share of the KL that shifting and rescaling codes saves. Development half of
    # `tests/zoo/strangers.py`
    unsettled: float = 0.1
    unsettled_mean: float = 0.2
    unsettled_errors: float = 4.0
    unsettled_on_average: float = 0.25
    unsettled_share: float = 0.03
    wide_posteriors: float = 2.0  # effective over declared β, above which codes far from the prior may be of training
    hardly_trained: float = -1.0  # explained share of the variance of x, down to which more training may help
    # noise of training's draws: |log| distances of weights and moments that are 1 at an optimum of the loss, where the
    # next explanation has 2 or 1/2 in their place; half of that. Development half of `tests/zoo/strangers.py`
    law_of_draws: float = 0.5 * math.log(2)
    less_noise: float = 2.0  # factor of the noise; convention
    not_followed: float = 0.75  # weight that means imply over that of widths; with a high weight of the KL at least 0.8
    spread_of_draws: float = 0.4  # of log weights between latents
    clamped_weight: float = 1.5  # of posteriors that a lower bound keeps wider than their optimum
    far_from_prior: float = 0.9  # variance of the prior's, above which a bound keeps nothing wide; convention
    edge: float = 0.02  # of outputs from the range of sigmoids of probabilities, which training reaches
    # overfitting: held-out over training errors
    overfit: float = 1.5
    overfit_warning: float = 1.75  # healthy models have up to 1.65
    overfit_score: float = 4.0  # standard errors of their difference
    duplicates: float = 0.01  # share of x among the training samples, beyond what these share; convention
    pareto_k: float = 0.7  # above it importance sampling is unreliable (Vehtari et al. 2024)
    # the encoder's second output: |log| distances from what is true at an optimum, and factors between γ²/β as stated
    # and as implied by a reading of that output
    far_moment: float = 0.5  # |log E[(μ² + σ²)/σ†²]| that no healthy model has
    near_factor: float = 2.5  # largest of a reading that is right
    far_factors: tuple[float, float] = (2.0, 2.8)  # smallest of a reading that is wrong, without and with scatter
    scatters: float = 2.3  # times the scatter that the log of that factor exceeds
    scatter_of_square: float = 0.7  # relative to the stated reading's, at most: a low β looks like squares,
    scatter_of_root: float = 1.75  # and a high one like roots
    right_slope: float = 0.03  # distance of the stated reading's slope of x on reconstructions from 1, if it is right
    wrong_slope: tuple[float, float] = (0.06, 2.0)  # of a wrong reading, absolute and in standard errors
    informative: float = 0.1  # mean |log σ²/σ†²| below which posteriors are at their prior, and all readings agree
    # inputs that people confuse with x are tried if
    suspicious: float = 0.9  # x explains less than this share of its variance, or codes are dispersed or far away
    # codebooks; conventions
    collapsed_codebook: float = 0.05  # perplexity over the number of codes
    unused_codes: float = 0.5  # share of codes that are never chosen
    counts_per_code: float = 20.0  # below which unused codes are no evidence


LIMITS = Thresholds()
