"""Models of other libraries, trained by their own code."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from functools import partial

import numpy as np
import torch
from torch import nn

import vaescope as vs
from tests.zoo.datasets import load
from tests.zoo.training import cached


@contextlib.contextmanager
def quiet():
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def fit_lightning(module: nn.Module, x: torch.Tensor) -> None:
    import lightning

    with quiet():
        trainer = lightning.Trainer(
            max_epochs=120, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 64, shuffle=True))


# pythae ---------------------------------------------------------------------------------------


def fit_pythae(model: nn.Module, x: torch.Tensor, epochs: int = 60) -> None:
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            loss = model({"data": x[rows]}).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def pythae_model(kind: str, image, latent: int, **settings) -> nn.Module:
    from pythae import models

    return getattr(models, kind)(getattr(models, f"{kind}Config")(input_dim=image, latent_dim=latent, **settings))


def pythae_cases(data: str, Case, healthy: str):
    d = load(data)

    def make(label: str, kind: str, latent: int, train: bool = True, **settings):
        build = partial(pythae_model, kind, d.image, latent, **settings)
        if train:
            model = cached(f"{data}-pythae-{label}-0", build, partial(fit_pythae, x=d.train))
        else:
            torch.manual_seed(3)
            model = build().eval()
        return vs.adapters.from_pythae(model), d.test, {}

    def case(label: str, condition: str, *arguments, **settings):
        return Case(f"{data}/pythae {label}", data, "pythae", condition, partial(make, label, *arguments, **settings))

    yield case("VAE", healthy, "VAE", 4, reconstruction_loss="bce")
    yield case("IWAE", healthy, "IWAE", 4, reconstruction_loss="bce", number_samples=5)
    yield case(
        "DisentangledBetaVAE",
        healthy,
        "DisentangledBetaVAE",
        4,
        reconstruction_loss="bce",
        C=8.0,
        warmup_epoch=1,
        beta=5.0,
    )
    yield case("BetaVAE", healthy, "BetaVAE", 3, reconstruction_loss="bce", beta=2.0)
    yield case("VAE mse", "collapsed", "VAE", 4, reconstruction_loss="mse")
    yield case("VAE untrained", "untrained", "VAE", 4, False, reconstruction_loss="bce")


# scvi-tools -----------------------------------------------------------------------------------


def scvi_model(counts: np.ndarray, batches: bool, latent: int, kind: str = "SCVI"):
    import anndata
    import scvi

    data = anndata.AnnData(counts)
    data.obs["batch"] = np.arange(len(counts)) % 2
    data.obs["batch"] = data.obs["batch"].astype(str).astype("category")
    cls = getattr(scvi.model, kind)
    cls.setup_anndata(data, batch_key="batch" if batches else None)
    settings = {} if kind == "LinearSCVI" else {"n_hidden": 32, "gene_likelihood": "nb"}
    return cls(data, n_latent=latent, **settings)


def scvi_cases(data: str, Case, healthy: str):
    def shifted(x: torch.Tensor, batches: bool) -> torch.Tensor:
        """Genes at half their rate in every second cell."""
        moved = x.clone()
        if batches:
            moved[1::2, ::2] = (moved[1::2, ::2] / 2).floor()
        return moved

    def trained(
        latent: int = 3,
        batches: bool = False,
        weight: float = 1.0,
        suffix: str = "",
        kind: str = "SCVI",
        seed: int = 0,
        train: bool = True,
    ):
        d = load(data)
        x = shifted(d.train, batches)
        with quiet():
            torch.manual_seed(seed)
            model = scvi_model(x.numpy(), batches, latent, kind)

            def fit(_: nn.Module) -> None:
                import scvi

                scvi.settings.seed = seed
                plan = {"max_kl_weight": weight, "n_epochs_kl_warmup": 20}
                model.train(
                    max_epochs=100,
                    accelerator="cpu",
                    enable_progress_bar=False,
                    logger=False,
                    plan_kwargs=plan,
                    train_size=0.9,
                    batch_size=64,
                )
                model.module.cpu()

            if train:
                key = f"{data}-{kind}{latent}{'-batch' if batches else ''}{suffix}-{seed}"
                cached(key, lambda: model.module, fit, seed)
                model.is_trained_ = True
                model.module.eval()
        return model, d

    def make(change=None, **settings):
        model, d = trained(**settings)
        batches = settings.get("batches", False)
        x = shifted(d.test, batches)[:: 2 if batches else 1]
        adapted = vs.adapters.from_scvi(model, batch=0) if batches else vs.adapters.from_scvi(model)
        return (adapted if change is None else change(adapted)), x, {}

    def case(label: str, condition: str, **settings):
        return Case(f"{data}/scvi {label}", data, "scvi", condition, partial(make, **settings))

    def rescaled(function):
        return lambda m: vs.adapters.from_callables(
            encode=lambda x: (m.encode(x)[0], function(m.encode(x)[1])), decode=m.decode, latent_dim=m.latent_dim,
            log_likelihood=m.log_likelihood, networks=m.networks,
        )  # fmt: skip

    def mixed(m):
        other = vs.adapters.from_scvi(trained(seed=1)[0])
        return vs.adapters.from_callables(
            encode=m.encode, decode=other.decode, latent_dim=m.latent_dim, log_likelihood=other.log_likelihood,
            networks=m.networks + other.networks,
        )  # fmt: skip

    yield case("SCVI", healthy)
    yield case("SCVI, second seed", healthy, seed=1)
    yield case("LinearSCVI", healthy, kind="LinearSCVI")
    yield case("SCVI with batches", healthy, batches=True)
    yield case("untrained", "untrained", train=False)
    yield case("too many latents", "too-many-latents", latent=24)
    yield case("collapsed", "collapsed", weight=200.0, suffix="-collapsed")
    yield case("standard deviation as variance", "scale-of-variance", change=rescaled(torch.sqrt))
    yield case("log-variance as variance", "negative-variance", change=rescaled(torch.log))
    yield case("precision as variance", "scale-of-variance", change=rescaled(torch.reciprocal))
    yield case("decoder of another run", "reconstruction", change=mixed)


# diffusers ------------------------------------------------------------------------------------


def autoencoder_kl(image: tuple[int, int, int]) -> nn.Module:
    import diffusers

    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 16, 16), norm_num_groups=4, sample_size=image[1], latent_channels=4, layers_per_block=1,
        in_channels=image[0], out_channels=image[0],
    )  # fmt: skip


def fit_autoencoder_kl(model: nn.Module, x: torch.Tensor, epochs: int = 30) -> None:
    """Images from -1 to 1, mean absolute error, and a small weight of the KL, as latent diffusion models do."""
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            posterior = model.encode(2 * x[rows] - 1).latent_dist
            output = model.decode(posterior.sample()).sample
            loss = (output - (2 * x[rows] - 1)).abs().mean() + 1e-3 * posterior.kl().mean() / 16
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def diffusers_cases(data: str, Case, healthy: str):
    d = load(data)

    def make(trained: bool = True, right: bool = True):
        torch.manual_seed(0)
        model = (
            cached(f"{data}-AutoencoderKL-0", partial(autoencoder_kl, d.image), partial(fit_autoencoder_kl, x=d.train))
            if trained
            else autoencoder_kl(d.image).eval()
        )
        return vs.adapters.from_diffusers(model, image_shape=d.image), 2 * d.test - 1 if right else 255 * d.test, {}

    yield Case(f"{data}/AutoencoderKL", data, "diffusers", healthy, make)
    yield Case(f"{data}/AutoencoderKL, untrained", data, "diffusers", "untrained", partial(make, False))
    yield Case(
        f"{data}/AutoencoderKL, images from 0 to 255", data, "diffusers", "reconstruction", partial(make, True, False)
    )
