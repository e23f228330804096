# %% [markdown]
# # Gallery
#
# Every figure that the package draws, with the code that draws it.
#
# ## A diagnosis
#
# `vs.diagnose(model, x).to_html("page.html")` puts these on one page.

# %%
import torch

import vaescope as vs
from vaescope.products.diagnose.page import drawings

z = vs.Normal().sample(1500, 2, generator=torch.Generator().manual_seed(0))
x = vs.data.mixings.OrthogonalMLP(2, seed=1)(z)
vae = vs.fit(
    x[:1000], latent_dim=2, precision=300.0, epochs=60, learning_rate=3e-3, progress=vs.training.NoProgress()
).best
found = vs.diagnose(vae, x[1000:], progress=None)
for name, figure, caption in drawings(found.evidence, found.sample):
    figure.savefig(f"{name}.svg")
    print(f"{name}: {caption}")

# %% [markdown]
# ## One latent at a time, as images

# %%
from sklearn.datasets import load_digits

from vaescope.report.figures import traversal_figure

digits = torch.tensor(load_digits().data / 16, dtype=torch.float32)
quiet = vs.training.NoProgress()
vae = vs.fit(digits, latent_dim=4, precision=30.0, epochs=40, learning_rate=3e-3, progress=quiet).best
traversal_figure(vae.decode, vae.encode(digits[:1])[0][0], image_shape=(1, 8, 8)).savefig("digits.svg")

# %% [markdown]
# ## Metrics
#
# Scores of codes whose relation to the factors is known: [how to read it](concepts/metrics.md). Drawn by `docs/figures/planted.py`.
#
# ![Every metric on codes whose relation to the factors is known](figures/planted_scores.svg)
#
# ![The codes](figures/planted_codes.svg)
#
# ## The polarised regime
#
# `vaescope reproduce polarised-regime` draws it: [how to read it](concepts/regime.md).
#
# ![Every latent of seven models](figures/regime_latents.svg)
#
# ## Planted faults
#
# `make test-zoo` scores the diagnosis on models of other libraries.
#
# ![Share of planted faults found](figures/zoo.svg)
#
# ## Speed
#
# `make bench` draws it: [performance](performance.md).
#
# ![Seconds per epoch](figures/scaling.svg)
