"""Coverage-guided fuzzing of sweep files, run settings and priors. Needs atheris (pip install atheris).

    python guided_texts.py -runs=30000 -seed=1

Stops at the first input that is neither read nor rejected with an error of vaescope.
"""

import contextlib
import sys
import tempfile
from pathlib import Path


def main() -> None:
    import atheris

    modules = ["yaml", "vaescope.sweeps.sweep", "vaescope.runs", "vaescope.distributions.priors"]
    with atheris.instrument_imports(include=modules):
        from vaescope.core.errors import InputError, RunError
        from vaescope.distributions.priors import prior_from_text
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
        with contextlib.suppress(InputError):
            prior_from_text(data.decode(errors="replace"))

    atheris.Setup([sys.argv[0], "-max_len=400", *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
