"""What the explorer shows, as functions of a few models and samples; independent of the server."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, encode_chunks, encode_sample
from vaescope.analysis.models import RepairedModel, as_models, drawable_shape, with_normal_prior
from vaescope.analysis.samples import read_samples_of_each
from vaescope.core.errors import InputError
from vaescope.regime import Regime
from vaescope.regime.model import regime_of

REACH = 3.0  # standard deviations of the prior that a slider spans; wider if codes are


@dataclass(frozen=True, eq=False)
class Session:
    """Models of the same data, and samples to start from."""

    models: list[RepairedModel]
    """With their outputs checked and corrected."""
    samples: list[EncodedSample]
    """Encoded by each model."""
    regimes: list[Regime]
    """Which latents of each model are active, passive or mixed."""
    name: str = "model"
    """The title of the page."""

    @classmethod
    def of(cls, models: object, x: object, *, auxiliary: object | None = None, name: str = "model") -> Session:
        """A session about one model, several models, or a fit.

        Args:
            models: models with a decoder.
            x: samples, a row or an image each.
            auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
            name: the title of the page.
        """
        listed = as_models(models)
        if not all(model.has_decoder for model in listed):
            raise InputError("the explorer needs models with a decoder.")
        if any(model.conditional for model in listed):
            raise InputError("the explorer shows decoders of z alone: pass decode=lambda z: decoder(z, y) with one y.")
        given = read_samples_of_each(listed, x, auxiliary)
        repaired = [with_normal_prior(m, g.image_shape) for m, g in zip(listed, given, strict=True)]
        samples = [encode_sample(m, g, None, 400) for m, g in zip(repaired, given, strict=True)]
        regimes = [regime_of(encode_chunks(s.model, g, first=s)) for s, g in zip(samples, given, strict=True)]
        return cls(repaired, samples, regimes, name)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of outputs that are images."""
        return drawable_shape(self.models[0], self.samples[0].x[0].numel())

    def state(self) -> dict[str, object]:
        """The initial data of the page."""
        return {
            "name": self.name,
            "image": self.image_shape,
            "range": self._range(),
            "members": [self._member(k) for k in range(len(self.models))],
        }

    def _range(self) -> list[float]:
        """The range of the selectable samples, with 0: the axis of bars and curves."""
        values = self.samples[0].x
        finite = values[values.isfinite()]
        return [min(0.0, float(finite.min())), max(0.0, float(finite.max()))] if finite.numel() else [0.0, 1.0]

    def _member(self, k: int) -> dict[str, object]:
        regime, sample = self.regimes[k], self.samples[k]
        order = regime.latents_of_kind("active", "mixed", "passive")
        centre, width = sample.prior_mean.mean(0), sample.prior_variance.mean(0).sqrt()
        axes = [*regime.used, *order][:2]
        return {
            "latents": [
                {
                    "index": j,
                    "kind": regime.kind[j],
                    "kl": round(float(regime.kl[j]), 4),
                    "low": min(float(centre[j] - REACH * width[j]), float(sample.mean[:, j].min())),
                    "high": max(float(centre[j] + REACH * width[j]), float(sample.mean[:, j].max())),
                    "start": float(sample.mean[:, j].median()),
                }
                for j in order
            ],
            "axes": axes,
            "points": [[round(float(v), 4) for v in row[axes]] for row in sample.mean],
        }

    def decode(self, member: object, z: object) -> dict[str, object]:
        """The output for one code: an image or numbers.

        Args:
            member: index of the model, from 0.
            z: the code: a list of `latent_dim` numbers.
        """
        k = _index(member, len(self.models), "member")
        sample, expected = self.samples[k], self.samples[k].x[0].numel()
        code = _code(z, self.models[k].latent_dim).to(sample.mean.dtype)
        with torch.no_grad():
            output = self.models[k].decode(code).flatten().double()
        if self.image_shape is not None and output.numel() != expected:
            raise InputError(f"member {k} returns {output.numel()} numbers, but samples have {expected}.")
        return self.to_data(output)

    def sample(self, member: object, sample: object) -> dict[str, object]:
        """The code of a sample, and the sample itself.

        Args:
            member: index of the model that encodes it, from 0.
            sample: index of the sample, from 0.
        """
        encoded = self.samples[_index(member, len(self.models), "member")]
        i = _index(sample, len(encoded), "sample")
        return {"z": [float(v) for v in encoded.mean[i]], "x": self.to_data(encoded.x[i].flatten().double())}

    def to_data(self, output: Tensor) -> dict[str, object]:
        """An output as the page takes it: the pixels of an image, or numbers.

        Args:
            output: the numbers of one output, flattened.
        """
        if self.image_shape is None:
            return {"values": [float(v) if math.isfinite(v) else None for v in output.tolist()]}
        channels, height, width = self.image_shape
        low, high = self._range()
        if low >= 0 and high <= 1:  # black is 0 and white is 1, unless samples exceed them
            low, high = 0.0, 1.0
        scaled = ((output - low) / (high - low)).nan_to_num(0.5, 1.0, 0.0)
        pixels = scaled.reshape(channels, height, width).permute(1, 2, 0).clamp(0, 1)
        rgb = pixels.expand(-1, -1, 3) if channels == 1 else pixels[..., :3]
        data = (255 * rgb).round().to(torch.uint8).numpy().tobytes()
        return {"width": width, "height": height, "pixels": base64.b64encode(data).decode()}


def _index(value: object, count: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise InputError(f"{name} must be an integer from 0 to {count - 1}.")
    return value


def _code(z: object, latents: int) -> Tensor:
    def is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e30

    if not isinstance(z, list) or len(z) != latents or not all(map(is_number, z)):
        raise InputError(f"z must be {latents} finite numbers.")
    return torch.tensor([z], dtype=torch.float64)
