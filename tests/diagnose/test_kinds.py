"""Latent images, hierarchical models and codebooks."""

import math

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.products.diagnose.codes import radial_power

G = torch.Generator().manual_seed(0)


# latent images --------------------------------------------------------------------------------

SCALES = torch.tensor([4.0, 2.0, 0.5])


def latent_image(scaling=None):
    """Codes (3, 6, 6) that are the image itself in other units: channel k has the standard deviation SCALES[k]."""
    units = SCALES[:, None, None].expand(3, 6, 6).flatten()
    return vs.adapters.from_callables(
        encode=lambda x: (x.flatten(1) * units, torch.full((len(x), 108), 0.01)),
        decode=lambda z: z / units.to(z),
        latent_dim=108,
        image_shape=(3, 6, 6),
        latent_shape=(3, 6, 6),
        latent_scaling=scaling if scaling is None or isinstance(scaling, tuple) else (scaling, 0.0),
    )


def test_channels_of_a_latent_image(tmp_path):
    x = torch.randn(300, 3, 6, 6, generator=G)
    found = vs.diagnose(latent_image(), x, progress=None)
    image = found.evidence.latent_image
    torch.testing.assert_close(image.std, (SCALES.double().square() + 0.01).sqrt(), rtol=0.03, atol=0)
    torch.testing.assert_close(image.noise, 0.01 / image.std.square(), rtol=0.05, atol=0)
    torch.testing.assert_close(image.spectrum, SCALES.double().square(), rtol=0.1, atol=0)
    assert image.total_std == pytest.approx(math.sqrt(float(SCALES.square().mean()) + 0.01), rel=0.02)
    assert float(image.kl.sum()) == pytest.approx(float(found.evidence.regime.kl.sum()), rel=0.01)
    assert image.positions.shape == (6, 6)
    assert image.effective_precision == pytest.approx(99 * float((SCALES**2).median()), rel=0.2)
    assert [row["channel"] for row in found.summary()] == [0, 1, 2]
    assert "form an image" in found.skipped["geometry"]
    page = found.to_html(tmp_path / "page.html").read_text()
    assert 'id="channels"' in page
    assert "scaling factor for a std of 1" in page
    assert len(found.to_data()["latents"]) == 3


RIGHT = (tuple((1 / SCALES).tolist()), (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("scaling", "severity"),
    [
        (0.38, None),
        (1.0, "warning"),
        (0.18215, "note"),
        (RIGHT, None),  # of each channel
        ((RIGHT[0], (0.0, 0.0, 3.0)), "warning"),  # latents_mean of the last channel is off
        (((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), "note"),
        (((0.25, 0.5, 0.5), (0.0, 0.0, 0.0)), "warning"),
    ],
)
def test_a_scaling_factor_that_does_not_fit(scaling, severity):
    x = torch.randn(200, 3, 6, 6, generator=G)
    found = vs.diagnose(latent_image(scaling), x, progress=None)
    assert "std" in found.page()
    assert {f.code: f.severity for f in found.findings}.get("scaling-factor") == severity


def test_power_of_white_noise_is_that_of_the_number_of_frequencies():
    power = radial_power(torch.randn(500, 2, 16, 16, generator=G))
    assert power.sum() == pytest.approx(1)
    assert power[6] / power[0] == pytest.approx(44 / 8, rel=0.1)  # lattice points at distances 7 and 1


# hierarchical models --------------------------------------------------------------------------


def layers(x):
    """The second layer has a prior that depends on x and a posterior at 2 deviations from it; the third is unused."""
    top = (x[:, :2], 0.1 + 0 * x[:, :2], torch.zeros(1, 2), torch.ones(1, 2))
    moved = (x[:, :3] + 2 * 3 * torch.sign(x[:, :1]), 9.0 * 0.25 + 0 * x[:, :3], x[:, :3], torch.full((1, 3), 9.0))
    unused = (x[:, :4], 0 * x[:, :4] + 4.0, x[:, :4], torch.full((1, 4), 4.0))
    return [top, moved, unused]


def test_layers_of_a_hierarchical_model(tmp_path):
    x = torch.randn(500, 5, generator=G)
    model = vs.adapters.from_layers(layers, sizes=[2, 3, 4], names=["top", "middle", "bottom"])
    found = vs.diagnose(model, x, progress=None)
    rows = {row["layer"]: row for row in found.summary()}
    assert rows["middle"]["KL"] == pytest.approx(3 * 0.5 * (0.25 - 1 - math.log(0.25) + 4), rel=1e-4)
    expected = 2 * 0.5 * (0.1 - 1 - math.log(0.1)) + 0.5 * float(x[:, :2].square().sum(1).mean())
    assert rows["top"]["KL"] == pytest.approx(expected, rel=1e-4)
    assert (rows["bottom"]["KL"], rows["bottom"]["in use"]) == (pytest.approx(0, abs=1e-6), 0)
    assert [f.code for f in found.findings if f.severity == "warning"] == ["unused-layer"]
    assert "bottom" in found.findings[0].evidence
    assert "bottom" in found.to_html(tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("function", "sizes", "message"),
    [
        (lambda x: [(x, x)], [5], r"layer 0 must be \(mean, variance, prior_mean, prior_variance\), got 2 values"),
        (lambda x: x, [5], "layers must return a list of layers, got Tensor"),
        (layers, [2, 3], r"latents of sizes \[2, 3\], got \[2, 3, 4\]"),
    ],
)
def test_mistakes_about_layers_are_explained(function, sizes, message):
    with pytest.raises(InputError, match=message):
        vs.diagnose(vs.adapters.from_layers(function, sizes=sizes), torch.randn(20, 5), progress=None)


# codebooks ------------------------------------------------------------------------------------


def quantised(codes: int, size: int, reconstruct=lambda x: x):
    return vs.adapters.from_codebook(
        lambda x: (x.abs() * 1000).long() % codes, codebook_size=size, reconstruct=reconstruct
    )


def test_the_use_of_a_codebook(tmp_path):
    x = torch.randn(400, 8, generator=G)
    found = vs.diagnose(quantised(16, 64), x, progress=None)
    assert found.evidence.codebook.dead == 48
    assert found.evidence.codebook.perplexity == pytest.approx(16, rel=0.02)
    assert found.evidence.codebook.bits == pytest.approx(8 * 4, rel=0.02)
    assert [f.code for f in found.findings] == ["dead-codes"]
    assert found.findings[0].line == "codebook_size = 16"
    assert found.to_data()["codebook"]["counts"] == found.evidence.codebook.counts.tolist()
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "perplexity" in page
    assert "dead-codes" in repr(found)
    assert isinstance(found, vs.Diagnosis)
    assert [drawn.name for drawn in found.figures()] == ["usage"]
    assert repr(found.summary()).splitlines()[0].split() == ["code", "count", "share"]


@pytest.mark.parametrize(
    ("model", "codes"),
    [
        (quantised(16, 16), []),
        (quantised(1, 64), ["codebook-collapsed"]),
        (quantised(16, 16, reconstruct=lambda x: x + 5), ["reconstruction"]),
        (quantised(16, 16, reconstruct=None), []),
        (quantised(300, 1024), []),  # too few codes were counted to call any of them dead
    ],
)
def test_findings_about_codebooks(model, codes):
    found = vs.diagnose(model, np.asarray(torch.randn(400, 8, generator=G)), progress=None)
    assert [f.code for f in found.findings] == codes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vs.compare([quantised(4, 4)], torch.zeros(3, 2)), "no posterior, so only vs.diagnose takes it"),
        (lambda: vs.diagnose(quantised(4, 4)), "diagnose needs samples x of a VQ-VAE"),
        (lambda: vs.diagnose(quantised(8, 4), torch.randn(50, 2), progress=None), "indices must be 0 to 3"),
        (
            lambda: vs.diagnose(vs.adapters.from_codebook(lambda x: x, codebook_size=4), torch.randn(5, 2)),
            "encode must return indices of codes",
        ),
        (
            lambda: vs.diagnose(vs.adapters.from_codebook(lambda x: (x, x), codebook_size=4), torch.randn(5, 2)),
            "encode must return one tensor, got tuple",
        ),
    ],
)
def test_mistakes_about_codebooks_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
