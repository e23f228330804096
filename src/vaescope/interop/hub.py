"""A run folder in the layout of the Hugging Face Hub. Nothing is uploaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vaescope import __version__
from vaescope.adapters.run import members_of
from vaescope.core.errors import InputError
from vaescope.runs.files import write_bytes, write_json, write_text

if TYPE_CHECKING:
    from vaescope.models import Member
    from vaescope.products.diagnose.diagnose import Diagnosis


def model_card(diagnosis: Diagnosis) -> str:
    """What a reader of a model card should know: verdict, numbers, findings with advice, and what was not checked.

    Args:
        diagnosis: of the model that the card is about.

    >>> import torch, vaescope as vs
    >>> found = vs.diagnose(vs.adapters.from_arrays(torch.zeros(300, 2), torch.ones(300, 2)), progress=None)
    >>> print(model_card(found).splitlines()[0])
    ## Diagnosis
    """
    parts = [
        "## Diagnosis",
        f"{diagnosis.verdict} ({diagnosis.samples} samples, vaescope {__version__})",
        _table(("measured", "value"), diagnosis.facts()),
    ]
    if diagnosis.findings:
        rows = [(f.severity, f"{f.title} {f.evidence}", f.advice) for f in diagnosis.findings]
        parts.append(_table(("severity", "finding", "what to do"), rows))
    if diagnosis.skipped:
        parts.append(
            "Not checked: " + "; ".join(f"{what} ({_cell(why)})" for what, why in diagnosis.skipped.items()) + "."
        )
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that ends no cell and is no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


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
    run_files = ("config.json", "results.parquet", "history.parquet", "report.html")
    for pattern in (*run_files, "weights/*.safetensors", "figures/*.svg"):
        for file in source.glob(pattern):
            write_bytes(target / file.relative_to(source), file.read_bytes())
    attributes = [f"{stored} filter=lfs diff=lfs merge=lfs -text\n" for stored in ("*.safetensors", "*.parquet")]
    write_text(target / ".gitattributes", "".join(attributes))
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
