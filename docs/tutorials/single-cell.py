# needs: scvi, scanpy, anndata
# %% [markdown]
# # Single-cell data with scvi-tools
#
# *Ten minutes.* `pip install 'vaescope[foreign]'`. An SCVI model of cells that come with scanpy; x are raw counts.

# %%
import anndata
import numpy as np
import scanpy
import scvi
import torch

import vaescope as vs

scvi.settings.seed = 0
cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
counts = np.rint(np.expm1(cells.X.toarray())).astype("float32")[:, :150]
data = anndata.AnnData(counts[counts.sum(1) > 0])
scvi.model.SCVI.setup_anndata(data)
model = scvi.model.SCVI(data, n_latent=6, n_hidden=32)
model.train(max_epochs=5, accelerator="cpu", enable_progress_bar=False, logger=False)

# %% [markdown]
# The likelihood is one of counts, so the gap is estimated by sampling and the check of β is skipped; the page says so.

# %%
found = vs.diagnose(vs.adapters.from_scvi(model), torch.from_numpy(data.X), name="SCVI", progress=None)
print(found)
print("skipped:", found.skipped)

# %% [markdown]
# The posteriors and the findings go back to the AnnData object: `obsm["X_vae"]` for scanpy's plots, `uns["vaescope"]` for the record.

# %%
vs.interop.add_to_anndata(data, vs.adapters.from_scvi(model), torch.from_numpy(data.X), diagnosis=found)
print(data)

# %% [markdown]
# Next: [other libraries](../diagnose.md#how-do-i-pass-my-own-model).
