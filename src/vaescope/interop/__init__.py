"""Results for other tools: data frames, ArviZ, AnnData, torchmetrics, model cards, the Hugging Face Hub."""

from vaescope.core.tables import to_frame
from vaescope.interop.exports import add_to_anndata, model_card, to_datatree, to_hub_folder, torchmetric

__all__ = ["add_to_anndata", "model_card", "to_datatree", "to_frame", "to_hub_folder", "torchmetric"]
