"""The page of data sets: sample images, factors and official files."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vaescope.data.catalogue import DATASETS, DatasetEntry
from vaescope.data.files.official import OfficialFile
from vaescope.data.rendering import Renderer
from vaescope.report.figures import contact_sheet, png_data_uri
from vaescope.report.page import render

SAMPLES, COLUMNS = 32, 16


@dataclass(frozen=True)
class FactorRow:
    """One row of the table of factors."""

    name: str
    count: int
    low: float
    high: float


@dataclass(frozen=True)
class DatasetCard:
    """What the page shows of one data set."""

    name: str
    description: str
    official: OfficialFile | None
    picture: str | None
    """Data URI of a contact sheet; None if the data set cannot be rendered."""
    factors: list[FactorRow]
    samples: int = SAMPLES


def datasets_page() -> str:
    """The HTML page of all data sets."""
    return render("datasets.html", cards=[_card(entry) for entry in DATASETS])


def _card(entry: DatasetEntry) -> DatasetCard:
    description = entry.description[0].upper() + entry.description[1:]
    if entry.renderer is None:
        return DatasetCard(entry.name, description, entry.official, None, _official_factors(entry.official))
    renderer = entry.renderer()
    factors = [FactorRow(f.name, len(f.values), f.low, f.high) for f in renderer.factors]
    return DatasetCard(entry.name, description, entry.official, _sample_sheet(renderer), factors)


def _official_factors(official: OfficialFile | None) -> list[FactorRow]:
    if official is None:
        return []
    sizes = zip(official.factor_names, official.sizes, strict=True)
    return [FactorRow(name, size, 0.0, size - 1.0) for name, size in sizes]


def _sample_sheet(renderer: Renderer) -> str:
    indices = torch.randint(len(renderer), (SAMPLES,), generator=torch.Generator().manual_seed(0))
    return png_data_uri(contact_sheet(renderer.images_at(indices).images, columns=COLUMNS))
