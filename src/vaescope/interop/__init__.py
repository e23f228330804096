"""Results for other tools: data frames, ArviZ, AnnData, model cards, the layout of the Hugging Face Hub."""

from vaescope.interop.anndata import add_to_anndata
from vaescope.interop.arviz import to_datatree
from vaescope.interop.hub import to_hub_folder
from vaescope.interop.model_card import model_card
from vaescope.tables import to_frame

__all__ = ["add_to_anndata", "model_card", "to_datatree", "to_frame", "to_hub_folder"]
