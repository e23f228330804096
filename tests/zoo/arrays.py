"""Arrays of the zoo: split into training and test samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class Data:
    train: torch.Tensor
    test: torch.Tensor

    @property
    def image(self) -> tuple[int, ...] | None:
        """Channels, height and width of images."""
        return tuple(self.train.shape[1:]) if self.train.ndim == 4 else None


def split(x: np.ndarray, share: float = 0.25, in_order: bool = False) -> Data:
    x = np.asarray(x, dtype=np.float32)
    order = np.arange(len(x)) if in_order else np.random.default_rng(0).permutation(len(x))
    test = int(share * len(x))
    x = torch.from_numpy(x[order])
    return Data(x[:-test], x[-test:])


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def some(x: np.ndarray, rows: int) -> np.ndarray:
    return x[np.random.default_rng(1).permutation(len(x))[:rows]]
