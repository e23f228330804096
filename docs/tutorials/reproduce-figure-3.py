# %% [markdown]
# # Reproduce Figure 3 of *Embrace the Gap*
#
# *Five minutes to read, seconds to run.* The published figure is one command:
#
# ```sh
# vaescope reproduce moebius-precision                   # quick: minutes
# vaescope reproduce moebius-precision --profile laptop  # until converged; results are in results/laptop
# ```
#
# It ends with claims, each with its criterion and verdict, on a page. Here is the same in a dozen lines, small enough to change.
# Sources are mixed by a Möbius transform, which is conformal: its Jacobian has orthogonal columns, so the IMA contrast is zero. Then a
# VAE with a precise decoder should recover the sources, and one with an imprecise decoder should not.

# %%
import torch

import vaescope as vs

prior = vs.Uniform(-0.5, 0.5)
z = prior.sample(4000, 2, generator=torch.Generator().manual_seed(0))
mixing = vs.data.mixings.Moebius(2, seed=0)
x = mixing(z)
print("contrast of the mixing:", float(vs.theory.ima_contrast(mixing, z[:100]).abs().max()))

# %%
precisions = [1e1, 1e2, 1e3, 1e4]
fit = vs.fit(
    x,
    latent_dim=2,
    precision=precisions,
    prior=prior,
    seeds=3,
    epochs=60,
    learning_rate=3e-3,
    progress=vs.training.NoProgress(),
)
scores = {p: [] for p in precisions}
for member in fit.members:
    scores[member.precision].append(float(vs.metrics.mcc(member.encode(x)[0], z).score))
for precision, found in scores.items():
    print(f"γ² = {precision:g}: MCC " + ", ".join(f"{score:.3f}" for score in found))

# %%
from vaescope.report import figures

figure, (axis,) = figures.row_of_panels(1)
figures.plot_median_and_range(axis, precisions, list(scores.values()), label="posterior means")
figures.format_axis(axis, title="Recovery of the sources", x="γ²", y="MCC", log="x")
figure.savefig("recovery.svg")

# %% [markdown]
# The published values, ours, and where they differ: [Embrace the Gap](../papers/embrace-the-gap.md).
