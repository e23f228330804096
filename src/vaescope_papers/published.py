"""Published numbers: one `published.toml` per paper, in the folder of its experiments."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any


def published(paper: str) -> dict[str, Any]:
    """The published numbers of a paper by experiment; `paper` is the name of its folder.

    >>> published("embrace_the_gap")["elbo-gap"]["contrast"]
    7.072
    """
    return tomllib.loads(files("vaescope_papers").joinpath(paper, "published.toml").read_text(encoding="utf-8"))


def column(table: Mapping[str, Sequence[float]], name: str, *, key: str = "precision") -> dict[float, float]:
    """A column of published numbers by the values of another column, such as the decoder precision.

    >>> column({"precision": [10.0, 100.0], "mcc": [0.2, 0.9]}, "mcc")
    {10.0: 0.2, 100.0: 0.9}
    """
    return dict(zip(table[key], table[name], strict=True))
