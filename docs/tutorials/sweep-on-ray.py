# %% [markdown]
# # A sweep, here and on Ray
#
# *Ten minutes.* `pip install 'vaescope[sweep]'`. Every combination of settings is trained; those that differ only in precision, β and
# seed are members of one stack.

# %%
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from vaescope.cli import dispatch

rng = np.random.default_rng(0)
np.save(
    "x.npy", (rng.normal(size=(500, 2)) @ rng.normal(size=(2, 5)) + 0.1 * rng.normal(size=(500, 5))).astype("float32")
)
Path("sweep.yaml").write_text("""
fit: {data: x.npy, epochs: 20, seeds: 2, learning_rate: 0.005}
sweep: {latent_dim: [2, 4], precision: [10, 100]}
out: sweep
""")
dispatch(["sweep", "sweep.yaml", "--dry-run"])

# %%
dispatch(["sweep", "sweep.yaml"])
table = pq.read_table("sweep/results.parquet")
print(table.select(["latent_dim", "precision", "seed", "status", "elbo"]).to_pandas().round(2).to_string(index=False))

# %% [markdown]
# Run it again and nothing is trained twice; interrupted, it continues from its last checkpoint to the same bits.
#
# On a Ray cluster the file stays as it is:
#
# ```sh
# pip install 'vaescope[ray]'
# ray start --head
# vaescope sweep sweep.yaml --executor ray --address auto
# ```
#
# A node that disappears loses a minute of work: its stacks are restarted elsewhere. See [many machines](../machines.md).
