# %% [markdown]
# # Choose σ, β and the number of latents
#
# *Five minutes.* Three numbers decide what a VAE learns, and two of them are one: only β·σ² matters for which latents are used,
# where σ² is the decoder's variance (its precision is γ² = 1/σ²).

# %%
import numpy as np
import torch

import vaescope as vs

rng = np.random.default_rng(0)
scales = np.array([3.0, 1.0, 0.3])  # three directions of different variance, and noise
x = torch.tensor(rng.normal(size=(2000, 3)) * scales @ np.linalg.qr(rng.normal(size=(12, 3)))[0].T)
x = (x + 0.05 * rng.normal(size=(2000, 12))).float()

# %% [markdown]
# **Before training.** A linear VAE uses a latent exactly if its eigenvalue of the covariance exceeds β·σ². Count them:

# %%
eigenvalues = torch.linalg.eigvalsh(torch.cov(x.T)).flip(0)
for variance in (10.0, 0.5, 0.01):
    print(f"β·σ² = {variance}: {int((eigenvalues > variance).sum())} latents")

# %% [markdown]
# **After training.** The regime of a trained model says which latents it uses, and `advise` how many are enough, without training
# another model. All precisions are trained together, as one stack.

# %%
fit = vs.fit(
    x, latent_dim=6, precision=[0.1, 2.0, 100.0], epochs=60, learning_rate=5e-3, progress=vs.training.NoProgress()
)
for vae in fit.members:
    regime = vs.regime.of_model(vae, x)
    print(f"γ² = {vae.precision:g}: {len(regime.used)} latents in use, KL {float(regime.kl.sum()):.2f} nats")

# %%
print(vs.regime.advise(fit.members[-1], x))

# %% [markdown]
# The counts agree with the eigenvalues. So: leave β at 1, set σ² to the variance of the errors that you accept (or learn it:
# `precision="learned"`), and take a few more latents than you need. Unused ones stay at their prior and cost nothing.
#
# Next: [active, passive and mixed latents](../concepts/regime.md), [the linear VAE](../concepts/linear-vae.md).
