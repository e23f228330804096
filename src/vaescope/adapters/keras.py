"""A model from Keras 3, on the torch, JAX or TensorFlow backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaescope.adapters.base import SCALES, Adapted, from_callables
from vaescope.adapters.bridge import on_jax
from vaescope.adapters.jax import mirror
from vaescope.core import validation
from vaescope.core.errors import InputError, first_line, require


def from_keras(model: object, decoder: object = None, *, scale: str = "log_variance", **known: Any) -> Adapted:
    """A model from Keras 3, called with `training=False`.

    On the torch backend it is called directly, on JAX through a bridge that differentiates it; on TensorFlow it has no
    gradients. Keras computes in its own floating-point type, float32 by default. Images may have their channels first
    or last.

    Args:
        model: the encoder; or a model with an `encoder` and a `decoder`; or a `.keras` file of either, which is read in
            safe mode. The encoder returns means and scales, then perhaps draws; or one array with both halves.
        decoder: the decoder or its `.keras` file, if `model` is an encoder.
        scale: what the encoder's second output is: `log_variance`, `variance`, `deviation` or `log_deviation`.
        known: further arguments of `from_callables`, such as `precision`.
    """
    keras = require("keras", "adapting Keras models")
    validation.choice("scale", scale, SCALES)
    model, decoder = (_loaded(given) for given in (model, decoder))
    encoder = getattr(model, "encoder", None) or model
    decoder = decoder or getattr(model, "decoder", None)
    for part in (encoder, *([] if decoder is None else [decoder])):
        if not isinstance(part, keras.layers.Layer) or not part.built:
            raise InputError(
                f"from_keras needs built Keras models, got {type(part).__name__}; call it on a batch first."
            )
    shape = _shape(encoder, "input_shape")
    last = len(shape) == 3 and shape[-1] in (1, 2, 3, 4)
    latents = known.setdefault("latent_dim", _latents(encoder, decoder))
    if last and -1 not in shape:
        known.setdefault("image_shape", (shape[2], shape[0], shape[1]))
    run_encoder, run_decoder = _run(keras, encoder), None if decoder is None else _run(keras, decoder)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if -1 not in shape:
            expected = (shape[2], shape[0], shape[1]) if last else shape
            if tuple(x.shape[1:]) != expected and x.ndim != 2:
                raise InputError(f"this model takes samples of shape {expected}, got {tuple(x.shape[1:])}.")
            x = x.reshape(len(x), *expected)
        found = run_encoder(x.movedim(1, -1) if last else x)
        if isinstance(found, Tensor):
            found = found.split(latents, dim=-1)
        if len(found) not in (2, 3):
            raise InputError(f"the encoder must return means and scales, got {len(found)} outputs; use from_callables.")
        return found[0], SCALES[scale](found[1])

    def decode(z: Tensor) -> Tensor:
        found = run_decoder(z.reshape(len(z), *_shape(decoder, "input_shape"))) if run_decoder else None
        if not isinstance(found, Tensor):
            raise InputError("the decoder must return one array, the mean of x; otherwise use from_callables.")
        return found.movedim(-1, 1) if last and found.ndim == 4 else found

    parts: list[Any] = [encoder] if decoder is None else [encoder, decoder]
    weights = [(f"{k}/{v.path}", v) for k, part in enumerate(parts) for v in part.variables]
    arrays = [(tuple(path.split("/")), np.asarray(keras.ops.convert_to_numpy(v))) for path, v in weights]
    known.setdefault("networks", [mirror(arrays)])
    return from_callables(encode=encode, decode=decode if run_decoder else None, **known)


def _run(keras: ModuleType, layer: Any) -> Callable[[Tensor], Any]:
    """A layer as a function of tensors, on any backend; gradients on torch and JAX."""
    dtype = getattr(torch, layer.compute_dtype)
    if keras.backend.backend() == "torch":
        return lambda x: _listed(layer(x.to(dtype), training=False))
    if keras.backend.backend() == "jax":

        def params() -> tuple[list[object], list[object]]:
            return [v.value for v in layer.trainable_variables], [v.value for v in layer.non_trainable_variables]

        def call(values: tuple[list[object], list[object]], x: object) -> object:
            return _listed(layer.stateless_call(*values, x, training=False)[0])

        bridged = on_jax(call, params)
        return lambda x: bridged(x.to(dtype))

    def without_gradients(x: Tensor) -> Tensor | tuple[Tensor, ...]:
        found = _listed(layer(x.to(dtype).numpy(), training=False))
        arrays = [
            torch.from_numpy(keras.ops.convert_to_numpy(v)) for v in (found if isinstance(found, tuple) else [found])
        ]
        return tuple(arrays) if isinstance(found, tuple) else arrays[0]

    return without_gradients


def _listed(found: object) -> object:
    """Outputs by name or in a list as a tuple."""
    return tuple(found.values()) if isinstance(found, dict) else tuple(found) if isinstance(found, list) else found


def _loaded(given: object) -> Any:
    """A model from a `.keras` file; anything else as it is."""
    if not isinstance(given, str | Path):
        return given
    if not str(given).endswith(".keras") or not Path(given).is_file():
        raise InputError(f"expected a .keras file, got {given}; save one with model.save('model.keras').")
    keras = require("keras", "reading .keras files")
    try:
        return keras.saving.load_model(given, compile=False, safe_mode=True)
    except Exception as error:  # a damaged file raises anything
        raise InputError(
            f"{given} cannot be loaded in safe mode: {first_line(error)}; a model with your own classes is loaded in "
            "Python and passed to vs.adapters.from_keras."
        ) from None


def _shape(layer: object, name: str) -> tuple[int, ...]:
    """Shape of the first input or output without the batch; -1 if it is not known."""
    found = getattr(layer, name, None) or (None, None)
    found = found[0] if isinstance(found[0], tuple | list) else found
    return tuple(-1 if size is None else int(size) for size in found[1:])


def _latents(encoder: object, decoder: object) -> int:
    shape = (-1,) if decoder is None else _shape(decoder, "input_shape")
    size = math.prod(_shape(encoder, "output_shape") if -1 in shape else shape)
    if size < 1:
        raise InputError("the number of latents is not known from the model; pass latent_dim=.")
    return size
