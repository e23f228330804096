"""Guided by coverage: texts that a sweep's file and a run's settings may be. Needs atheris (pip install atheris).

    python guided.py -runs=30000 -seed=1

Stops at the first input that is neither read nor refused with one of vaescope's own errors.
"""

import contextlib
import sys
import tempfile
from pathlib import Path


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["yaml", "vaescope.sweeps.sweep", "vaescope.runs"]):
        from vaescope.errors import InputError, RunError
        from vaescope.runs import RunFolder
        from vaescope.sweeps.sweep import read_sweep

    folder = Path(tempfile.mkdtemp())
    (folder / "run").mkdir()

    def one_input(data: bytes) -> None:
        (folder / "s.yaml").write_bytes(data)
        (folder / "run" / "config.json").write_bytes(data)
        with contextlib.suppress(InputError, RunError):
            read_sweep(folder / "s.yaml")
        with contextlib.suppress(InputError, RunError):
            RunFolder(folder / "run", {"experiment": "fit", "settings": {"epochs": 1}})

    atheris.Setup([sys.argv[0], "-max_len=400", *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
