"""Whether the weights of a model are still those that PyTorch starts with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from vaescope.adapters.adapted import Adapted
from vaescope.protocol import LatentModel, WrappedModel

FEWEST = 32  # fewer weights give no verdict
FEWEST_BIASES = 12
ROUNDING = 1e-5
SPREAD = 0.25  # relative difference between the spread of weights and that of the uniform distribution
LINEAR = (nn.Linear, nn.modules.conv._ConvNd)
NORMALISATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def weights_are_initial(model: LatentModel) -> bool:
    """Whether no step of training can have been made; False if weights have changed or cannot be seen."""
    networks = networks_of(model)
    return bool(networks) and networks_are_initial(networks)


def networks_of(model: LatentModel) -> tuple[nn.Module, ...]:
    """The modules that a model consists of; none if they cannot be seen."""
    while isinstance(model, WrappedModel):
        model = model.model
    if isinstance(model, nn.Module):
        return (model,)
    return model.networks if isinstance(model, Adapted) else ()


def networks_are_initial(networks: Sequence[nn.Module]) -> bool:
    """Normalisation layers at exactly 1 and 0; or weights, or biases, that fill exactly the interval they start in.

    PyTorch draws the weights and biases of linear, convolutional and recurrent layers uniformly within a bound that
    depends on the number of inputs. Training moves some of them out of it; of a few biases, perhaps none. Weights may
    be initialised by other rules, so biases alone are enough.

    >>> networks_are_initial([nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5))])
    True
    """
    layers = [layer for network in networks for layer in network.modules()]
    scales = [p for layer in layers if isinstance(layer, NORMALISATION) for p in _scale_and_shift(layer)]
    if scales:
        return all(bool((value == start).all()) for value, start in scales)
    pairs = [pair for layer in layers for pair in _bounded(layer)]
    weights = [value / bound for value, bound, bias in pairs if not bias]
    biases = [value / bound for value, bound, bias in pairs if bias]
    zero = all(bool((value == 0).all()) for value in biases) and sum(map(len, biases)) >= FEWEST_BIASES
    return zero or _is_uniform(weights, FEWEST) or _is_uniform(biases, FEWEST_BIASES)


def _scale_and_shift(layer: nn.Module) -> Iterator[tuple[Tensor, float]]:
    for name, start in (("weight", 1.0), ("bias", 0.0)):
        value = getattr(layer, name, None)
        if isinstance(value, Tensor):
            yield value.detach(), start


def _bounded(layer: nn.Module) -> Iterator[tuple[Tensor, float, bool]]:
    """Weights of a layer, the bound within which they start, and whether they are biases."""
    if isinstance(layer, LINEAR) and isinstance(layer.weight, Tensor):
        bound = 1 / math.sqrt(max(1, layer.weight[0].numel()))
        yield layer.weight.detach().flatten(), bound, False
        if isinstance(layer.bias, Tensor):
            yield layer.bias.detach().flatten(), bound, True
    elif isinstance(layer, nn.RNNBase):
        for name, value in layer.named_parameters():
            yield value.detach().flatten(), 1 / math.sqrt(layer.hidden_size), "bias" in name


def _is_uniform(parts: list[Tensor], fewest: int) -> bool:
    """Whether numbers fill [-1, 1] and none is outside."""
    if sum(map(len, parts)) < fewest:
        return False
    values = torch.cat([part.double() for part in parts])
    inside = bool((values.abs() <= 1 + ROUNDING).all())
    return inside and abs(float(values.std()) * math.sqrt(3) - 1) < SPREAD
