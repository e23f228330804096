"""The page of data sets: what each looks like, its factors, and its official file."""

from __future__ import annotations

from typing import Any

import torch

from vaescope.data.catalogue import CATALOGUE, Entry
from vaescope.report.page import render
from vaescope.report.sheet import contact_sheet, data_uri

SHOWN, COLUMNS = 32, 16


def datasets_page() -> str:
    return render("datasets.html", cards=[_card(entry) for entry in CATALOGUE])


def _card(entry: Entry) -> dict[str, Any]:
    official = entry.official
    card: dict[str, Any] = {
        "name": entry.name,
        "about": entry.about[0].upper() + entry.about[1:],
        "files": official.files if official else (),
        "where": official.where if official else "",
        "picture": None,
        "caption": f"{SHOWN} images at random.",
        "count": official.count if official else None,
        "size": " x ".join(map(str, official.pixels)) if official else "",
        "factors": [],
    }
    if entry.rendered is None:
        if official:
            sizes = zip(official.names, official.sizes, strict=True)
            card["factors"] = [{"name": n, "values": s, "low": 0.0, "high": s - 1.0} for n, s in sizes]
        return card
    source = entry.rendered()
    places = torch.randint(len(source), (SHOWN,), generator=torch.Generator().manual_seed(0))
    card["picture"] = data_uri(contact_sheet(source.at(places).images, columns=COLUMNS))
    card["factors"] = [{"name": f.name, "values": len(f.values), "low": f.low, "high": f.high} for f in source.factors]
    return card
