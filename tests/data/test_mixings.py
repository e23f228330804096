"""Laws of every mixing: exact inverse, exact determinant, the specified contrast; errors for invalid arguments."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vaescope as vs
from vaescope.data.mixings import Affine, Compose, LinearMap, Mixing, Moebius, OrthogonalMLP, TriangularMLP
from vaescope.theory import contrast_of_matrix, ima_contrast, jacobian

MIXINGS = {
    "orthogonal": lambda d, s: OrthogonalMLP(d, seed=s),
    "orthogonal, one layer": lambda d, s: OrthogonalMLP(d, layers=1, seed=s, activation="sigmoid", activate_input=True),
    "triangular": lambda d, s: TriangularMLP(d, seed=s),
    "moebius": lambda d, s: Moebius(d, seed=s),
    "linear": lambda d, s: LinearMap(d, seed=s),
    "composed": lambda d, s: Compose(Moebius(d, seed=s), LinearMap(d, contrast=0.5 if d > 1 else 0.0, seed=s + 1)),
}


def sources(d: int, seed: int, count: int = 50) -> torch.Tensor:
    return vs.Uniform(-0.5, 0.5).sample(count, d, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(MIXINGS)), d=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_inverse(name, d, seed):
    mixing, z = MIXINGS[name](d, seed), sources(d, seed)
    torch.testing.assert_close(mixing.inverse(mixing(z)), z, rtol=1e-7, atol=1e-7)


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(MIXINGS)), d=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_log_determinant_matches_autograd(name, d, seed):
    mixing, z = MIXINGS[name](d, seed), sources(d, seed, 10)
    by_autograd = torch.linalg.slogdet(torch.vmap(torch.func.jacrev(mixing))(z)).logabsdet
    torch.testing.assert_close(mixing.log_abs_det(z), by_autograd, rtol=1e-9, atol=1e-9)


def test_density_by_change_of_variables_integrates_to_one():
    # p(x) = p0(g(x)) / |det J|, integrated over a grid of x in one dimension
    mixing = OrthogonalMLP(1, seed=0)
    x = torch.linspace(-20, 20, 200_001, dtype=torch.float64).unsqueeze(1)
    z = mixing.inverse(x)
    density = (vs.Normal().log_density(z).squeeze(1) - mixing.log_abs_det(z)).exp()
    assert float(torch.trapezoid(density, x.squeeze(1))) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("name", MIXINGS)
def test_same_seed_same_mixing_and_any_dtype(name):
    z = sources(3, 0)
    first, second, other = (MIXINGS[name](3, s)(z) for s in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)
    assert MIXINGS[name](3, 7)(z.float()).dtype == torch.float32
    stacked = MIXINGS[name](3, 7)(z.expand(4, *z.shape))
    torch.testing.assert_close(stacked[2], first)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_mixings_in_the_ima_class_have_zero_contrast(dim):
    z = sources(dim, 1)
    for mixing in (Moebius(dim, seed=3), MIXINGS["orthogonal, one layer"](dim, 3)):
        assert float(ima_contrast(mixing, z).max()) < 1e-12
    assert float(ima_contrast(OrthogonalMLP(dim, seed=3), 2 * z).mean()) > 1e-4


def test_a_moebius_mixing_is_conformal_and_centred():
    mixing, z = Moebius(3, seed=5), sources(3, 2, 100_000)
    J = jacobian(mixing, z[:20])
    gram = J.mT @ J
    scale = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    torch.testing.assert_close(gram / scale, torch.eye(3, dtype=torch.float64).expand(20, 3, 3), atol=1e-10, rtol=0)
    x = mixing(z)
    assert float((x.mean(0) / x.std(0)).abs().max()) < 0.02


@settings(max_examples=40)
@given(dim=st.integers(2, 6), contrast=st.floats(0.0, 20.0), seed=st.integers(0, 1000))
def test_linear_maps_have_the_specified_contrast_and_unit_volume(dim, contrast, seed):
    weight = LinearMap(dim, contrast=contrast, seed=seed).maps[0].weight
    assert float(torch.linalg.slogdet(weight).logabsdet) == pytest.approx(0.0, abs=1e-6)
    assert float(contrast_of_matrix(weight)) == pytest.approx(contrast, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Moebius(2, seed=0, pole=torch.tensor([0.1, 0.2])), "inside the sources' box"),
        (lambda: Moebius(2, seed=0, low=1.0, high=1.0), "low < high"),
        (lambda: Moebius(2, seed=0, low=1.0, high=0.0, pole=torch.tensor([3.0, 3.0])), "low < high"),
        (lambda: LinearMap(2, contrast=-1.0, seed=0), "contrast of a linear map"),
        (lambda: LinearMap(1, contrast=1.0, seed=0), "0 in one dimension"),
        (lambda: OrthogonalMLP(0, seed=0), "dim of a mixing must be at least 1"),
        (lambda: OrthogonalMLP(2, layers=0, seed=0), "layers of a mixing"),
        (lambda: OrthogonalMLP(2, seed=0, activation="relu"), "activation must be one of"),
        (lambda: Affine(torch.ones(2, 2)), "singular"),
        (lambda: TriangularMLP(2, seed=0, diagonal=0.0), "singular"),
        (lambda: Compose(), "at least one mixing"),
        (lambda: Compose(Moebius(2, seed=0), Moebius(3, seed=0)), "must have the same dimension"),
        (lambda: Moebius(3, seed=0)(torch.zeros(4, 2)), "last axis must be 3"),
    ],
)
def test_bad_mixings_are_rejected(make, message):
    with pytest.raises(vs.InputError, match=message):
        make()


def test_the_pole_is_outside_the_box_for_every_seed():
    for seed in range(200):
        mixing = Moebius(3, seed=seed)
        assert (mixing.pole.abs() > 0.5).all()
        assert isinstance(mixing, Mixing)
