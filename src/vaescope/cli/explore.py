"""`vaescope explore`: change latents with sliders and see what the model decodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import tyro

from vaescope.cli.data import DataOptions
from vaescope.cli.targets import check_auxiliary, load_models, target_name


@dataclass(frozen=True)
class Explore:
    """Change a model's latents with sliders and see what it decodes, on a page that only this machine can open."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, or a model in your own Python: FILE.py:NAME or package.module:NAME."""
    data: str
    """Samples to start from: a file or a name, as for `vaescope train`."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    port: int = 0
    """Port on 127.0.0.1 [default: a free one]."""
    browser: bool = True
    """Open the page in a browser."""

    def run(self) -> int:
        from vaescope.explorer import Session, serve

        models = load_models(self.target)
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(models, auxiliary)
        session = Session.of(models, data, auxiliary=auxiliary, name=target_name(self.target))

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
