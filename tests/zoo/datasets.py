"""Data of the zoo. Rules are developed on DEVELOPMENT data sets; SCORED ones are only scored."""

from __future__ import annotations

import os
from functools import cache

from safetensors.torch import load_file, save_file

from tests.zoo.arrays import Data
from tests.zoo.sources import images, series, tables, texts
from tests.zoo.training import FOLDER

SOURCES = (images, tables, texts, series)
FIRST = ("digits", "wine", "blobs", "moons", "sprites", "waves", "counts")
SECOND = ("cancer", "diabetes", "swiss", "patches", "text", "elnino", "pbmc")  # scored until rules changed
THIRD = ("mnist", "survey", "health", "scurve", "textures", "docstrings", "temperatures", "wordcounts")  # likewise
FOURTH = ("photographs", "election", "housing", "torus", "modules", "co2", "modulecounts")  # likewise
FIFTH = ("micrographs", "glyphs", "schools", "weather", "knot", "manual", "stocks", "manualcounts")  # likewise
SIXTH = ("workshop", "scans", "travel", "cars", "moebius", "handbook", "economy", "opcodes")  # likewise
SEVENTH = ("wheel", "bars", "cells", "friedman", "circles", "guide", "employment", "letters")  # likewise
DEVELOPMENT = FIRST + SECOND + THIRD + FOURTH + FIFTH + SIXTH + SEVENTH
SCORED = ("portrait", "faces", "terrain", "classes", "sphere", "lessons", "eeg", "nodes")


@cache
def load(name: str) -> Data:
    """A data set; kept beside the weights, because texts of packages depend on what is installed and imported."""
    file = FOLDER / "data" / f"{name}.safetensors"
    if not file.exists():
        made: Data = next(vars(source)[name] for source in SOURCES if name in vars(source))()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        save_file({"train": made.train.contiguous(), "test": made.test.contiguous()}, part)
        part.replace(file)
    parts = load_file(file)
    return Data(parts["train"], parts["test"])
