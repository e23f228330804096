"""`vaescope info`: what a bug report needs. `vaescope version`: the version alone."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from vaescope.cli.output import console, table
from vaescope.cli.output import console as new_console
from vaescope.core.errors import EXTRAS


@dataclass(frozen=True)
class Version:
    """Print the version."""

    def run(self) -> int:
        from vaescope import __version__

        print(__version__)
        return 0


@dataclass(frozen=True)
class Info:
    """Print versions, threads, bfloat16 and the compiler, for bug reports."""

    def run(self) -> int:
        shown = table("what", "value")
        for what, value in information().items():
            shown.add_row(what, value)
        console().print(shown)
        return 0


def information() -> dict[str, str]:
    """Versions of libraries, and what this machine has.

    >>> list(information())[:3]
    ['vaescope', 'Python', 'platform']
    """
    import torch

    from vaescope import __version__
    from vaescope.training.compilation import has_bfloat16

    libraries = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib", "pyarrow", "safetensors", "tyro", "rich")
    compiler = next((found for name in ("g++", "clang++", "c++", "cl") if (found := shutil.which(name))), None)
    return {
        "vaescope": __version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in libraries},
        **{name: _version(name) for name, _ in sorted(EXTRAS.values())},
        "CPUs": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "bfloat16": "yes" if has_bfloat16(torch.device("cpu")) else "no (emulated; float32 is used)",
        "C++ compiler": compiler or "none: training runs uncompiled",
        "CUDA": torch.version.cuda or "no",
    }


def _version(name: str) -> str:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Datasets:
    """List data sets: what is rendered here, and which official file would be read instead."""

    out: Path = Path("runs") / "datasets"
    """Folder for the page with a contact sheet of each."""

    def run(self) -> int:
        from vaescope.data.catalogue import DATASETS
        from vaescope.report.page import datasets_page
        from vaescope.runs.files import write_text

        listed = table("name", "what", "rendered", "official file", "from")
        for column in listed.columns:
            column.overflow = "fold"  # a file's name is to be read whole
        for entry in DATASETS:
            file, where = (entry.official.files[0][0], entry.official.publisher) if entry.official else ("–", "–")
            listed.add_row(entry.name, entry.description, "yes" if entry.renderer else "no", file, where)
        console = new_console()
        console.print(listed)
        write_text(self.out / "index.html", datasets_page())
        console.print(str((self.out / "index.html").resolve()), soft_wrap=True, markup=False)
        return 0
