"""Draw `diagnosis.png`, the picture of the README: the page of a diagnosis of a real model, in headless Chromium.

The model is a VAE of the digits of scikit-learn with a common mistake: its decoder variance is declared as 1, which is too
large for pixels from 0 to 1.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import vaescope as vs

WIDTH, HEIGHT = 1100, 710


def page(path: Path) -> Path:
    """Train, diagnose, and write the page."""
    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    vae = vs.fit(x[:1400], latent_dim=8, precision=10.0, epochs=40, learning_rate=3e-3, seeds=1).best
    model = vs.adapters.from_callables(
        encode=vae.encode, decode=vae.decode, latent_dim=8, precision=1.0, image_shape=(1, 8, 8)
    )
    return vs.diagnose(model, x[1400:], train=x[:1400], name="VAE of digits").to_html(path)


def draw(source: Path, target: Path) -> None:
    """The top of a page as a PNG."""
    browser = shutil.which("chromium") or "chromium"
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    subprocess.run([browser, *flags, f"--screenshot={target}", source.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        draw(page(Path(folder) / "page.html"), Path(__file__).with_name("diagnosis.png"))
