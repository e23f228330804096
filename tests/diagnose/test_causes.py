"""The first cause is named, healthy models get no warning, and absurd numbers are not shown: planted truth."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn

import vaescope as vs
from tests.diagnose.models import VARIANCE, W, X, codes, linear, pixels
from vaescope.analysis.models import networks_are_initial
from vaescope.products.diagnose import rules
from vaescope.products.diagnose.page import drawings
from vaescope.products.diagnose.reconstruction import Reconstruction, Trial, separability
from vaescope.products.diagnose.rules import wrong_input
from vaescope.report.wording import times


def given(function):
    """The optimal linear model with another quantity in the place of its variances."""
    return linear(encode=lambda x: (100 * (x @ W) * VARIANCE, function(VARIANCE).expand(len(x), 2)))


# healthy models -------------------------------------------------------------------------------


def with_dead_latents(seed):
    """Three latents in use, the same for every seed, and five that are not, with means that vary a little."""
    generator = torch.Generator().manual_seed(10)
    V = torch.linalg.qr(torch.randn(12, 3, generator=generator))[0] * torch.tensor([3.0, 2.0, 1.5])
    variance = 1 / (1 + 100 * V.square().sum(0))
    noise = 0.02 * torch.randn(12, 5, generator=torch.Generator().manual_seed(seed))

    def encode(x):
        mean = torch.cat([100 * (x @ V) * variance, x @ noise], dim=1)
        return mean, torch.cat([variance, 0.99 * torch.ones(5)]).expand_as(mean)

    x = torch.randn(300, 3, generator=generator) @ V.T + 0.1 * torch.randn(300, 12, generator=generator)
    return vs.adapters.from_callables(encode=encode, decode=lambda z: z[:, :3] @ V.T.to(z), latent_dim=8), x


def test_stability_is_that_of_latents_in_use():
    (first, x), (second, _) = with_dead_latents(1), with_dead_latents(2)
    found = vs.diagnose([first, second], x, progress=None)
    assert found.evidence.stability.score == pytest.approx(1, abs=1e-6)
    assert found.evidence.stability.subspace == pytest.approx(1, abs=1e-6)
    assert "unstable" not in [f.code for f in found.findings]


def test_the_same_subspace_on_other_axes_is_said_to_be_so():
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]]) / 2**0.5
    other = linear(encode=lambda x: ((100 * (x @ W) * VARIANCE) @ turn, (VARIANCE @ turn.square()).expand(len(x), 2)))
    found = vs.diagnose([linear(), other], X, progress=None)
    finding = next(f for f in found.findings if f.code == "unstable")
    assert "on other axes" in finding.title
    assert found.evidence.stability.subspace == pytest.approx(1, abs=1e-6)


def full_covariance(**known):
    """A decoder with columns that are not orthogonal, and the marginals of its exact posterior."""
    A = torch.tensor([[2.0, 1.6, 0.3], [0.0, 1.2, 1.0]]).T
    S = torch.linalg.inv(torch.eye(2) + 100 * A.T @ A)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator) @ A.T + 0.1 * torch.randn(300, 3, generator=generator)
    model = vs.adapters.from_callables(
        encode=lambda x: (100 * x @ A @ S, S.diagonal().expand(len(x), 2)),
        decode=lambda z: z @ A.T.to(z),
        latent_dim=2,
        precision=100.0,
        **known,
    )
    return model, x


def test_marginals_of_a_full_posterior_are_not_judged_as_the_posterior():
    found = vs.diagnose(*full_covariance(posterior_family="marginals"), progress=None)
    assert "amortization" not in [f.code for f in found.findings]
    assert "marginals" in found.skipped["gap"]


@pytest.mark.parametrize("known", [{"objective": "iwae"}, {"beta": 3.0}])
def test_an_encoder_that_maximised_something_else_is_not_blamed(known):
    shifted = {"encode": lambda x: (100 * (x @ W) * VARIANCE + 0.3, VARIANCE.expand(len(x), 2))}
    assert codes(linear(**shifted)) == ["amortization"]
    assert "amortization" not in codes(linear(**shifted, **known))


def test_a_small_loss_of_the_encoder_is_not_a_finding():
    """A quarter of a nat per latent, of about five nats of KL."""
    shift = 0.7 * VARIANCE.sqrt()
    found = vs.diagnose(
        linear(encode=lambda x: (100 * (x @ W) * VARIANCE + shift, VARIANCE.expand(len(x), 2))), X, progress=None
    )
    assert found.evidence.gap.mean("amortization")[0] == pytest.approx(0.49, abs=0.02)
    assert found.findings == []


# samples and weights --------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda x: 16 * x, "x"),
        (lambda x: 16 * x + 50, "x"),
        (lambda x: 255 * x + 255, "x"),
    ],
)
def test_samples_that_are_not_preprocessed_as_in_training(change, advice, stated):
    model = linear() if stated else linear(precision=None)
    found = vs.diagnose(model, change(X), progress=None)
    assert [f.code for f in found.findings if f.severity != "note"] == ["reconstruction"]
    assert "not preprocessed" in found.findings[0].title
    assert found.evidence.reconstruction.best.explained > 0.9


def images(seed=0):
    """Images of one bright row at a random height, and the exact linear VAE of their distribution."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 7, (400,), generator=generator)
    x = 0.02 * torch.randn(400, 1, 8, 8, generator=generator) + 0.1
    x[torch.arange(400), 0, rows] += 0.8
    flat = x.flatten(1)
    centre = flat.mean(0)
    _, S, V = torch.linalg.svd((flat - centre) / 400**0.5, full_matrices=False)
    A = V[:5].T * (S[:5].square() - 0.02**2).sqrt()
    precision = 1 / 0.02**2
    variance = 1 / (1 + precision * A.square().sum(0))
    model = vs.adapters.from_callables(
        encode=lambda x: (precision * ((x.flatten(1) - centre.to(x)) @ A.to(x)) * variance, variance.expand(len(x), 5)),
        decode=lambda z: (z @ A.T.to(z) + centre.to(z)).reshape(-1, 1, 8, 8),
        latent_dim=5,
        precision=precision,
        image_shape=(1, 8, 8),
    )
    return model, x


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda x: x.mT, "x.mT"),
        (lambda x: 1 - x, "x"),
        (lambda x: 255 * x, "x / 255"),
        (lambda x: 2 * x - 1, "(x + 1) / 2"),
    ],
)
def test_images_in_another_range_or_orientation(change, advice):
    model, x = images()
    found = vs.diagnose(model, change(x), progress=None)
    assert [f.code for f in found.findings if f.severity != "note"] == ["reconstruction"]
    assert advice in found.findings[0].advice


def test_encoder_and_decoder_of_different_runs():
    swapped = linear(decode=lambda z: -z.flip(1) @ W.T.to(z))
    finding = vs.diagnose(swapped, X, progress=None).findings[0]
    assert finding.code == "reconstruction"
    assert "belong together" in finding.title


@pytest.mark.parametrize("initialise", [None, nn.init.xavier_normal_])
@pytest.mark.parametrize("build", ["mlp", "norm", "gru"])
def test_untrained_networks(build, initialise):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 4))
    decoder = {
        "mlp": lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 5)),
        "norm": lambda: nn.Sequential(nn.Linear(2, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5)),
        "gru": lambda: nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 5)),
    }[build]()
    for network in (encoder, decoder):
        for value in network.parameters():
            if initialise is not None and value.ndim > 1:
                initialise(value)
    model = vs.adapters.from_modules(encoder, decoder, latent_dim=2, precision=1.0)
    assert codes(model) == ["untrained"]


def test_one_step_of_training_shows_in_the_weights():
    network = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5))
    assert networks_are_initial([network])
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(20):
        optimiser.zero_grad()
        (network(X) - X).square().sum().backward()
        optimiser.step()
    assert not networks_are_initial([network])
    assert networks_are_initial([nn.GRU(3, 32)])
    assert not networks_are_initial([nn.Identity()])


def test_a_small_linear_model_is_recognised_by_its_biases():
    torch.manual_seed(0)
    layers = [nn.Linear(10, 8), nn.Linear(4, 10)]
    for layer in layers:
        nn.init.xavier_normal_(layer.weight)
    assert networks_are_initial(layers)
    with torch.no_grad():
        layers[0].bias[4:] -= 1  # smaller variances
    assert not networks_are_initial(layers)


def test_a_model_that_reconstructs_is_trained_wherever_its_few_biases_are():
    encoder, decoder = nn.Linear(5, 4), nn.Linear(2, 5)
    torch.manual_seed(0)
    with torch.no_grad():
        encoder.weight[:2], encoder.weight[2:] = (W / W.square().sum(0)).T, 0
        decoder.weight.copy_(W)
        for layer in (encoder, decoder):
            bound = layer.in_features**-0.5
            layer.bias.uniform_(-bound, bound)
    known = {"latent_dim": 2, "precision": 100.0, "scale": "log_variance"}
    model = vs.adapters.from_modules(nn.Sequential(encoder), nn.Sequential(decoder), **known)
    assert vs.diagnose(model, X, progress=None).evidence.reconstruction.given.explained > 0.05
    assert "untrained" not in codes(model)


def test_a_model_whose_own_codes_decode_is_trained():
    """Outputs far from x, as rates of counts may be: only the user's log-likelihood knows them."""
    given = {"precision": None, "decode": lambda z: 0.1 * z @ W.T.to(z) + 9}
    given["log_likelihood"] = lambda x, z: -50 * (x - z @ W.T.to(z)).square().sum(1)
    found = vs.diagnose(linear(**given), X, progress=None)
    assert found.evidence.reconstruction.given.explained < -1
    assert "untrained" not in [f.code for f in found.findings]


def test_samples_outside_the_range_of_the_likelihood():
    model, x = pixels()
    found = vs.diagnose(model, 16 * x, progress=None)
    assert [f.code for f in found.findings] == ["data-range"]
    assert "data-range" in found.skipped["gap"]
    assert found.evidence.elbo is None  # an ELBO of such values is far above zero and means nothing


# what the encoder returns ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.sqrt, "standard deviation"),
        (torch.reciprocal, "precision"),
        (torch.square, "squared variance"),
        (lambda v: 0.5 * v.log(), "log standard deviation"),
    ],
)
def test_another_quantity_in_the_place_of_the_variance(function, name):
    found = vs.diagnose(given(function), X, progress=None)
    assert [f.code for f in found.findings] == ["scale-of-variance"]
    assert name in found.findings[0].evidence
    assert found.evidence.noise.beta == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("precision", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_variances_are_read_as_stated_unless_a_finding_says_otherwise(seed, precision):
    """What is true of trained models suggests another scale for some of these untrained ones."""
    torch.manual_seed(seed)
    encoder, decoder = nn.Linear(5, 4), nn.Linear(2, 5)
    known = {"latent_dim": 2, "scale": "log_deviation", "precision": precision}
    found = vs.diagnose(vs.adapters.from_modules(encoder, decoder, **known), 5 * X, progress=None)
    mean, scale = encoder(5 * X).detach().split(2, dim=1)
    kl = (mean.square() + (2 * scale).exp() - 1).sum(1).mean() / 2 - scale.sum(1).mean()
    reported = "scale-of-variance" in [f.code for f in found.findings]
    assert reported or sum(found.evidence.regime.kl) == pytest.approx(float(kl), rel=1e-3)
    assert reported == (found.evidence.scale.name != found.evidence.scale.expected)


@pytest.mark.parametrize("variance", [0.0, 1e-30, 1e-6, 1.0])
def test_an_autoencoder_is_not_a_vae(variance):
    deterministic = linear(
        encode=lambda x: (3 * (x @ W), torch.full((len(x), 2), variance)), decode=lambda z: z @ W.T.to(z) / 12
    )
    found = vs.diagnose(deterministic, X, progress=None)
    assert [f.code for f in found.findings] == ["not-a-vae"]


def test_a_decoder_whose_output_has_another_size_than_x():
    found = vs.diagnose(linear(decode=lambda z: (z @ W.T.to(z))[:, :-1]), X, progress=None)
    assert [f.code for f in found.findings] == ["output-size"]
    n = X.shape[1]
    assert found.findings[0].evidence == f"The decoder returns {n - 1} numbers per sample, x has {n}."
    both = linear(decode=lambda z: torch.cat([z @ W.T.to(z), torch.ones(len(z), n).to(z)], 1))
    assert "Return the mean alone" in vs.diagnose(both, X, progress=None).findings[0].advice


@pytest.mark.parametrize("belongs", [True, False])
def test_encoder_and_decoder_of_different_runs_are_found_by_their_likelihood(belongs):
    decoder = W if belongs else W.flip(1) * torch.tensor([1.0, -1.0])
    given = {"precision": None, "log_likelihood": lambda x, z: -50 * (x - z @ decoder.T.to(z)).square().sum(1)}
    found = vs.diagnose(linear(decode=lambda z: z @ decoder.T.to(z), **given), X, progress=None)
    titles = [f.title for f in found.findings if f.code == "reconstruction"]
    assert titles == ([] if belongs else ["Encoder and decoder do not belong together."])


def test_variances_of_a_known_library_are_not_questioned():
    given = linear(encode=lambda x: (100 * (x @ W) * VARIANCE, VARIANCE.sqrt().expand(len(x), 2)))
    known = dataclasses.replace(given, spec=dataclasses.replace(given.spec, returns_variances=True))
    codes = [[f.code for f in vs.diagnose(m, X, progress=None).findings] for m in (given, known)]
    assert "scale-of-variance" in codes[0]
    assert "scale-of-variance" not in codes[1]


def test_codes_far_from_the_prior_are_no_reason_to_change_x_if_the_kl_had_little_weight():
    given, best = Trial("", 0.70, 0.01, dispersion=1.5), Trial("2 * x", 0.71, 0.01, dispersion=0.2)
    found = Reconstruction(given, best, linear=0.4, centre=0.1, spread=0.2, alignment=0.8)
    assert wrong_input(found)
    assert not wrong_input(found, weak_kl=True)


@pytest.mark.parametrize(("precision", "factor"), [(10.0, 3), (10.0, 5), (1.0, 5), (1.0, 20)])
def test_a_precision_that_is_stated_too_low_does_not_hide_samples_of_another_scale(precision, factor):
    assert codes(linear(precision=precision), factor * X)[0] == "reconstruction"


def test_an_input_with_another_mean_is_found_by_a_smaller_reduction_of_errors():
    given, best = Trial("", 0.72, 0.01, dispersion=0.6), Trial("x.max() - x", 0.85, 0.01, dispersion=0.2)
    assert not wrong_input(Reconstruction(given, best, linear=0.8, centre=0.1, spread=0.8, alignment=0.9))
    assert wrong_input(Reconstruction(given, best, linear=0.8, centre=2.0, spread=0.8, alignment=0.9))


def test_samples_of_another_scale_are_found_with_a_likelihood_of_the_user():
    given = {"precision": None, "log_likelihood": lambda x, z: -50 * (x - z @ W.T.to(z)).square().sum(1)}
    assert codes(linear(**given)) == []
    assert codes(linear(**given), 255 * X)[0] == "reconstruction"


def test_second_derivatives_of_any_activation_leave_no_graph():
    weight = nn.Parameter(W.clone())
    given = linear(decode=lambda z: (nn.functional.silu(z + 20) - 20) @ weight.T.to(z))  # linear at these codes
    found = vs.diagnose(given, X, progress=None)
    assert "validity" not in found.skipped
    assert not found.evidence.validity.required_precision.requires_grad
    assert "c_IMA" in repr(found)


def test_an_overfitted_model_is_not_taken_for_a_mismatched_one():
    """Right on training samples, worse than the mean on others."""
    train = X[:60]

    def encode(x):
        nearest = torch.cdist(x, train.to(x)).argmin(1)
        known = torch.cdist(x, train.to(x)).amin(1, keepdim=True) < 1e-4
        mean = 100 * (train[nearest] @ W) * VARIANCE
        return torch.where(known, mean, -mean.flip(1)), VARIANCE.expand(len(x), 2)

    assert codes(linear(encode=encode), X[60:])[0] == "reconstruction"
    assert codes(linear(encode=encode), X[60:], train=train)[0] == "overfit"


def test_squared_errors_do_not_judge_models_with_a_likelihood_of_their_own():
    """Outputs are rates of another scale than x, but each sample's code explains it best."""
    given = {"precision": None, "log_likelihood": lambda x, z: -50 * (x - z @ W.T.to(z)).square().sum(1)}
    assert codes(linear(decode=lambda z: 0.3 * (z @ W.T.to(z)) - 2, **given)) == []


def test_absurd_numbers_are_not_shown():
    assert times(1e40) == "more than 1000 times"
    narrow = linear(encode=lambda x: (100 * (x @ W) * VARIANCE, (1e-30 * (1 + x[:, :2].square()))))
    found = vs.diagnose(narrow, X, progress=None)
    text = " ".join(f"{f.title} {f.evidence} {f.advice}" for f in found.findings)
    assert found.findings[0].severity != "note"
    assert not re.search(r"e[+-]?\d\d|\d{7}", text), text
    assert not re.search(r"e\+\d\d", re.sub(r"<svg.*?</svg>", "", found.page(), flags=re.DOTALL))


# latents and fit ------------------------------------------------------------------------------


def test_a_nearly_collapsed_model_is_not_told_to_use_fewer_latents():
    slope = torch.tensor([0.15, 0.02])
    nearly = linear(
        encode=lambda x: (slope * (x @ W) / W.norm(dim=0), torch.tensor([0.93, 0.995]).expand(len(x), 2)),
        decode=lambda z: 0.02 * z @ W.T.to(z),
        precision=0.3,
    )
    weak = vs.diagnose(nearly, X, progress=None)
    assert 0.05 < float(weak.evidence.regime.kl.sum()) < 0.5
    assert [f.code for f in weak.findings] == ["collapsed"]


def memorised():
    """A model that reconstructs its training samples without error, and others up to noise."""
    generator = torch.Generator().manual_seed(4)
    train = torch.randn(300, 2, generator=generator) @ W.T + 0.02 * torch.randn(300, 5, generator=generator)
    return linear(precision=1 / 0.02**2, encode=encoder_of(1 / 0.02**2)), train


def encoder_of(precision):
    variance = 1 / (1 + precision * W.square().sum(0))
    return lambda x: (precision * (x @ W) * variance, variance.expand(len(x), 2))


def test_overfitting_is_named_instead_of_the_encoder():
    model, train = memorised()
    assert codes(model, X, train=train)[0] == "overfit"
    assert codes(linear(), X[200:], train=X[:200]) == []


def test_codes_that_do_not_follow_the_prior():
    """Codes on a circle, and at the corners of a square: means and variances are those of the prior."""
    generator = torch.Generator().manual_seed(5)
    angle = 6.28 * torch.rand(400, generator=generator)
    circle = 2**0.5 * torch.stack([angle.cos(), angle.sin()], dim=1)
    corners = 2.0 * torch.randint(2, (400, 2), generator=generator) - 1
    noise = 0.1 * torch.randn(400, 5, generator=generator)
    found = vs.diagnose(linear(), circle @ W.T + noise, progress=None)
    assert [(f.code, f.severity) for f in found.findings if f.code == "aggregate"] == [("aggregate", "note")]
    weak = linear(encode=encoder_of(1000.0), beta=0.1)
    assert codes(weak, circle @ W.T + noise) == ["aggregate"]
    same = vs.diagnose(linear(precision=1.0, beta=0.01), circle @ W.T + noise, progress=None)  # γ²/β is 100 as above
    assert [(f.code, f.severity) for f in same.findings] == [(f.code, f.severity) for f in found.findings]
    assert codes(linear(), corners @ W.T + noise) == ["aggregate"]
    rng = np.random.default_rng(0)
    assert abs(separability(rng.normal(size=(400, 3)), rng.normal(size=(400, 3))) - 0.5) < 0.07


def test_a_constant_column_does_not_set_the_axis():
    flat = torch.cat([X, torch.full((len(X), 1), 3.0)], dim=1)
    columns = torch.cat([W, torch.full((1, 2), 1e-3)])
    model = linear(
        encode=lambda x: (100 * (x[:, :5] @ W) * VARIANCE, VARIANCE.expand(len(x), 2)),
        decode=lambda z: z @ columns.T.to(z) + torch.tensor([0.0] * 5 + [3.0]).to(z),
    )
    found = vs.diagnose(model, flat, progress=None, budget=1e-3)
    drawn = next(panels for name, panels, _ in drawings(found.evidence, found.sample) if name == "traversals")
    assert all(abs(limit) < 100 for panel in drawn for axis in panel.axes for limit in axis.get_ylim())


def test_rules_run_once(monkeypatch):
    """All rules on the final measurements; before the gap, only those with which it would mean nothing."""
    calls = []
    monkeypatch.setattr(
        rules, "RULES", tuple(lambda found, rule=rule: calls.append(rule) or rule(found) for rule in rules.RULES)
    )
    assert codes(linear()) == []
    assert len(calls) == len(rules.RULES)
    assert set(rules.BROKEN) < set(calls)


@pytest.mark.parametrize(("seed", "scale"), [(82, "deviation"), (153, "variance"), (0, "log_variance")])
def test_a_stated_scale_is_overruled_only_with_the_finding_that_says_so(seed, scale):
    """Untrained models; without training the variances of two of them are nearer to those of another scale."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    latents, columns = int(rng.integers(1, 5)), int(rng.integers(3, 12))
    torch.manual_seed(seed)
    gain, hidden = float(rng.choice([0.1, 0.5, 1, 1, 2, 4])), int(rng.choice([0, 8, 32]))

    def network(inputs, outputs):
        activation = torch.nn.Tanh() if seed % 3 else torch.nn.ReLU()
        layers = [torch.nn.Linear(inputs, outputs)]
        if hidden:
            layers = [torch.nn.Linear(inputs, hidden), activation, torch.nn.Linear(hidden, outputs)]
        made = torch.nn.Sequential(*layers)
        with torch.no_grad():
            for p in made.parameters():
                p.mul_(gain)
        return made

    encoder, decoder = network(columns, 2 * latents), network(latents, columns)
    x = torch.randn(200, columns, generator=generator) * float(rng.choice([0.3, 1, 3]))

    def encode(x):
        mean, second = encoder(x).chunk(2, -1)
        return mean, second if scale == "log_variance" else torch.nn.functional.softplus(second) + 1e-4

    mean, second = (part.detach().double() for part in encode(x))
    variance = {"log_variance": second.exp(), "variance": second, "deviation": second**2}[scale]
    stated = 0.5 * (mean.square() + variance - 1 - variance.log()).sum(1).mean()
    module = torch.nn.Module()
    module.forward = encode
    precision = float(rng.choice([1, 10, 100]))
    model = vs.adapters.from_modules(module, decoder, scale=scale, latent_dim=latents, precision=precision)
    found = vs.diagnose(model, x, budget=0.3, progress=None)
    assert found.find("scale-of-variance") is None
    assert sum(row["KL"] for row in found.summary()) == pytest.approx(float(stated), rel=1e-3)
