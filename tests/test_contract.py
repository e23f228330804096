"""The names and signatures that scripts outside this repository rely on.

Calls are written out as users write them, so that a rename or a changed argument fails here and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vaescope as vs

N = 40
WEIGHT = torch.tensor([[1.0, 0.2], [0.0, 0.7], [0.3, 0.0]], dtype=torch.float64)


def _decoder(z: Tensor) -> Tensor:
    return z @ WEIGHT.to(z).T


def _latents(dim: int = 2) -> Tensor:
    return torch.randn(N, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_theory() -> None:
    z = _latents()
    x = _decoder(z)
    assert vs.theory.jacobian(_decoder, z).shape == (N, 3, 2)
    assert vs.theory.ima_contrast(_decoder, z).shape == (N,)
    assert vs.theory.optimal_variance(_decoder, z, precision=10.0, prior=vs.Normal()).shape == (N, 2)
    projection = vs.theory.project(_decoder, x, precision=10.0, prior=vs.Normal(), start=None)
    assert projection.mean.shape == projection.variance.shape == (N, 2)
    assert projection.elbo.shape == projection.converged.shape == (N,)
    assert projection.mean.dtype == torch.float64
    assert vs.theory.mean_offset(_decoder, z, precision=10.0, prior=vs.Normal()).shape == (N, 2)
    assert vs.theory.ima_likelihood(_decoder, x, strength=1.0).shape == (N,)
    assert vs.theory.validity(_decoder, z, precision=10.0).nats.shape == (N,)


@pytest.mark.parametrize("method", ["quadrature", "importance", "flow"])
def test_log_marginal(method: str) -> None:
    z = _latents()[:4]
    square = lambda z: z @ WEIGHT[:2].T  # noqa: E731  # the flow method needs as many outputs as latents
    marginal = vs.theory.log_marginal(square, square(z), precision=10.0, prior=vs.Normal(), method=method)
    assert marginal.value.shape == marginal.stderr.shape == (4,)
    assert marginal.pareto_k is None or marginal.pareto_k.shape == (4,)


def test_linear_theory() -> None:
    x = _decoder(_latents())
    linear = vs.theory.linear
    assert linear.optimal_variance(WEIGHT, 10.0).shape == (2,)
    assert torch.as_tensor(linear.gap(WEIGHT, 10.0)).ndim == 0
    assert linear.log_likelihood(x, WEIGHT, 10.0).shape == linear.elbo(x, WEIGHT, 10.0).shape == (N,)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_metrics(library: str) -> None:
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 3, size=(300, 2)).astype(float)
    codes = factors + 0.1 * rng.normal(size=factors.shape)
    if library == "torch":
        codes, factors = torch.from_numpy(codes), torch.from_numpy(factors)
    result = vs.metrics.mcc(codes, factors, method="pearson")
    assert result.score > 0.9
    assert len(result.per_factor) == len(result.assignment) == 2
    vs.metrics.mig(codes, factors)
    vs.metrics.mig_sup(codes, factors, active=None)
    vs.metrics.dci(codes, factors)
    vs.metrics.sap(codes, factors)
    vs.metrics.infomec(codes, factors)
    vs.metrics.linear_r2(codes, factors)


def test_regime_and_orthogonality() -> None:
    mean, variance = _latents(), torch.full((N, 2), 0.01, dtype=torch.float64)
    regime = vs.regime.classify(mean, variance, prior_mean=0.0, prior_variance=1.0)
    assert regime.kind == ["active", "active"]
    assert len(regime.passive_fraction) == len(regime.kl) == 2
    matrices = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    assert vs.orthogonality.nearest_orthonormal(matrices).shape == matrices.shape
    assert len(vs.orthogonality.od_score(matrices, align=True)) == 5


def test_mixings() -> None:
    mixings = vs.data.mixings
    z = 0.5 * torch.rand(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.25
    for mixing in (
        mixings.Moebius(3, seed=1),
        mixings.OrthogonalMLP(3, layers=3, seed=1),
        mixings.TriangularMLP(3, layers=2, seed=1),
        mixings.LinearMap(3, contrast=1.0, seed=1),
        mixings.LinearMap(3, contrast=None, seed=1),
    ):
        assert mixing(z).shape == z.shape
        torch.testing.assert_close(mixing.inverse(mixing(z)).to(z), z, atol=1e-4, rtol=1e-4)


def test_fit_adapters_and_diagnose(tmp_path: Path) -> None:
    x = _decoder(_latents()).float().numpy()
    fit = vs.fit(
        x,
        model="vae",
        latent_dim=2,
        precision=10.0,
        beta=1.0,
        prior=vs.Normal(),
        seeds=(0, 1),
        epochs=1,
    )
    assert [isinstance(m, vs.LatentModel) for m in fit.members] == [True, True]
    assert [len(history["elbo"]) for history in fit.history] == [1, 1]
    model = vs.adapters.from_callables(
        encode=lambda x: (x[:, :2], torch.ones_like(x[:, :2])),
        decode=_decoder,
        latent_dim=2,
        precision=10.0,
        likelihood=None,
        prior=vs.Normal(),
    )
    diagnosis = vs.diagnose(model, x, factors=None, auxiliary=None)
    assert diagnosis.summary() is not None
    assert isinstance(diagnosis.findings, (list, tuple))
    diagnosis.to_html(tmp_path / "page.html")
    diagnosis.to_json(tmp_path / "page.json")
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "page.json").exists()
    adapters = (vs.adapters.from_pythae, vs.adapters.from_scvi, vs.adapters.from_diffusers, vs.adapters.from_run)
    assert all(callable(a) for a in adapters)
    assert isinstance(vs.adapters.from_arrays(np.zeros((5, 2)), np.ones((5, 2))), vs.LatentModel)


def test_preflight(tmp_path: Path) -> None:
    found = vs.preflight(_decoder(_latents()).numpy(), latent_dim=None, likelihood=None, confirm=False)
    assert isinstance(found.active(10.0, 1.0), int)
    assert found.active(precision=10.0, beta=1.0) == 2
    assert found.collapse_variance > 0
    assert found.recommended.latent_dim >= 1
    assert isinstance(found.findings, (list, tuple))
    assert found.to_html(tmp_path / "page.html").exists()
    assert found.to_json(tmp_path / "page.json").exists()
    assert found.summary()


def test_experiment_and_dataset_names() -> None:
    from vaescope.data.catalogue import DATASETS
    from vaescope_papers.catalogue import experiments

    assert {d.name for d in DATASETS} >= {"sprites", "dsprites", "3dshapes", "mpi3d", "3dfaces"}
    assert {e.name for e in experiments()} >= {
        "self-consistency",
        "elbo-gap",
        "linear-vae",
        "beta-precision",
        "moebius-precision",
        "moebius-linear-map",
        "sprites",
        "polarised-regime",
        "local-nonlinearity",
        "orthogonality",
        "principal-axes",
    }


def test_certify() -> None:
    model = vs.adapters.from_callables(
        encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=2, precision=1.0
    )
    found = vs.certify(model, 2**0.5 * _latents(), simulations=200, budget=0.1, progress=None)
    assert found.ranks.shape == (200, 2)
    assert found.width_ratio.shape == (2,)
    assert found.log_marginal_bounds is not None
    assert found.log_marginal_bounds.shape[1] == 2
    assert found.transfers is None  # 40 samples are too few to say
    assert [finding.code for finding in found.findings] == []


def test_leakage(tmp_path: Path) -> None:
    mean = np.random.default_rng(0).normal(size=(200, 2))
    model = vs.adapters.from_arrays(mean, np.full_like(mean, 0.1))
    found = vs.leakage(
        model, None, nuisance={"side": mean[:, 0] > 0}, keep={"y": mean[:, 1]}, auxiliary=None, progress=None
    )
    leak = found.leak("side")
    assert leak.held.low <= leak.held.value <= leak.held.high
    assert 0 <= leak.null.p_value <= 1
    assert len(leak.latents) == 2
    assert set(leak.beyond) == {"y"}
    assert found.findings[0].code == "leaks"
    assert found.nats["side"] > 0.2
    assert found.to_html(tmp_path / "page.html").exists()


def test_improve(tmp_path: Path) -> None:
    model = vs.adapters.from_callables(
        encode=lambda x: (x @ WEIGHT / 2, 0.4 + 0 * x[:, :2]), decode=_decoder, latent_dim=2, precision=1.0
    )
    x = _decoder(torch.randn(120, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    found = vs.improve(model, x[:80], x[80:], budget=5.0, progress=None)
    assert isinstance(found, vs.Improvement)
    assert isinstance(found.model, vs.LatentModel)
    for step in found.steps:
        assert isinstance(step.kept, bool)
        assert step.name
        assert step.reason
        assert step.code
        assert step.gain is None or step.gain.low <= step.gain.value <= step.gain.high
    assert found.to_html(tmp_path / "page.html").exists()
    assert found.to_json(tmp_path / "page.json").exists()
    assert found.summary() is not None


def test_check(tmp_path: Path) -> None:
    model = vs.adapters.from_callables(
        encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=2, precision=1.0
    )
    x = torch.cat([_latents(), 4 * _latents()])
    found = vs.check(
        model, x, statistics={"largest": np.max}, auxiliary=None, samples=80, simulations=39, progress=None
    )
    assert 0 < found.p_value <= 1
    largest = found.statistic("largest")
    assert largest.low[0] < largest.high[0]
    assert 0 < largest.p_value <= largest.adjusted <= 1
    assert 0 <= found.classified.auc <= 1
    assert found.to_html(tmp_path / "page.html").exists()
