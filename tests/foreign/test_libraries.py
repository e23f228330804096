"""Models of other libraries, trained or created by these libraries, are diagnosed; needs the extra `foreign`."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import vaescope as vs

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
DIGITS = (load_digits().data / 16).astype("float32").reshape(-1, 1, 8, 8)


def page(found, tmp_path):
    return found.to_html(tmp_path / "page.html").read_text()


def test_pythae_trained_by_its_own_pipeline(tmp_path):
    models = pytest.importorskip("pythae.models")
    pipelines = pytest.importorskip("pythae.pipelines")
    trainers = pytest.importorskip("pythae.trainers")
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    model = models.VAE(models.VAEConfig(input_dim=(1, 8, 8), latent_dim=6, reconstruction_loss="bce"))
    settings = trainers.BaseTrainerConfig(
        output_dir=str(tmp_path), num_epochs=8, per_device_train_batch_size=64, learning_rate=1e-3, no_cuda=True
    )
    pipelines.TrainingPipeline(model=model, training_config=settings)(DIGITS[:1400], eval_data=DIGITS[1400:])
    logging.disable(logging.NOTSET)
    x = torch.from_numpy(DIGITS[1400:])
    adapted = vs.adapters.from_pythae(model)
    assert (adapted.latent_dim, adapted.likelihood, adapted.image_shape) == (6, "bernoulli", (1, 8, 8))
    with torch.no_grad():
        expected = model.encoder(x)
        torch.testing.assert_close(adapted.encode(x)[1], expected.log_covariance.exp())
        mean = expected.embedding
        torch.testing.assert_close(adapted.decode(mean), model.decoder(mean).reconstruction.flatten(1))
    found = vs.diagnose(adapted, x, factors=load_digits().target[1400:, None])
    assert found.evidence.geometry is not None
    assert found.evidence.noise.explained > 0.05
    assert found.evidence.gap.mean("family")[0] > -0.5
    assert found.evidence.gap.mean("amortization")[0] > 0
    assert page(found, tmp_path).count("<image") >= 7  # traversals of digits


def test_a_collapsed_pythae_model_is_found(tmp_path):
    """Its default precision of 1 is too small for pixels in [0, 1]: the model collapses."""
    models = pytest.importorskip("pythae.models")
    torch.manual_seed(0)
    model = models.VAE(models.VAEConfig(input_dim=(1, 8, 8), latent_dim=4, reconstruction_loss="mse"))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    x = torch.from_numpy(DIGITS)
    for step in range(400):
        rows = torch.arange(64) + 64 * (step % 28)
        loss = model({"data": x[rows % len(x)]}).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = vs.diagnose(vs.adapters.from_pythae(model), x)
    assert "collapsed" in [finding.code for finding in found.findings]


def test_scvi_on_real_cells(tmp_path):
    scvi = pytest.importorskip("scvi")
    scanpy = pytest.importorskip("scanpy")
    anndata = pytest.importorskip("anndata")
    logging.disable(logging.WARNING)
    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    counts = np.rint(np.expm1(cells.X.toarray())).astype("float32")[:, :150]
    counts = counts[counts.sum(1) > 0]
    data = anndata.AnnData(counts)
    scvi.settings.seed = 0
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_latent=6, n_hidden=32)
    model.train(max_epochs=60, accelerator="cpu", enable_progress_bar=False, logger=False)
    logging.disable(logging.NOTSET)
    adapted = vs.adapters.from_scvi(model)
    x = torch.from_numpy(counts)
    mean, variance = model.get_latent_representation(return_dist=True)
    with torch.no_grad():
        found = adapted.encode(x)
    np.testing.assert_allclose(found[0].numpy(), mean, atol=1e-4)
    np.testing.assert_allclose(found[1].numpy(), variance, rtol=1e-3, atol=1e-5)
    diagnosis = vs.diagnose(adapted, x, name="SCVI")
    assert len(diagnosis.summary()) == 6
    assert diagnosis.evidence.geometry is not None
    assert diagnosis.evidence.gap.mean("amortization")[0] > 0
    assert "SCVI" in page(diagnosis, tmp_path)


def test_diffusers_autoencoder(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        sample_size=16,
    )
    adapted = vs.adapters.from_diffusers(model, image_shape=(3, 16, 16))
    x = torch.rand(24, 3, 16, 16)
    with torch.no_grad():
        posterior = model.encode(x).latent_dist
        torch.testing.assert_close(adapted.encode(x)[0], posterior.mean.flatten(1))
        z = posterior.mean
        torch.testing.assert_close(adapted.decode(z.flatten(1)), model.decode(z).sample.flatten(1))
    found = vs.diagnose(adapted, x)
    assert adapted.latent_dim == 4 * 8 * 8
    assert [row["channel"] for row in found.summary()] == [*found.evidence.latent_image.kl.argsort(descending=True)]
    assert [f.code for f in found.findings][:1] == ["untrained"]
    assert found.evidence.noise.likelihood is None  # decoded and compared with x, although its noise is unknown
    assert found.skipped["gap"] == "it means nothing with the finding untrained"
    assert page(found, tmp_path)


def test_batches_and_covariates_of_scvi():
    """Read by scvi-tools itself; posteriors are those of scvi-tools."""
    scvi = pytest.importorskip("scvi")
    anndata = pytest.importorskip("anndata")
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(0.6 * rng.normal(size=(200, 2)) @ rng.normal(size=(2, 15)) + 1)).astype("float32")
    data = anndata.AnnData(counts)
    data.obs["batch"] = np.array(["a", "b"])[np.arange(200) % 2]
    data.obs["sex"] = np.array(["f", "m"])[np.arange(200) // 2 % 2]
    data.obs["age"] = rng.normal(size=200)
    scvi.model.SCVI.setup_anndata(
        data, batch_key="batch", continuous_covariate_keys=["age"], categorical_covariate_keys=["sex"]
    )
    model = scvi.model.SCVI(data, n_latent=2, n_hidden=16)
    model.train(max_epochs=2, accelerator="cpu", enable_progress_bar=False, logger=False)
    logging.disable(logging.NOTSET)
    adapted = vs.adapters.from_scvi(model)
    found = vs.diagnose(adapted, data, progress=None, budget=5.0)
    mean, variance = model.get_latent_representation(return_dist=True)
    np.testing.assert_allclose(found.sample.mean.numpy(), mean[found.sample.rows], atol=1e-4)
    np.testing.assert_allclose(found.sample.variance.numpy(), variance[found.sample.rows], rtol=1e-3)
    assert found.evidence.elbo is not None
    certified = vs.certify(adapted, data, simulations=200, budget=0.1, progress=None)
    assert certified.ranks.shape == (200, 2)
    assert certified.log_marginal_bounds is not None
    with pytest.raises(vs.InputError, match=r"2 batches \(a, b\) or covariates; pass AnnData as x"):
        vs.diagnose(adapted, counts, progress=None)


def test_parts_of_a_lightning_module_are_adapted():
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(5, 4), torch.nn.Linear(2, 5)

    model = Model()
    adapted = vs.adapters.from_modules(model.encoder, model.decoder, latent_dim=2, precision=1.0)
    assert len(vs.diagnose(adapted, torch.randn(100, 5)).summary()) == 2


BLOCKS = re.findall(r"```python foreign\n(.*?)```", (ROOT / "docs" / "diagnose.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["jax", "pythae", "scvi"])
def test_the_docs_run(block, tmp_path, monkeypatch, capsys):
    for name in re.findall(r"^(?:import|from) (jax|pythae|scvi|scanpy|anndata)", block, flags=re.MULTILINE):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.WARNING)
    exec(compile(block, "docs", "exec"), {})
    logging.disable(logging.NOTSET)
    assert list(tmp_path.glob("*.html"))


def test_pythae_models_are_compared_and_identified(tmp_path):
    models = pytest.importorskip("pythae.models")
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = models.VAE(models.VAEConfig(input_dim=(1, 8, 8), latent_dim=4, reconstruction_loss="bce"))
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)
        for step in range(300):
            rows = (torch.arange(64) + 64 * step) % 1400
            loss = model({"data": torch.from_numpy(DIGITS)[rows]}).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found.append(vs.adapters.from_pythae(model))
    x = torch.from_numpy(DIGITS[1400:])
    compared = vs.compare(found, x, progress=None)
    assert compared.elbo is not None
    assert compared.skipped == {}
    assert page(compared, tmp_path).count("<image") >= 10  # matched traversals
    identified = vs.identifiability(found, x)
    assert identified.planes is not None
    assert len(identified.sentences) == 4


def test_scvi_models_are_compared_and_identified():
    scvi = pytest.importorskip("scvi")
    anndata = pytest.importorskip("anndata")
    logging.disable(logging.WARNING)
    rates = np.exp(np.random.default_rng(0).normal(size=(300, 2)) @ np.random.default_rng(1).normal(size=(2, 30)))
    data = anndata.AnnData(np.random.default_rng(2).poisson(rates).astype("float32") + np.eye(300, 30, dtype="float32"))
    scvi.model.SCVI.setup_anndata(data)
    models = []
    for seed in range(2):
        scvi.settings.seed = seed
        model = scvi.model.SCVI(data, n_latent=3, n_hidden=16)
        model.train(max_epochs=5, accelerator="cpu", enable_progress_bar=False, logger=False)
        models.append(vs.adapters.from_scvi(model))
    logging.disable(logging.NOTSET)
    x = torch.from_numpy(np.asarray(data.X))
    compared = vs.compare(models, x, progress=None)
    assert compared.elbo is not None
    assert len(vs.identifiability(models, x).kind) == 3


SMALL = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
SMALL |= {"block_out_channels": (8, 16), "norm_num_groups": 4}
ASYMMETRIC = {f"{side}_block_types": SMALL[f"{side}_block_types"] for side in ("down", "up")}
ASYMMETRIC |= {f"{side}_block_out_channels": (8, 16) for side in ("down", "up")} | {"norm_num_groups": 4}
TEMPORAL = {"down_block_types": SMALL["down_block_types"], "block_out_channels": (32, 32)}
CONSISTENCY = {"encoder_block_out_channels": (8, 16), "encoder_norm_num_groups": 4, "decoder_layers_per_block": 1}
CONSISTENCY |= {"encoder_down_block_types": SMALL["down_block_types"], "decoder_block_out_channels": (32, 32)}
CONSISTENCY |= {f"decoder_{k}_block_types": (f"Resnet{k.title()}sampleBlock2D",) * 2 for k in ("down", "up")}
WAN = {"base_dim": 8, "z_dim": 4, "num_res_blocks": 1, "latents_mean": [0.5] * 4, "latents_std": [2.0] * 4}
QWEN = WAN | {"decoder_base_dim": 8, "dim_mult": [1, 2, 2], "temperal_downsample": [False, True]}
QWEN |= {"in_channels": 3, "out_channels": 3, "scale_factor_temporal": 2, "scale_factor_spatial": 4}
FOUR = {"block_out_channels": (8,) * 4, "latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 4}
WIDE = {"latent_channels": 4, "block_out_channels": (32, 64), "layers_per_block": 1, "spatial_compression_ratio": 2}
KVAE = {"channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2)}
KVAE_VIDEO = {"ch": 32, "ch_mult": (1, 2), "num_res_blocks": 1, "z_channels": 4, "temporal_compress_times": 2}
REFINER = WIDE | {"block_out_channels": (32, 64, 64), "spatial_compression_ratio": 4, "temporal_compression_ratio": 2}
LTX = {"latent_channels": 8, "block_out_channels": (8,) * 4, "layers_per_block": (1,) * 5}
LTX1 = LTX | {"decoder_block_out_channels": (8,) * 4, "decoder_layers_per_block": (1,) * 5}
LTX2 = LTX | {"decoder_block_out_channels": (16, 32, 64), "decoder_layers_per_block": (1,) * 4}
LTX_AUDIO = {"base_channels": 8, "num_res_blocks": 1, "latent_channels": 2, "resolution": 16, "mel_bins": 8}
MOCHI = {"encoder_block_out_channels": (32,) * 4, "decoder_block_out_channels": (32,) * 4, "latent_channels": 4}
MOCHI |= {"layers_per_block": (1,) * 5, "latents_mean": (0.5,) * 4, "latents_std": (2.0,) * 4}
KANDINSKY = {"encoder_block_out_channels": (8,) * 3, "decoder_block_out_channels": (8,) * 3, "latent_channels": 4}
VIDTOK = {"ch": 32, "ch_mult": [1, 2, 2, 2], "num_res_blocks": 1, "is_causal": False}
AUDIO = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2]}
AUDIO |= {"decoder_channels": 8, "decoder_input_channels": 4}
RATES = {"encoder_dim": 8, "encoder_rates": [2, 4], "latent_dim": 32, "decoder_dim": 32, "decoder_rates": [4, 2]}
KVAE_AUDIO = RATES | {"codebook_dim": 4, "attn_num_heads": 2}
MINIMAX_AUDIO = RATES | {"latent_channels": 4, "num_attention_heads": 2, "decoder_kernel_sizes": (8, 4)}
COSMOS_AUDIO = {
    "vocoder_input_dim": 4,
    "dec_dim": 8,
    "dec_c_mults": (1, 2),
    "dec_strides": (4, 8),
    "enc_strides": (2, 2),
}
COSMOS_AUDIO |= {"enc_c_mults": (1, 2), "enc_dim": 8, "enc_intermediate_dim": 8, "enc_num_layers": 1, "hop_size": 32}
COSMOS_AUDIO |= {"enc_n_fft": 16, "enc_hop_length": 8, "enc_latent_dim": 8}
TINY = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
COMPRESSION = TINY | {"latent_channels": 4, "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1)}
COMPRESSION |= {"encoder_qkv_multiscales": ((), ()), "decoder_qkv_multiscales": ((), ())}
TINY |= {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
COSMOS = {"latent_channels": 4, "encoder_block_out_channels": (8,) * 4, "decode_block_out_channels": (8,) * 4}
COSMOS |= {"attention_resolutions": (8,), "resolution": 64, "num_layers": 1}
MINIMAX = {"latent_channels": 4, "block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
MINIMAX |= {"spatial_downsample_factors": (2, 2), "temporal_downsample_factors": (2, 2), "decoder_num_layers": 1}
MINIMAX |= {"decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16, "latents_mean": (0.0,) * 4}
REPRESENTATION = {"encoder_hidden_size": 64, "encoder_patch_size": 4, "encoder_num_hidden_layers": 1, "patch_size": 4}
REPRESENTATION |= {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
REPRESENTATION |= {"decoder_intermediate_size": 32, "encoder_input_size": 16, "image_size": 16}
SAME = {"patch_size": 4, "encoder_channels": 32, "encoder_c_mults": (1,), "encoder_strides": (2,), "dim_heads": 16}
SAME |= {"encoder_transformer_depths": (1,), "latent_dim": 8}
MEL = {"mel_bins": 8, "latent_channels": 4, "hidden_channels": 16, "channel_multipliers": (1, 2), "layers_per_block": 1}
PROTEIN = {"atom37_mask": [[True] * 37] * 147, "allowed_residue_types": [[True] * 147] * 7, "latent_dim": 4}
PROTEIN |= {"nlayers": 1, "token_dim": 16, "nheads": 2, "dim_cond": 8, "pair_repr_dim": 8, "token_type_emb_dim": 4}
IMAGE, NO_VAE = (3, 16, 16), "is no VAE: it returns latents without a variance"
IN_OUT = {"in_channels": 3, "out_channels": 3}
AUTOENCODERS = [
    ("AsymmetricAutoencoderKL", ASYMMETRIC, IMAGE, (4, 8, 8)),
    ("AutoencoderKL", SMALL, IMAGE, (4, 8, 8)),
    ("AutoencoderKL", SMALL, (3, 15, 16), "pass a shape that it can restore"),
    ("AutoencoderKL", SMALL, (4, 16, 16), "AutoencoderKL cannot encode samples of"),
    ("AutoencoderKLAllegro", FOUR, (3, 8, 16, 16), "AutoencoderKLAllegro cannot encode .*without tiling"),
    ("AutoencoderKLCogVideoX", FOUR, (3, 9, 16, 16), (4, 6, 2)),
    ("AutoencoderKLFlux2", SMALL | {"latent_channels": 4, "layers_per_block": 1}, IMAGE, (4, 8, 8)),
    ("AutoencoderKLHunyuanImage", WIDE | IN_OUT | {"sample_size": 16}, IMAGE, (4, 8, 8)),
    ("AutoencoderKLHunyuanImageRefiner", REFINER, (3, 5, 16, 16), (4, 20, 4)),
    ("AutoencoderKLHunyuanVideo", FOUR, (3, 5, 16, 16), (4, 4, 2)),
    ("AutoencoderKLKVAE", KVAE | {"sample_size": 16}, IMAGE, (4, 8, 8)),
    ("AutoencoderKLKVAEAudio", KVAE_AUDIO, (1, 64), (4, 1, 8)),
    ("AutoencoderKLKVAEVideo", KVAE_VIDEO, (3, 5, 16, 16), (4, 24, 8)),
    ("AutoencoderKLLTX2Audio", LTX_AUDIO, (2, 9, 8), (2, 3, 2)),
    ("AutoencoderKLLTX2Video", LTX2, (3, 9, 64, 64), (8, 4, 2)),
    ("AutoencoderKLLTXVideo", LTX1, (3, 9, 64, 64), (8, 4, 2)),
    ("AutoencoderKLMagvit", FOUR, (3, 9, 16, 16), (4, 6, 2)),
    ("AutoencoderKLMiniMaxH3Audio", MINIMAX_AUDIO, (1, 64), (4, 1, 8)),
    ("AutoencoderKLMochi", MOCHI, (3, 7, 16, 16), (4, 4, 2)),
    ("AutoencoderKLQwenImage", WAN, IMAGE, (4, 2, 2)),
    ("AutoencoderKLQwenImage21", QWEN, IMAGE, (4, 4, 4)),
    ("AutoencoderKLTemporalDecoder", TEMPORAL, IMAGE, (4, 8, 8)),
    ("AutoencoderKLWan", WAN, IMAGE, (4, 2, 2)),  # a model of videos takes images as single frames
    ("AutoencoderKLWan", WAN, (3, 5, 16, 16), (4, 4, 2)),  # two frames of 2 x 2 below each other
    ("AutoencoderOobleck", AUDIO, (2, 64), (4, 1, 8)),
    ("AutoencoderVidTok", VIDTOK, (3, 16, 16, 16), (4, 8, 2)),  # decodes to a tensor
    ("ConsistencyDecoderVAE", CONSISTENCY, IMAGE, (4, 8, 8)),
    ("Cosmos3AVAEAudioTokenizer", COSMOS_AUDIO, (2, 512), (4, 1, 16)),
    ("Kandinsky6SRVAE", KANDINSKY, (3, 5, 16, 16), (4, 12, 4)),
    ("AutoencoderDC", COMPRESSION, IMAGE, NO_VAE),
    ("AutoencoderKLCosmos", COSMOS, (3, 9, 32, 32), NO_VAE),
    ("AutoencoderKLMiniMaxH3", MINIMAX, (3, 10, 16, 16), "decode"),
    ("AutoencoderRAE", REPRESENTATION, IMAGE, NO_VAE),
    ("AutoencoderSAME", SAME, (2, 64), NO_VAE),
    ("AutoencoderTiny", TINY, IMAGE, NO_VAE),
    ("MMAudioVAE", MEL, (4096,), "MMAudioVAE decodes samples of"),  # decodes to a spectrogram
    ("RFD4ProteinaAutoencoder", PROTEIN, (8, 37, 3), "RFD4ProteinaAutoencoder cannot encode .*padding_mask"),
    ("VQModel", {"block_out_channels": (32,), "sample_size": 16}, IMAGE, "is a VQ-VAE|is no VAE"),
]


@pytest.mark.parametrize(("kind", "settings", "shape", "expected"), AUTOENCODERS)
def test_every_autoencoder_of_diffusers(kind, settings, shape, expected):
    """Adapted as diffusers computes it, or refused in one line."""
    diffusers = pytest.importorskip("diffusers")
    if not hasattr(diffusers, kind):
        pytest.skip(f"diffusers has no {kind}")
    torch.manual_seed(0)
    model = getattr(diffusers, kind)(**settings).eval()
    given = {"image_shape" if len(shape) == 3 and shape[0] == 3 else "sample_shape": shape}
    if isinstance(expected, str):
        with pytest.raises(vs.InputError, match=expected) as refusal:
            vs.adapters.from_diffusers(model, **given)
        assert len(str(refusal.value).splitlines()) == 1
        return
    adapted = vs.adapters.from_diffusers(model, **given)
    x = torch.rand(3, *shape)
    frames = x[:, :, None] if kind[13:] in ("Wan", "QwenImage", "QwenImage21") and len(shape) == 3 else x
    with torch.no_grad():
        posterior = model.encode(frames).latent_dist
        torch.testing.assert_close(adapted.encode(x)[0], posterior.mean.flatten(1))
        variance = posterior.var if hasattr(posterior, "var") else posterior.std.square()
        torch.testing.assert_close(adapted.encode(x)[1], variance.flatten(1))
        z = posterior.mean[:1]
        known = {"num_frames": 1} if kind == "AutoencoderKLTemporalDecoder" else {}
        torch.manual_seed(0)  # of decoders that draw
        decoded = model.decode(z, **known)
        torch.manual_seed(0)
        torch.testing.assert_close(adapted.decode(z.flatten(1)), getattr(decoded, "sample", decoded).flatten(1))
    assert adapted.latent_shape == expected
    if kind == "AutoencoderKLWan":
        assert adapted.latent_scaling == ((0.5,) * 4, (0.5,) * 4)


CELLS = 120


def cells_of_all_kinds():
    """Counts of genes, open peaks, counts of proteins, and batches."""
    rng = np.random.default_rng(0)
    shift = rng.normal(size=(CELLS, 1))
    genes = rng.poisson(np.exp(0.5 + 0.4 * shift * rng.normal(size=20))).astype("float32")
    peaks = (rng.random((CELLS, 30)) < 1 / (1 + np.exp(1 - shift))).astype("float32")
    proteins = rng.poisson(np.exp(1.5 + 0.3 * shift * rng.normal(size=5))).astype("float32")
    return genes, peaks, proteins, rng.choice(["a", "b"], CELLS)


def trained_multimodal(kind):
    scvi, anndata = pytest.importorskip("scvi"), pytest.importorskip("anndata")
    genes, peaks, proteins, batch = cells_of_all_kinds()
    scvi.settings.seed = 0
    if kind == "TOTALVI":
        data = anndata.AnnData(genes, obs={"batch": batch}, obsm={"proteins": proteins})
        scvi.model.TOTALVI.setup_anndata(data, protein_expression_obsm_key="proteins", batch_key="batch")
        model = scvi.model.TOTALVI(data, n_latent=3)
    elif kind == "PEAKVI":
        data = anndata.AnnData(peaks, obs={"batch": batch})
        scvi.model.PEAKVI.setup_anndata(data, batch_key="batch")
        model = scvi.model.PEAKVI(data, n_latent=3)
    else:
        mudata = pytest.importorskip("mudata")
        data = mudata.MuData({"rna": anndata.AnnData(genes), "atac": anndata.AnnData(peaks)})
        data.obs["batch"] = batch
        layers = {"rna_layer": "rna", "atac_layer": "atac"}
        scvi.model.MULTIVI.setup_mudata(data, batch_key="batch", modalities=layers)
        model = scvi.model.MULTIVI(data, n_genes=20, n_regions=30, n_latent=3)
    model.train(max_epochs=3, accelerator="cpu", enable_progress_bar=False)
    return model, data


@pytest.mark.parametrize(
    ("kind", "width", "with_elbo"), [("TOTALVI", 25, False), ("PEAKVI", 30, True), ("MULTIVI", 50, True)]
)
def test_multimodal_models_of_scvi(kind, width, with_elbo):
    """Posteriors are those of scvi-tools; a likelihood with latents besides z is left out, and said so."""
    logging.disable(logging.WARNING)
    model, data = trained_multimodal(kind)
    logging.disable(logging.NOTSET)
    training = model.module.training
    adapted = vs.adapters.from_scvi(model)
    assert model.module.training == training
    found = vs.diagnose(adapted, data, progress=None, budget=3.0)
    np.testing.assert_allclose(
        found.sample.mean.numpy(), model.get_latent_representation()[found.sample.rows], atol=1e-4
    )
    assert found.sample.x.shape[1] == width
    assert (found.evidence.elbo is not None) == with_elbo == ("ELBO" not in found.skipped)
    counts, batches = adapted.read_samples(data)
    with torch.no_grad():
        z = adapted.encode(counts, batches)[0]
        decoded = adapted.decode_given(z, batches)
    assert decoded.shape == (CELLS, width)
    genes, rest = (decoded[:, :20], decoded[:, 20:]) if kind != "PEAKVI" else (None, decoded)
    if genes is not None:  # shares, at the median library size
        depth = float(counts[:, :20].sum(1).median()) * torch.ones(CELLS)
        torch.testing.assert_close(genes.sum(1), depth, rtol=1e-4, atol=0)
    assert rest.min() >= 0
    assert kind == "TOTALVI" or rest.max() <= 1  # probabilities of open peaks, or counts of proteins
    with pytest.raises(vs.InputError, match="certify cannot simulate x"):
        vs.certify(adapted, data, progress=None)


def test_the_likelihood_of_peaks_is_the_one_of_torch():
    logging.disable(logging.WARNING)
    model, data = trained_multimodal("PEAKVI")
    logging.disable(logging.NOTSET)
    adapted = vs.adapters.from_scvi(model)
    counts, batches = adapted.read_samples(data)
    with torch.no_grad():
        z = adapted.encode(counts, batches)[0]
        depth = model.module.d_encoder(counts, batches.long())
        p = adapted.decode_given(z, batches) * depth * model.module.region_factors.sigmoid()
        expected = torch.distributions.Bernoulli(p).log_prob(counts).sum(1)
        torch.testing.assert_close(adapted.log_likelihood(counts, z, batches), expected, rtol=1e-4, atol=1e-3)
