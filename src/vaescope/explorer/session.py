"""What the explorer shows, as pure functions of a few models and samples: nothing here knows of the network."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vaescope import regime
from vaescope.adapters.repaired import image_of, with_normal_prior
from vaescope.diagnosis.diagnose import models_of
from vaescope.errors import InputError
from vaescope.regime.model import Encoded, as_array, spread_samples

SHOWN = 400  # samples that can be clicked
LARGEST = 1e30  # of a code's numbers
REACH = 3.0  # deviations of the prior that a slider spans, and all codes that are shown


@dataclass(frozen=True, eq=False)
class Session:
    """Models of the same data, and samples to start from; the first model gives the latents' order."""

    models: list[Any]
    seen: list[Encoded]
    judged: list[regime.Regime]
    name: str = "model"

    @classmethod
    def of(cls, models: Any, x: Any, *, auxiliary: Any = None, name: str = "model") -> Session:
        models = models_of(models)
        if not all(getattr(model, "decodes", True) for model in models):
            raise InputError("the explorer needs a decoder.")
        x = as_array(x)
        viewed = [with_normal_prior(model) for model in models]
        seen = [spread_samples(model, x, auxiliary, SHOWN) for model in viewed]
        judged = [regime.of_model(model, x, auxiliary=auxiliary, decoder=False) for model in viewed]
        return cls(viewed, seen, judged, name)

    @property
    def image(self) -> tuple[int, int, int] | None:
        """(channels, height, width), where outputs are images."""
        return image_of(self.models[0], self.seen[0].x[0].numel())

    def state(self) -> dict[str, Any]:
        """All that the page has to know at first."""
        return {
            "name": self.name,
            "image": self.image,
            "range": self._range(),
            "members": [self._member(k) for k in range(len(self.models))],
        }

    def _range(self) -> list[float]:
        """Least and largest number of the samples that are shown, 0 among them: what bars and curves are drawn in."""
        values = self.seen[0].x
        finite = values[values.isfinite()]
        return [min(0.0, float(finite.min())), max(0.0, float(finite.max()))] if finite.numel() else [0.0, 1.0]

    def _shades(self) -> tuple[float, float]:
        """What black and white stand for: 0 and 1, unless samples go beyond."""
        low, high = self._range()
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)

    def _member(self, k: int) -> dict[str, Any]:
        judged, seen = self.judged[k], self.seen[k]
        order = judged.places("active", "mixed", "passive")
        centre, width = seen.prior_mean.mean(0), seen.prior_variance.mean(0).sqrt()
        first = [*judged.used, *order][:2]
        return {
            "latents": [
                {
                    "index": j,
                    "kind": judged.kind[j],
                    "kl": round(float(judged.kl[j]), 4),
                    "low": min(float(centre[j] - REACH * width[j]), float(seen.mean[:, j].min())),
                    "high": max(float(centre[j] + REACH * width[j]), float(seen.mean[:, j].max())),
                    "start": float(seen.mean[:, j].median()),
                }
                for j in order
            ],
            "axes": first,
            "points": [[round(float(v), 4) for v in row[first]] for row in seen.mean],
        }

    def decode(self, member: object, z: object) -> dict[str, Any]:
        """What one code gives: bytes of an image, or numbers."""
        k = self._place(member, len(self.models), "member")
        codes = self._code(z, self.models[k].latent_dim)
        with torch.no_grad():
            output = self.models[k].decode(codes.to(self.seen[k].mean.dtype)).flatten().double()
        if self.image is not None and output.numel() != self.seen[k].x[0].numel():
            raise InputError(f"member {k} decodes {output.numel()} numbers, samples have {self.seen[k].x[0].numel()}.")
        return self.drawn(output)

    def sample(self, member: object, sample: object) -> dict[str, Any]:
        """The code of a sample, and the sample itself."""
        k = self._place(member, len(self.models), "member")
        i = self._place(sample, len(self.seen[k].mean), "sample")
        return {"z": [float(v) for v in self.seen[k].mean[i]], "x": self.drawn(self.seen[k].x[i].flatten().double())}

    def drawn(self, output: Tensor) -> dict[str, Any]:
        if self.image is None:
            return {"values": [float(v) if math.isfinite(v) else None for v in output.tolist()]}
        channels, height, width = self.image
        low, high = self._shades()
        scaled = ((output - low) / (high - low)).nan_to_num(0.5, 1.0, 0.0)
        pixels = scaled.reshape(channels, height, width).permute(1, 2, 0).clamp(0, 1)
        shown = pixels.expand(-1, -1, 3) if channels == 1 else pixels[..., :3]
        data = (255 * shown).round().to(torch.uint8).numpy().tobytes()
        return {"width": width, "height": height, "pixels": base64.b64encode(data).decode()}

    def _place(self, value: object, count: int, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise InputError(f"{name} must be a whole number from 0 to {count - 1}.")
        return value

    def _code(self, z: object, d: int) -> Tensor:
        if not isinstance(z, list) or len(z) != d or not all(_is_number(v) for v in z):
            raise InputError(f"z must be {d} finite numbers.")
        return torch.tensor([z], dtype=torch.float64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
