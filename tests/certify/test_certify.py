"""`vs.certify` on models whose posteriors are exact, wrong in a known way, or of other libraries' kinds."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

import vaescope as vs
from tests.certify.models import LinearModel, curved
from vaescope.analysis.models import RepairedModel, repair
from vaescope.cli.main import dispatch
from vaescope.core.errors import InputError
from vaescope.products.certify.findings import Evidence, judge
from vaescope.products.certify.measure import find_cause, measure_optimality
from vaescope.products.certify.simulate import calibrate, simulate, simultaneous_band

PLANTED = LinearModel.random(3, 8, precision=10.0)


def quick(model, x, *, draws=600, seed=0):
    """Findings about posteriors alone: without bounds on log p(x) and without the comparison with real x."""
    repaired = repair(model, x, None, 200)
    simulation = simulate(RepairedModel(model), repaired.sample, draws, None, seed)
    optimality = measure_optimality(simulation.joint(), simulation.posterior, seed=seed)
    cause = find_cause(simulation, simulation.encoded.variance, repaired.sample)
    return judge(Evidence(calibrate(simulation), optimality, cause, None, None))


def codes(findings, *, least="warning"):
    return [f.code for f in findings if least == "note" or f.severity != "note"]


def certify(model, x, **options):
    return vs.certify(model, x, progress=None, **{"simulations": 400, "budget": 0.1} | options)


# exact and wrong widths ------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [0.0, 0.3])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_widths_of_linear_models(factor, mixing):
    expected = {0.8: ["too-narrow"], 1.0: [], 1.2: ["too-wide"]}[factor]
    for seed in range(3):
        linear = LinearModel.random(2 + seed, 9, mixing=mixing, precision=[1.0, 10.0, 100.0][seed % 3], seed=seed)
        model = linear.model(lambda mean, variance: (mean, factor**2 * variance))
        assert codes(quick(model, linear.draw(100), seed=seed)) == expected


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_widths_of_projections_of_a_curved_decoder(factor):
    """The projection satisfies the first-order conditions exactly, however the decoder bends."""
    expected = {0.8: ["too-narrow"], 1.0: [], 1.2: ["too-wide"]}[factor]
    model, decode = curved(factor=factor)
    x = decode(torch.randn(60, 2, dtype=torch.float64))
    assert codes(quick(model, x, draws=250)) == expected


def test_a_limit_of_the_family_is_not_an_error_of_the_encoder():
    linear = LinearModel.random(3, 8, mixing=0.6, seed=2)
    found = quick(linear.model(), linear.draw(100))
    assert codes(found) == []
    assert "family-limit" in codes(found, least="note")


def test_widths_against_closed_forms():
    """Residuals of z have variance Λ⁻¹_kk / σ_k², and the first-order condition gives σ_k² Λ_kk."""
    linear = LinearModel.random(3, 8, mixing=0.6, seed=2)
    model = linear.model(lambda mean, variance: (mean, 1.5**2 * variance))
    repaired = repair(model, linear.draw(50), None, 50)
    simulation = simulate(RepairedModel(model), repaired.sample, 4000, None, 0)
    sd = 1.5 / linear.posterior_precision.diagonal().sqrt()
    marginal = torch.linalg.inv(linear.posterior_precision).diagonal().sqrt()
    found = calibrate(simulation)
    assert found.width_ratio == pytest.approx((sd / marginal).numpy(), rel=0.05)
    optimality = measure_optimality(simulation.joint(), simulation.posterior)
    assert optimality.width_ratio == pytest.approx(np.full(3, 1.5), rel=0.03)
    assert optimality.scatter == pytest.approx(np.zeros(3), abs=1e-6)


def test_scatter_of_means_is_that_which_was_added():
    generator = torch.Generator().manual_seed(0)

    def change(mean, variance):
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        return mean + 0.6 * variance.sqrt() * noise, variance

    model = PLANTED.model(change)
    repaired = repair(model, PLANTED.draw(50), None, 50)
    simulation = simulate(RepairedModel(model), repaired.sample, 2000, None, 0)
    optimality = measure_optimality(simulation.joint(), simulation.posterior)
    assert optimality.scatter == pytest.approx(np.full(3, 0.6), rel=0.08)
    assert calibrate(simulation).width_ratio == pytest.approx(np.full(3, 1 / 1.36**0.5), rel=0.06)
    assert codes(quick(model, PLANTED.draw(50))) == ["scattered-means"]


def test_a_bias_is_found():
    model = PLANTED.model(lambda mean, variance: (mean + 0.4 * variance.sqrt(), variance))
    assert "biased" in codes(quick(model, PLANTED.draw(50)))


# named causes ----------------------------------------------------------------------------------

CAUSES = {
    "standard deviation": (lambda m, v: (m, v.sqrt()), None, "scale-of-variance"),
    "log-variance": (lambda m, v: (m, v.log()), None, "scale-of-variance"),
    "log standard deviation": (lambda m, v: (m, v.log() / 2), None, "scale-of-variance"),
    "order": (lambda m, v: (m[:, [1, 0, 2]], v[:, [1, 0, 2]]), None, "order-of-latents"),
    "sign": (lambda m, v: (m * torch.tensor([1.0, 1.0, -1.0]), v), None, "sign-of-latents"),
    "latents": (lambda m, v: (2.5 * m, 6.25 * v), None, "units-of-latents"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_mistakes_are_named(case):
    change, decode, code = CAUSES[case]
    found = certify(PLANTED.model(change, decode), PLANTED.draw(100))
    assert found.findings[0].code == code
    assert found.worst == "error"
    assert case in found.findings[0].title
    assert codes(found.findings) == [code]  # what it explains is not reported again


def test_log_variances_do_not_hide_wrong_widths():
    found = certify(PLANTED.model(lambda mean, variance: (mean, (1.5 * variance).log())), PLANTED.draw(100))
    assert codes(found.findings) == ["scale-of-variance", "too-wide"]


def test_a_decoder_in_other_units_than_the_encoder_is_named():
    """The encoder takes pixels from 0 to 255, the decoder returns them from 0 to 1."""
    model = vs.adapters.from_callables(
        encode=lambda x: PLANTED.encode(x / 255), decode=PLANTED.decode, latent_dim=3, precision=10.0
    )
    found = certify(model, 255 * PLANTED.draw(200))
    assert found.findings[0].code == "units-of-x"
    assert found.transfers is False


def test_a_width_that_is_wrong_everywhere_is_not_taken_for_a_unit():
    model = PLANTED.model(lambda mean, variance: (mean, 2.0 * variance))
    assert codes(quick(model, PLANTED.draw(50))) == ["too-wide"]


# the whole certificate ---------------------------------------------------------------------------


def test_an_exact_model_has_no_findings(tmp_path):
    found = certify(PLANTED.model(), PLANTED.draw(300), name="<b>exact</b>")
    assert found.findings == []
    assert found.skipped == {}
    assert found.transfers is True
    assert found.ranks.shape == (400, 3)
    assert stats.kstest(found.ranks[:, 0], "uniform").pvalue > 1e-3
    assert found.width_ratio == pytest.approx(np.ones(3), abs=0.15)
    assert found.log_marginal_bounds.shape == (48, 2)
    assert [row["latent"] for row in found.summary()] == [0, 1, 2]
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "&lt;b&gt;exact&lt;/b&gt;" in page
    assert "<b>exact</b>" not in page
    assert page.count("<figure") == 3
    assert "&lt;b&gt;exact" in found._repr_html_()
    assert json.loads(found.to_json(tmp_path / "page.json").read_text())["transfers"] is True


def test_real_x_of_another_distribution_do_not_transfer():
    x = PLANTED.draw(300)
    found = certify(PLANTED.model(), x.sign() * x.abs().sqrt())
    assert found.transfers is False
    assert codes(found.findings) == ["does-not-transfer"]


def test_few_real_x_leave_transfer_open():
    found = certify(PLANTED.model(), PLANTED.draw(20))
    assert found.transfers is None
    assert "transfer" in found.skipped


def test_the_same_seed_gives_the_same_certificate():
    first, second = (certify(PLANTED.model(), PLANTED.draw(60), seed=s) for s in (1, 1))
    assert np.array_equal(first.ranks, second.ranks)
    assert torch.equal(first.log_marginal_bounds, second.log_marginal_bounds)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (vs.adapters.from_arrays(torch.zeros(9, 2), torch.ones(9, 2)), "needs a decoder"),
        (
            vs.adapters.from_callables(encode=lambda x: (x, 0 * x + 1), decode=lambda z: z, latent_dim=2),
            "pass precision=, likelihood= or sample_observations=",
        ),
        (
            vs.adapters.from_callables(
                encode=lambda x: (x, 0 * x + 1),
                decode=lambda z: z,
                latent_dim=2,
                log_likelihood=lambda x, z: -(x - z).abs().sum(1),
            ),
            "pass sample_observations=",
        ),
    ],
)
def test_models_that_cannot_be_simulated_are_refused_in_one_line(model, message):
    with pytest.raises(vs.InputError, match=message):
        vs.certify(model, torch.zeros(9, 2), progress=None)


def test_too_few_simulations_are_refused():
    with pytest.raises(vs.InputError, match="simulations must be"):
        vs.certify(PLANTED.model(), PLANTED.draw(9), simulations=3)


def test_the_command_line(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "import vaescope as vs\n"
        "vae = vs.adapters.from_callables(\n"
        "    encode=lambda x: (x / 2, 0.2 + 0 * x), decode=lambda z: z, latent_dim=2, precision=1.0)\n"
    )
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(80, 2)).astype("float32") * 2**0.5)
    page = tmp_path / "page.html"
    arguments = ["certify", f"{tmp_path}/own.py:vae", "--data", str(tmp_path / "x.npy"), "--html", str(page)]
    assert dispatch([*arguments, "--simulations", "200", "--budget", "0.1", "--fail-on", "warning"]) == 1
    assert "too-narrow" in capsys.readouterr().out
    assert json.loads(page.with_suffix(".json").read_text())["worst"] == "warning"
    assert "<svg" in page.read_text()


# other likelihoods, priors and models ------------------------------------------------------------


def test_a_likelihood_of_the_users_own():
    """Poisson counts: the model gives its log-likelihood and a sampler."""
    W = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.3, -0.4]])

    def rate(z):
        return (z @ W.T.to(z) + 1.5).exp()

    model = vs.adapters.from_callables(
        encode=lambda x: (torch.zeros(len(x), 2), torch.ones(len(x), 2)),
        decode=rate,
        latent_dim=2,
        log_likelihood=lambda x, z: torch.distributions.Poisson(rate(z)).log_prob(x).sum(1),
        sample_observations=lambda z, generator: torch.poisson(rate(z), generator=generator),
    )
    found = certify(model, torch.poisson(rate(torch.randn(100, 2))), budget=600.0)
    assert "too-wide" in codes(found.findings)  # the encoder returns the prior
    assert found.width_ratio == pytest.approx(np.ones(2), abs=0.1)  # which is calibrated, but not the best
    assert found.evidence.bounds.sandwich.width < 0.1


@pytest.mark.parametrize("prior", [vs.Uniform(-1.0, 1.0), vs.Laplace()])
def test_other_priors_of_members(prior):
    x = PLANTED.draw(300).float()
    fit = vs.fit(x, latent_dim=2, precision=10.0, prior=prior, epochs=3, compile="never", progress=None)
    found = certify(fit, x)
    assert found.ranks.shape == (400, 2)
    assert np.isfinite(found.width_ratio).all()
    assert not found.evidence.bounds.sandwich.contradictory


def test_an_identifiable_vae():
    labels = torch.arange(300) % 3
    x = (PLANTED.draw(300) + labels[:, None]).float()
    fit = vs.fit(
        x, model="ivae", auxiliary=labels, latent_dim=2, precision=10.0, epochs=3, compile="never", progress=None
    )
    found = certify(fit, x, auxiliary=labels)
    assert found.ranks.shape == (400, 2)
    assert found.log_marginal_bounds is not None


def test_bernoulli_against_gray_values():
    x = torch.rand(300, 12)
    fit = vs.fit(x, latent_dim=2, likelihood="bernoulli", epochs=3, compile="never", progress=None)
    found = certify(fit, x)
    assert "binary" in next(f.advice for f in found.findings if f.code == "does-not-transfer")


# bands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latents", [1, 8])
def test_the_band_contains_uniform_ranks_as_often_as_it_says(latents):
    low, high = simultaneous_band(500, 20, latents, level=0.1)
    counts = np.random.default_rng(1).multinomial(500, np.full(20, 0.05), size=(2000, latents))
    outside = ((counts < low) | (counts > high)).any((1, 2)).mean()
    assert outside <= 0.1 + 0.03  # counts are whole numbers, so the band may be wider
    assert outside >= 0.02


# conditional models ----------------------------------------------------------------------------


class ConditionalLinear:
    """x = W z + V y + noise, with its exact posterior N(Λ⁻¹ γ² Wᵀ (x - V y), Λ⁻¹); columns of W are orthogonal."""

    V = torch.randn(4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def __init__(self, kind="gaussian"):
        self.kind, self.shift = kind, 2.0

    def offset(self, y):
        return self.shift * self.V[y.reshape(-1).long()]

    def decode(self, z, y):
        return PLANTED.decode(z) + self.offset(y).to(z)

    def model(self, encode):
        known = {"precision": 10.0}
        if self.kind == "own":  # the same likelihood without a name
            known = {
                "log_likelihood": lambda x, z, y: (
                    -5 * (x.double() - self.decode(z.double(), y)).square().sum(1) + 4 * np.log(10 / (2 * np.pi))
                ),
                "sample_observations": lambda z, generator, y: (
                    self.decode(z, y) + torch.randn(len(z), 8, generator=generator, dtype=z.dtype) / 10**0.5
                ),
            }
        return vs.adapters.from_callables(encode=encode, decode=self.decode, latent_dim=3, **known)

    def draw(self, count):
        y = torch.arange(count) % 4
        return PLANTED.draw(count) + self.offset(y), y


@pytest.mark.parametrize("kind", ["gaussian", "own"])
@pytest.mark.parametrize("labels", ["numbers", "columns"])
def test_conditional_models_with_exact_posteriors_are_certified(kind, labels):
    linear = ConditionalLinear(kind)
    x, y = linear.draw(1000)
    y = y.numpy() if labels == "numbers" else y[:, None].double()
    exact = linear.model(lambda x, y: PLANTED.encode(x - linear.offset(y)))
    found = certify(exact, x, auxiliary=y, simulations=1000, budget=2.0)
    assert (codes(found.findings), found.transfers) == ([], True)
    low, high = found.log_marginal_bounds.T
    at = found.evidence.bounds
    assert (high - low).max() < 0.5
    assert at.gap[1] < 0.05  # orthogonal columns: the exact posterior is diagonal


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m, v, y: (m, 1.5**2 * v), "too-wide"),
        (lambda m, v, y: (m + 0.4 * v.sqrt(), v), "biased"),
        (lambda m, v, y: (m, v.log()), "scale-of-variance"),
        (lambda m, v, y: (m + 1.4 * v.sqrt() * (y.reshape(-1, 1) % 2 - 0.5), v), "scattered-means"),  # wrong by label
    ],
)
def test_conditional_models_with_wrong_posteriors_are_not(change, code):
    linear = ConditionalLinear()
    x, y = linear.draw(200)
    wrong = linear.model(lambda x, y: change(*PLANTED.encode(x - linear.offset(y)), y))
    assert code in codes(certify(wrong, x, auxiliary=y, simulations=600).findings)


def test_an_encoder_that_ignores_the_label_is_not_certified():
    linear = ConditionalLinear()
    x, y = linear.draw(200)
    assert codes(certify(linear.model(lambda x, y: PLANTED.encode(x)), x, auxiliary=y).findings)
    with pytest.raises(vs.InputError, match="this model is conditional: pass auxiliary="):
        certify(linear.model(lambda x, y: PLANTED.encode(x)), x)


# joint ranks -----------------------------------------------------------------------------------


def test_posteriors_that_are_right_per_latent_and_wrong_jointly():
    """Correlated posteriors replaced by their marginals: ranks of every latent are uniform, joint ones are not."""
    linear = LinearModel.random(3, 6, mixing=0.8, precision=10.0)
    marginal = torch.linalg.inv(linear.posterior_precision).diagonal()
    model = linear.model(lambda mean, variance: (mean, marginal.expand_as(mean)))
    found = certify(model, linear.draw(300), simulations=1000)
    assert all(stats.kstest(column, "uniform").pvalue > 0.01 for column in found.ranks.T)
    assert found.joint["log p(x, z)"].p_value < 1e-6
    assert found.find("wrong-jointly") is not None


def test_joint_ranks_of_exact_posteriors_are_uniform():
    p = []
    for seed in range(6):
        linear = LinearModel.random(3, 8, seed=seed)
        found = certify(
            linear.model(), linear.draw(300), seed=seed, quantities={"difference": lambda x, z: z[:, 0] - z[:, 2]}
        )
        assert "wrong-jointly" not in codes(found.findings, least="note")
        p += [one.p_value for one in found.joint.values()]
    assert len(p) == 24
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_quantity_that_is_no_number_per_row_is_refused():
    with pytest.raises(InputError, match="the quantity 'all' must return a finite number per row"):
        certify(PLANTED.model(), PLANTED.draw(60), quantities={"all": lambda x, z: z})
