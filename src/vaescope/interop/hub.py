"""A run folder in the layout of the Hugging Face Hub. Nothing is uploaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vaescope.adapters.run import members_of
from vaescope.errors import InputError
from vaescope.interop.model_card import model_card
from vaescope.runs.files import write_bytes, write_json, write_text

if TYPE_CHECKING:
    from vaescope.diagnosis import Diagnosis
    from vaescope.models import Member

FILES = ("config.json", "results.parquet", "history.parquet", "report.html", "weights/*.safetensors", "figures/*.svg")
ATTRIBUTES = "".join(f"{p} filter=lfs diff=lfs merge=lfs -text\n" for p in ("*.safetensors", "*.parquet"))


def to_hub_folder(run: str | Path, out: str | Path, *, diagnosis: Diagnosis | None = None) -> Path:
    """Copy a run folder with a model card, ready for `huggingface-cli upload`. `vs.adapters.from_run` opens the copy.

    Args:
        run: a run folder of `vs.fit(..., out=)` or `vaescope train`.
        out: a folder that does not exist yet, or is empty.
        diagnosis: of the best member, which becomes a section of the card and `diagnosis.html`.
    """
    source, target = Path(run), Path(out)
    members = members_of(source)
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is not empty; choose another folder.")
    for pattern in FILES:
        for file in source.glob(pattern):
            write_bytes(target / file.relative_to(source), file.read_bytes())
    write_text(target / ".gitattributes", ATTRIBUTES)
    write_text(target / "README.md", _card(members, diagnosis))
    if diagnosis is not None:
        write_json(target / "diagnosis.json", diagnosis.to_data())
        diagnosis.to_html(target / "diagnosis.html")
    return target


def _card(members: list[Member], diagnosis: Diagnosis | None) -> str:
    """The card: metadata that the Hub reads, how to use the model, and its diagnosis."""
    best = members[0]
    metadata = "---\nlibrary_name: vaescope\ntags:\n- variational-autoencoder\n---\n"
    use = f"""
# Variational autoencoder

{len(members)} trained members with {best.latent_dim} latents. Validation ELBO of the best: {best.best_elbo:.4g} nats.

```python
import vaescope as vs

vae = vs.adapters.from_run(".")  # the best member
mean, variance = vae.encode(x)
```
"""
    return metadata + use + ("" if diagnosis is None else "\n" + model_card(diagnosis))
