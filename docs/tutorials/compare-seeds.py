# %% [markdown]
# # Compare seeds
#
# *Five minutes.* Two trainings that differ only in their seed: do they find the same latents? If not, no single latent should be
# interpreted.

# %%
import torch

import vaescope as vs

z = vs.Normal().sample(3000, 2, generator=torch.Generator().manual_seed(0))
x = vs.data.mixings.OrthogonalMLP(2, seed=1)(z)
fit = vs.fit(x, latent_dim=2, precision=1e3, seeds=4, epochs=40, learning_rate=3e-3, progress=vs.training.NoProgress())
codes = [member.encode(x)[0] for member in fit.members]
print(vs.metrics.stability(codes))

# %% [markdown]
# `stability` needs no factors: it matches the latents of every pair of models and averages their correlations. The diagnosis of
# several models compares them as well, and says whether they share at least a subspace.

# %%
found = vs.diagnose(fit, x[:1000], progress=None)
print([finding.code for finding in found.findings])
print(found.evidence.stability)

# %% [markdown]
# Here the true factors are known, so we can look whether stable latents are also the right ones:

# %%
for seed, code in enumerate(codes):
    print(seed, round(float(vs.metrics.mcc(code, z).score), 3))

# %% [markdown]
# Next: [which metric answers which question](../concepts/metrics.md).
