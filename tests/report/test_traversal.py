"""Traversals show what the decoder draws, one latent per row."""

import numpy as np
import pytest
import torch

from vaescope.core.errors import InputError
from vaescope.report.figures import svg, traversal_figure


def decoder(z: torch.Tensor) -> torch.Tensor:
    """Latent 0 moves a bar down, latent 1 sets its brightness, latent 2 does nothing."""
    rows = torch.arange(8.0)
    bar = torch.exp(-((rows - 4 - z[:, :1]) ** 2))
    return (bar * torch.sigmoid(z[:, 1:2])).unsqueeze(2).expand(-1, 8, 8).unsqueeze(1)


def test_every_row_moves_its_latent_only():
    values = (-2.0, 0.0, 2.0)
    figure = traversal_figure(decoder, torch.zeros(3), image_shape=(1, 8, 8), values=values)
    panels = np.stack([axis.images[0].get_array() for axis in figure.axes]).reshape(3, 3, 8, 8)
    for row in range(3):
        for step, value in enumerate(values):
            code = torch.zeros(1, 3)
            code[0, row] = value
            np.testing.assert_allclose(panels[row, step], decoder(code)[0, 0])
    assert panels[0].argmax(axis=1)[:, 0].tolist() == [2, 4, 6]  # the bar moves
    assert panels[1].argmax(axis=1)[:, 0].tolist() == [4, 4, 4]  # only its brightness changes
    assert figure.axes[6].get_ylabel() == "z2\n0.00"  # an unused latent is seen as one
    assert svg(figure) == svg(traversal_figure(decoder, torch.zeros(3), image_shape=(1, 8, 8), values=values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_shape": (2, 8, 4)}, "1 or 3 channels"),
        ({"image_shape": (1, 8, 4)}, "needs 32 outputs, got 64"),
        ({"latents": [3]}, "latents from 0 to 2"),
    ],
)
def test_wrong_arguments_are_explained(change, message):
    with pytest.raises(InputError, match=message):
        traversal_figure(decoder, torch.zeros(3), **({"image_shape": (1, 8, 8)} | change))
