"""`vs.audit` on the collected losses, on losses of its own tests, and on functions that are no losses.

Rules were written with `development` alone. Each of the others was run once with the rules frozen, and only then were
its failures looked at and repaired (docs/audit.md has the scores). What is asserted here is therefore about losses
that have been looked at.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import vaescope as vs
from tests.audit.losses import blind, development, fourth, scored, third
from tests.audit.scoring import audited, differences, false_alarms
from vaescope.cli import dispatch


@pytest.mark.parametrize(
    "half", [development, scored, blind, third, fourth], ids=lambda half: half.__name__.rpartition(".")[2]
)
def test_losses_are_identified_exactly(half):
    """At least 95 % exact, no alarm on a correct ELBO, and all faults found in at least 90 % of the wrong losses."""
    found = {case.name: audited(case) for case in half.cases}
    wrong = {case.name: w for case in half.cases if (w := differences(case, found[case.name]))}
    assert len(wrong) <= 0.05 * len(half.cases), wrong
    alarms = {
        case.name: a for case in half.cases if (a := false_alarms(case, found[case.name])) and case.kind == "elbo"
    }
    assert alarms == {}
    faulty = [case for case in half.cases if case.truth.faults]
    missed = [case.name for case in faulty if set(case.truth.faults) - set(found[case.name].faults)]
    assert len(missed) <= 0.1 * len(faulty), missed


def test_a_size_that_is_written_as_a_number_counts_as_a_mean_over_it():
    def kl_per_number(recon, x, mu, log_var):
        return F.binary_cross_entropy(recon, x, reduction="sum") / len(x) + kl_of(mu, log_var).mean() / 784

    def both_per_number(recon, x, mu, log_var):
        return F.mse_loss(recon, x) + kl_of(mu, log_var).mean() / 784

    def chosen_weight(recon, x, mu, log_var):
        return F.mse_loss(recon, x, reduction="sum") / len(x) + kl_of(mu, log_var).mean() * 0.01

    x = torch.rand(8, 784)
    assert vs.audit(kl_per_number, x=x).faults == ("kl_divided_by_pixels",)
    assert vs.audit(both_per_number, x=x).faults == ()
    assert vs.audit(chosen_weight, x=torch.rand(8, 100)).faults == ()  # 0.01 is 1/n by chance


def test_a_loss_that_clamps_its_input_is_not_called_swapped():
    def clamped(recon, x, mu, log_var):
        return (recon.clamp(0.0, 1.0) - x).pow(4).sum(1).mean() + kl_of(mu, log_var).mean()

    found = vs.audit(clamped, x=torch.rand(8, 6))
    assert (found.likelihood, found.faults) == ("other", ())


# laws and planted truth -------------------------------------------------------------------------


def kl_of(mu: Tensor, log_var: Tensor) -> Tensor:
    return 0.5 * (mu**2 + log_var.exp() - 1 - log_var).sum(1)


def sum_of_squares(recon_x: Tensor, x: Tensor, mu: Tensor, log_var: Tensor) -> Tensor:
    return F.mse_loss(recon_x, x, reduction="sum") / len(x) + kl_of(mu, log_var).mean()


def test_ratio_of_second_derivatives_is_the_one_of_autograd():
    """β/γ² = (∂²L/∂μ²) / (∂²L/∂y²), by differentiating twice."""

    def loss(y, x, mu, log_var):
        return 0.3 * F.mse_loss(y, x) + 1.7 * kl_of(mu, log_var).mean()

    x, y, s = (torch.randn(8, 5, dtype=torch.float64) for _ in range(3))
    in_y = torch.autograd.functional.hessian(lambda v: loss(v, x, y, s), y).reshape(40, 40)
    in_mu = torch.autograd.functional.hessian(lambda v: loss(y, x, v, s), s).reshape(40, 40)
    found = vs.audit(loss, x=x)
    assert math.isclose(found.beta_over_precision, float(in_mu[0, 0] / in_y[0, 0]), rel_tol=1e-9)
    assert found.faults == ("reconstruction_averaged_over_pixels",)
    assert found.worst == "note"  # the weights are chosen


@pytest.mark.parametrize("order", ["y x mu s", "mu s x y", "s y mu x", "x s y mu"])
@pytest.mark.parametrize("named", [True, False])
def test_order_of_arguments_does_not_matter(order, named):
    usual = {"x": "x", "y": "recon", "mu": "mean", "s": "log_std"}
    names = [usual[r] for r in order.split()] if named else list("pqrt")
    x, y, mu, s = (names[order.split().index(r)] for r in ("x", "y", "mu", "s"))
    kl = f"(({mu}**2 + (2 * {s}).exp() - 1) / 2 - {s}).sum(1)"
    body = f"(F.binary_cross_entropy({y}, {x}, reduction='none').sum(1) + {kl}).mean()"
    scope = {"F": F}
    exec(f"def loss({', '.join(names)}):\n    return {body}", scope)
    found = vs.audit(scope["loss"])
    assert (found.likelihood, found.output, found.scale, found.findings) == ("bernoulli", "probability", "log_std", [])
    assert math.isclose(found.beta, 1.0, rel_tol=1e-9)


def test_factors_scale_both_weights_and_leave_the_balance():
    one, three = vs.audit(sum_of_squares), vs.audit(lambda x, y, mu, s: 3 * sum_of_squares(y, x, mu, s))
    assert math.isclose(three.reconstruction.value, 3 * one.reconstruction.value, rel_tol=1e-9)
    assert math.isclose(three.beta_over_precision, one.beta_over_precision, rel_tol=1e-9)
    assert one.findings == []


def test_a_sum_over_the_batch_is_told_from_a_mean():
    def summed(y, x, mu, log_var):
        return ((x - y) ** 2).sum() + kl_of(mu, log_var).sum()

    found = vs.audit(summed)
    assert (found.reconstruction.batch, found.kl.batch, found.reconstruction.data) == ("sum", "sum", "sum")
    assert found.beta == pytest.approx(1.0)
    found = vs.audit(lambda x, y, mu, s: ((x - y) ** 2).sum() + kl_of(mu, s).mean(), x=torch.rand(16, 6))
    assert found.faults == ("kl_averaged_over_batch", "depends_on_batch_size")
    assert math.isclose(found.beta, 1 / 16, rel_tol=1e-9)


class Step(nn.Module):
    """A module in the style of a Lightning tutorial; `noise` makes z."""

    def __init__(self, noise=lambda mu, std: mu + std * torch.randn_like(std), width=6):
        super().__init__()
        self.encoder, self.fc_mu, self.fc_var = nn.Linear(width, 5), nn.Linear(5, 2), nn.Linear(5, 2)
        self.decoder, self.noise = nn.Sequential(nn.Linear(2, width), nn.Sigmoid()), noise

    def training_step(self, batch, batch_idx):
        x, _ = batch
        h = self.encoder(x.flatten(1)).relu()
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        y = self.decoder(self.noise(mu, (0.5 * log_var).exp())).view_as(x)
        return F.binary_cross_entropy(y, x, reduction="sum") / len(x) + kl_of(mu, log_var).mean()


@pytest.mark.parametrize(
    ("noise", "fault"),
    [
        (lambda mu, std: mu + std * torch.randn_like(std), None),
        (lambda mu, std: Normal(mu, std).rsample(), None),
        (lambda mu, std: mu + std**2 * torch.randn_like(std), "noise_not_std"),
        (lambda mu, std: mu + std * torch.rand_like(std), "noise_not_normal"),
        (lambda mu, std: mu + std * torch.randn_like(std[:1]), "noise_shared"),
        (lambda mu, std: mu + std * torch.randn_like(std[:, :1]), "noise_shared"),
        (lambda mu, std: mu, "noise_absent"),
    ],
)
def test_noise_of_a_step(noise, fault):
    module = Step(noise)
    before = [p.detach().clone() for p in module.parameters()]
    found = vs.audit(module, x=torch.rand(16, 6))
    assert found.faults == (() if fault is None else (fault,))
    assert (found.likelihood, found.output, found.latent_dim, round(found.beta, 9)) == (
        "bernoulli",
        "probability",
        2,
        1,
    )
    assert all(torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True))


def test_a_loop_that_trains_is_not_run_to_its_end():
    """A step that calls backward and an optimizer, as in the PyTorch examples, changes no weight."""
    module = Step()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)

    def step(model, batch):
        optimizer.zero_grad()
        loss = model.training_step((batch, None), 0)
        loss.backward()
        optimizer.step()
        return loss.item()

    before = [p.detach().clone() for p in module.parameters()]
    x = torch.rand(16, 6)
    state = torch.get_rng_state()
    found = vs.audit(step, model=module, x=x)
    assert found.findings == []
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert torch.Tensor.backward.__name__ == "backward"
    assert all(torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True))


def test_a_weight_that_nothing_reads_and_one_that_a_string_switches_on():
    def loss(y, x, mu, log_var, beta=4.0, step=0, schedule="none"):
        weight = {"none": 1.0, "linear": min(1.0, step / 1000)}[schedule]
        return ((x - y) ** 2).sum(1).mean() + weight * kl_of(mu, log_var).mean()

    found = vs.audit(loss)
    assert found.ineffective == ("beta",)
    assert found.find("coefficient-without-effect").evidence == "The loss is the same for every value of beta."
    found = vs.audit(loss, keywords={"schedule": "linear"}, schedule={"step": range(0, 501, 100)})
    assert [round(beta, 9) for _, beta in found.schedule] == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert found.find("warm-up") is not None
    assert "kl_absent" not in found.faults


def test_a_required_number_and_an_output_that_is_no_logit():
    def loss(pred, target, mu, log_var, beta):
        return (
            F.binary_cross_entropy_with_logits(pred, target, reduction="sum") / len(target)
            + beta * kl_of(mu, log_var).mean()
        )

    with pytest.raises(vs.InputError, match="keywords="):
        vs.audit(loss)
    x = (torch.rand(16, 6) > 0.5).float()
    found = vs.audit(loss, x=x, keywords={"beta": 4.0})
    assert (found.beta, found.faults, found.find("beta").severity) == (pytest.approx(4.0), (), "note")
    assert vs.audit(loss, x=x, y=torch.rand(16, 6), keywords={"beta": 4.0}).faults == ("sigmoid_twice",)


# results ----------------------------------------------------------------------------------------


def test_assert_elbo():
    vs.audit(sum_of_squares).assert_elbo()
    vs.audit(sum_of_squares).assert_elbo(precision=2.0)
    with pytest.raises(AssertionError, match="expected 1"):
        vs.audit(sum_of_squares).assert_elbo(precision=1.0)
    with pytest.raises(AssertionError, match="averaged over the numbers"):
        vs.audit(lambda x, y, mu, s: F.mse_loss(y, x) + kl_of(mu, s).mean()).assert_elbo()


def test_data_show_what_the_loss_leaves_of_the_latents(tmp_path):
    x = torch.randn(2000, 6) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.3, 0.1])
    found = vs.audit(lambda x, y, mu, s: F.mse_loss(y, x) + kl_of(mu, s).mean(), x=x, latent_dim=4)
    assert found.beta_over_precision == pytest.approx(3.0)  # n / 2: variances 9 and 4 are above it
    assert found.active == 2
    assert found.find("latents-in-use").title == "These data keep 2 of 4 latents in use."
    page = found.to_html(tmp_path / "audit.html").read_text()
    assert "<svg" in page
    assert "F.mse_loss(y, x, reduction=" in page
    data = json.loads(found.to_json(tmp_path / "audit.json").read_text())
    assert (data["faults"], data["active"]) == (["reconstruction_averaged_over_pixels"], 2)
    assert found.summary()[1]["weight"] == pytest.approx(1.0)


def test_the_adapter_has_the_numbers_of_the_loss():
    encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
    found = vs.audit(lambda x, y, mu, s: (2 * ((x - y) ** 2).sum(1) + kl_of(mu, 2 * s)).mean(), latent_dim=2)
    model = found.adapter(encoder, decoder)
    x = torch.randn(10, 6)
    assert (found.scale, model.latent_dim) == ("log_std", 2)
    assert model.beta / model.precision == pytest.approx(0.25)
    torch.testing.assert_close(model.encode(x)[1], (2 * encoder(x)[:, 2:]).exp())


def test_the_command_line(tmp_path, capsys):
    file = tmp_path / "own_training.py"
    file.write_text(
        "import torch.nn.functional as F\n"
        "def loss(recon_x, x, mu, log_var):\n"
        "    kl = -0.5 * (1 + log_var - mu**2 - log_var.exp()).sum(1).mean()\n"
        "    return F.mse_loss(recon_x, x) + kl\n"
    )
    torch.manual_seed(0)
    np.save(tmp_path / "x.npy", torch.randn(200, 6).numpy())
    arguments = ["audit", f"{file}:loss", "--data", str(tmp_path / "x.npy"), "--latent-dim", "2"]
    assert dispatch([*arguments, "--html", str(tmp_path / "page.html"), "--fail-on", "warning"]) == 1
    shown = capsys.readouterr().out
    assert "β = 6" in shown
    assert "reconstruction-averaged-over-pixels" in shown
    assert (tmp_path / "page.html").exists()
    with pytest.raises(vs.InputError, match="name the function in it"):
        dispatch(["audit", str(file)])
    with pytest.raises(vs.InputError, match="does not define"):
        dispatch(["audit", f"{file}:other"])


# what users get wrong ---------------------------------------------------------------------------


def in_place(x, y, mu, log_var):
    y -= x
    y *= y
    return y.sum() + kl_of(mu, log_var).sum()


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (3, {}, "must be a function"),
        (lambda x, y, mu, s: float("nan") * y.sum(), {}, "it returns nan"),
        (lambda x, y, mu, s: kl_of(mu, s), {}, r"one number, got a tensor \(8,\)"),
        (lambda x, y, mu, s: None, {}, "write return loss"),
        (lambda x, y, mu, s: {"a": y.sum()}, {}, "total='KEY'"),
        (lambda x, y, mu, s: y.numpy().mean(), {}, "gradient cannot be computed"),
        (in_place, {}, "in place"),
        (lambda x, y, mu, s: 1 / 0, {}, "ZeroDivisionError"),
        (lambda model, batch: 0, {}, "model=model"),
        (lambda model, batch: 0.0, {"model": nn.Linear(2, 2), "x": torch.rand(4, 2)}, "encoder='NAME'"),
        (sum_of_squares, {"arguments": "x y q r"}, "got 'q'"),
        (sum_of_squares, {"schedule": {"step": [1]}}, "does not take"),
        (sum_of_squares, {"total": "k"}, "total='k'"),
        (sum_of_squares, {"x": torch.tensor(1.0)}, "a row per sample"),
        (nn.Linear(2, 2), {}, "has no loss"),
    ],
)
def test_a_mistake_is_one_line(loss, options, message):
    with pytest.raises(vs.InputError, match=message) as raised:
        vs.audit(loss, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [lambda v: v.item(), lambda v: v.detach()])
def test_a_loss_without_gradient_trains_nothing(value):
    found = vs.audit(lambda x, y, mu, s: value(sum_of_squares(y, x, mu, s)))
    assert {"kl_detached", "reconstruction_detached"} <= set(found.faults)
    assert found.scale == "log_variance"


def test_random_numbers_inside_the_loss_change_nothing():
    found = vs.audit(lambda x, y, mu, s: sum_of_squares(y, x, mu, s) + torch.rand(()))
    assert (found.findings, round(found.beta, 9)) == ([], 1)


def test_a_likelihood_that_is_not_known_is_called_so():
    found = vs.audit(lambda x, y, mu, s: ((x - y).abs() ** 1.5).sum() + kl_of(mu, s).sum())
    assert (found.likelihood, found.recognised, found.kl.value) == ("other", False, pytest.approx(8.0))
    with pytest.raises(AssertionError):
        found.assert_elbo()


SCRIPT = """
import argparse, torch
import torch.nn.functional as F
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 49), reduction="sum")
    return BCE - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

class VAE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Conv2d(1, 4, 4), torch.nn.Linear(2, 16)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        mu, logvar = self.encoder(x).flatten(1).chunk(2, 1)
        y = self.decoder(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        return F.mse_loss(y.view_as(x), x) - 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()

    def loss_function(self, *args, **kwargs):
        recons, x, mu, log_var = args
        kl = -0.5 * (1 + log_var - mu**2 - log_var.exp()).sum(1).mean()
        return {"loss": F.mse_loss(recons, x) + kwargs["M_N"] * kl}
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "own_tutorial_script.py"
    file.write_text(SCRIPT)
    return f"{file}"


def test_scripts_that_read_the_command_line_are_imported(script, capsys):
    """And sizes that are written in the loss, as in x.view(-1, 784), are found without --data."""
    assert dispatch(["audit", f"{script}:loss_function"]) == 0
    assert "Bernoulli decoder and β = 1." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "it defines loss_function, VAE"),
        ([":VAE"], "--shape 1 28 28"),
        ([":VAE", "--keywords", "M_N"], "NAME=NUMBER"),
        ([":VAE", "--shape", "0"], "at least 1"),
    ],
)
def test_what_a_module_lacks_is_said(script, arguments, message):
    with pytest.raises(vs.InputError, match=message):
        dispatch(["audit", script + arguments[0], *arguments[1:]])


def test_a_module_is_audited_at_random_samples(script, capsys):
    assert dispatch(["audit", f"{script}:VAE", "--shape", "1", "4", "4"]) == 0
    assert "averaged over the numbers of a sample" in capsys.readouterr().out


def test_keyword_arguments_without_names_are_said():
    def loss_function(*args, **kwargs):
        recons, x, mu, log_var = args
        return {"loss": F.mse_loss(recons, x) + kwargs["M_N"] * kl_of(mu, log_var).mean()}

    with pytest.raises(vs.InputError, match=r"needs M_N: pass keywords="):
        vs.audit(loss_function)
    assert vs.audit(loss_function, keywords={"M_N": 0.1}).beta_over_precision == pytest.approx(0.6)
