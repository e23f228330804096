"""`vaescope explore`: latents on sliders."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from vaescope.cli.targets import check_auxiliary, models_of, target_name


@dataclass(frozen=True)
class Explore:
    """Move a model's latents by sliders and see what it decodes: a page on this machine alone."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, or a model in your own Python: FILE.py:NAME or package.module:NAME."""
    data: str
    """Samples to start from: a file or a name, as for `vaescope train`."""
    array: str | None = None
    """Name of the array with observations, where the file has several."""
    auxiliary: str | None = None
    """Of an iVAE, its u: `factors` of the data, or an .npy file with a label or a row of numbers per sample."""
    rows: int | None = None
    """Take that many samples, at random."""
    port: int = 0
    """Port on 127.0.0.1 [default: one that is free]."""
    browser: bool = True
    """Open the page."""

    def run(self) -> int:
        from vaescope.data.auxiliary import load_auxiliary
        from vaescope.data.catalogue import open_dataset
        from vaescope.explorer import Session, serve

        models = models_of(self.target)
        data = open_dataset(self.data, array=self.array, rows=self.rows)
        u = load_auxiliary(self.auxiliary, data, self.rows)
        check_auxiliary(models, u)
        session = Session.of(models, data.x.float(), auxiliary=u, name=target_name(self.target))

        def ready(address: str) -> None:
            print(f"{address}  (Ctrl-C to stop)", flush=True)
            if self.browser:
                import webbrowser

                webbrowser.open(address)

        try:
            serve(session, port=self.port, ready=ready)
        except KeyboardInterrupt:
            print()
        return 0
