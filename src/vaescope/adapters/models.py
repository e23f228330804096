"""What users pass as models: one, several, or a fit."""

from __future__ import annotations

from collections.abc import Sequence

from vaescope.adapters.quantised import Quantised
from vaescope.errors import InputError, RunError
from vaescope.fitting import Fit
from vaescope.protocol import LatentModel, check_model


def as_models(models: object) -> list[LatentModel]:
    """One model or several as a list; of a fit, the finished members, best first."""
    if isinstance(models, Fit):
        finished = [member for member in models.members if member.status == "finished"]
        if not finished:
            raise RunError("no member of this fit has finished; see the history of each for where it diverged.")
        return [*sorted(finished, key=lambda member: -member.best_elbo)]
    if isinstance(models, Quantised):
        raise InputError("a VQ-VAE has no posterior; write vaescope.diagnosis.diagnose_codebook(model, x).")
    listed = list(models) if isinstance(models, Sequence) else [models]
    if not listed:
        raise InputError("expected a model, got an empty list.")
    return [check_model(model) for model in listed]
