# %% [markdown]
# # Diagnose a PyTorch VAE
#
# *Five minutes.* You have a VAE in plain PyTorch. Here is one with a common mistake: the squared error is averaged over pixels,
# the KL is summed over latents.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import vaescope as vs

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
train, test = x[:1400], x[1400:]


def train_vae(reduce):
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * 6))  # means, then log-variances
    decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(20):
        for batch in train[torch.randperm(len(train))].split(100):
            mean, log_variance = encoder(batch).chunk(2, dim=1)
            z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            error = reduce((decoder(z) - batch).square())
            kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
            loss = (error + kl).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return encoder, decoder


encoder, decoder = train_vae(lambda squares: squares.mean(1))

# %% [markdown]
# Wrap it. `precision` is 1 / decoder variance: a squared error that is a mean over n numbers has precision 2/n.

# %%
model = vs.adapters.from_modules(encoder, decoder, latent_dim=6, scale="log_variance", precision=2 / 64)
found = vs.diagnose(model, test, progress=None)
print(found)

# %% [markdown]
# The finding names the cause and the remedy. A sum over pixels at a decoder variance of 0.05, which is the maximum-likelihood value
# for errors of this size, is the loss `10 · Σ(x - y)² + KL`:

# %%
encoder, decoder = train_vae(lambda squares: 10 * squares.sum(1))
model = vs.adapters.from_modules(encoder, decoder, latent_dim=6, scale="log_variance", precision=20.0)
found = vs.diagnose(model, test, train=train, progress=None)
print(found)
for row in found.summary():
    print({name: value if not isinstance(value, float) else round(value, 3) for name, value in row.items()})

# %% [markdown]
# `found.to_html("page.html")` writes everything, with figures, to one page that you can send to a colleague; `found.to_json` writes
# the same as data. On the command line: `vaescope diagnose model.py:model --data test.npy --html page.html`.
#
# Next: [every finding and what it means](../diagnose.md).

# %%
found.to_html("page.html")
