"""C++ sources of this package as loaded libraries: compiled once per machine, kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

COMPILER = "g++"  # its OpenMP is the one that PyTorch uses; two of them in one process can end it
FLAGS = ("-O3", "-std=c++17", "-fopenmp", "-shared", "-fPIC")


def cache_folder() -> Path:
    """Where compiled libraries are kept: `vaescope` in the cache folder of the user."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "vaescope"


def load_library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """Compile a C++ file if this was not done before, and load it; None where that is not possible.

    Args:
        source: the C++ file.
        flags: compiler options, beside `FLAGS`. They name instructions rather than a processor, because a home folder
            can be shared by machines with different processors.
    """
    compiler = shutil.which(COMPILER)
    if compiler is None:
        return None
    try:
        key = hashlib.sha256(b"\0".join([source.read_bytes(), *map(str.encode, (*FLAGS, *flags))])).hexdigest()[:16]
        library = cache_folder() / f"{source.stem}-{key}.so"
        with contextlib.suppress(OSError):  # not compiled yet
            return ctypes.CDLL(str(library))
        _compile(compiler, source, flags, library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # RuntimeError: there is no home folder
        warnings.warn(
            f"cannot compile {source.name} ({_reason(error)}); PyTorch's own kernels are used, which are slower.",
            stacklevel=2,
        )
        return None


def _compile(compiler: str, source: Path, flags: tuple[str, ...], library: Path) -> None:
    """Compile beside the final name, then rename: another process sees all of the library or nothing."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder) / library.name
        command = [compiler, *FLAGS, *flags, str(source), "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        with output.open("rb") as file:
            os.fsync(file.fileno())  # a library that a power cut truncated would end the process that loads it
        os.replace(output, library)


def _reason(error: OSError | RuntimeError | subprocess.CalledProcessError) -> str:
    """The first line that says what went wrong."""
    if not isinstance(error, subprocess.CalledProcessError):
        return getattr(error, "strerror", None) or str(error)
    lines = [line for line in str(error.stderr).splitlines() if "error" in line]
    return lines[0] if lines else f"exit code {error.returncode}"
