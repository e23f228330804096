"""c_IMA of hard matrices: one value, wherever it is computed, and the exact one."""

import mpmath
import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.inference import geometry
from vaescope.inference.geometry import best_rotation
from vaescope.orthogonality import od_report

G = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def nearly_parallel(n, columns, distance):
    first = random(n, 1)
    return torch.cat([first, *(first + distance * random(n, 1) for _ in range(columns - 1))], dim=1)


def hilbert(n):
    return torch.tensor([[1 / (i + j + 1) for j in range(n)] for i in range(n)], dtype=torch.float64)


def kahan(n, angle):
    """Its smallest singular value is far below the smallest diagonal entry of R."""
    upper = np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1)
    return torch.from_numpy(np.diag(np.sin(angle) ** np.arange(n)) @ upper)


# matrix and largest error: rounding of the matrix itself changes the contrast by about eps times its condition number
HARD = {
    "two columns, 1e-6 apart": (nearly_parallel(30, 2, 1e-6), 1e-9),
    "two columns, 1e-12 apart": (nearly_parallel(30, 2, 1e-12), 1e-3),
    "three columns, 1e-9 apart": (nearly_parallel(30, 3, 1e-9), 1e-6),
    "five columns, 1e-9 apart": (nearly_parallel(200, 5, 1e-9), 1e-6),
    "Hilbert, 8": (hilbert(8), 1e-5),
    "Hilbert, 12": (hilbert(12), 0.1),
    "Kahan, 20": (kahan(20, 0.4), 1e-9),
    "Vandermonde": (torch.from_numpy(np.vander(np.linspace(-1, 1, 40), 16)), 1e-9),
    "columns of different scales": (
        random(20, 4) * torch.tensor([1e-120, 1.0, 1e120, 1e-8], dtype=torch.float64),
        1e-12,
    ),
    "orthogonal columns of different scales": (
        torch.linalg.qr(random(50, 3))[0] * torch.tensor([1e-8, 1.0, 1e8]),
        1e-14,
    ),
    "nearly orthogonal": (torch.linalg.qr(random(50, 5))[0] + 1e-8 * random(50, 5), 1e-14),
}


def exact_contrast(J):
    """With 80 digits."""
    with mpmath.workdps(80):
        A = mpmath.matrix(J.tolist())
        for k in range(A.cols):
            norm = mpmath.norm(A[:, k])
            for i in range(A.rows):
                A[i, k] /= norm
        return float(-mpmath.log(mpmath.det(A.T * A)) / 2)


@pytest.mark.parametrize("name", HARD)
def test_every_function_gives_the_exact_contrast(name):
    J, tolerance = HARD[name]
    exact = exact_contrast(J)
    of_decoder = vs.theory.ima_contrast(lambda z: z @ J.T, torch.zeros(1, J.shape[1], dtype=torch.float64))
    found = {
        "contrast_of_matrix": float(vs.theory.contrast_of_matrix(J)),
        "ima_contrast": float(of_decoder),
        "column_contrast": float(vs.orthogonality.column_contrast(J.numpy())),
        "od_report": float(od_report([J], null_draws=1).contrast[0]),
        "best_rotation": best_rotation(J[None]).before,
    }
    assert found == pytest.approx(dict.fromkeys(found, exact), abs=tolerance)


@pytest.mark.parametrize(
    "J",
    [
        torch.cat([torch.ones(5, 1), 2 * torch.ones(5, 1)], dim=1).double(),
        torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
        nearly_parallel(30, 2, 1e-16),
    ],
    ids=["parallel", "zero column", "parallel up to rounding"],
)
def test_every_function_is_infinite_for_dependent_columns(J):
    assert float(vs.theory.contrast_of_matrix(J)) == torch.inf
    assert float(vs.orthogonality.column_contrast(J)) == torch.inf
    assert best_rotation(J[None]).before == torch.inf


def test_the_best_rotation_reports_contrasts_of_the_matrices():
    J = random(20, 9, 4)
    found = best_rotation(J)
    rotated = J @ torch.from_numpy(found.matrix)
    assert found.before == pytest.approx(float(vs.theory.contrast_of_matrix(J).mean()), rel=1e-12)
    assert found.after == pytest.approx(float(vs.theory.contrast_of_matrix(rotated).mean()), rel=1e-12)
    np.testing.assert_allclose(found.matrix.T @ found.matrix, np.eye(4), atol=1e-12)


def test_a_planted_rotation_is_found():
    """Curved columns that are orthogonal in rotated axes."""
    lengths = torch.rand(40, 1, 4, generator=G).double() + torch.tensor([0.5, 1.0, 2.0, 4.0])
    frames = torch.linalg.qr(random(40, 9, 4))[0]
    turn = torch.linalg.qr(random(4, 4))[0]
    found = best_rotation(frames * lengths @ turn.T)
    assert found.before > 0.2
    assert found.after == pytest.approx(0, abs=1e-6)
    close = np.abs(found.matrix.T @ turn.numpy())
    np.testing.assert_allclose(np.sort(close.max(0)), 1, atol=1e-3)
    straight = best_rotation(frames * lengths)
    assert straight.gain == pytest.approx(0, abs=1e-9)
    assert straight.largest_angle == pytest.approx(0, abs=1e-3)


def test_a_rotation_of_many_latents_is_found():
    J = torch.linalg.qr(random(16, 100, 32))[0] * torch.linspace(1, 9, 32, dtype=torch.float64)
    found = best_rotation(J @ torch.linalg.qr(random(32, 32))[0])
    assert found.after < 0.1 * found.before


def test_angles_and_gram_share_are_those_of_the_theory():
    M = nearly_parallel(30, 3, 1e-3)
    torch.testing.assert_close(vs.orthogonality.column_angles(M), geometry.column_angles(M))
    torch.testing.assert_close(vs.orthogonality.gram_share(M), geometry.gram_share(M))
    cosine = float(M[:, 0] @ M[:, 1] / M[:, 0].norm() / M[:, 1].norm())
    assert float(geometry.column_angles(M)[0, 1]) == pytest.approx(np.degrees(np.arccos(cosine)))


def test_the_contrast_of_a_mean_jacobian_is_another_number():
    """Polar coordinates have orthogonal columns everywhere; their mean Jacobian has not."""
    angle = torch.linspace(0.0, 2.0, 50, dtype=torch.float64)
    z = torch.stack([1 + angle, angle], dim=1)

    def polar(z):
        return z[:, :1] * torch.stack([z[:, 1].cos(), z[:, 1].sin()], dim=1)

    assert float(vs.theory.ima_contrast(polar, z).max()) < 1e-12
    assert vs.theory.global_contrast(polar, z).value < 1e-12
    assert float(vs.theory.contrast_of_matrix(vs.theory.jacobian(polar, z).mean(0))) > 0.01
