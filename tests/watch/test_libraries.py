"""A watch inside the training loops of other libraries, and its rows read back from trackers."""

import math
import time

import pytest
import torch

import vaescope as vs
from tests.zoo.networks import ExampleVAE

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 12


def _data() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(96, 2) @ torch.randn(2, 6) + 0.1 * torch.randn(96, 6)


def _network() -> ExampleVAE:
    torch.manual_seed(0)
    return ExampleVAE(6, 2, hidden=16, kind="mse", variance=0.5)


def _watch(network, **options) -> vs.Watch:
    def encode(x):
        mean, log_variance = network.encode(x)
        return mean, log_variance.exp()

    model = vs.adapters.from_callables(encode=encode, decode=network.decode, latent_dim=2, precision=2.0)
    return vs.Watch(model, _data(), parameters=network, show=False, **options)


def _trained(loggers) -> vs.Watch:
    network = _network()
    watch = _watch(network, every=4, loggers=loggers)
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for step in range(STEPS):
        loss = network.loss(_data()) / 96
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        watch.update(step, loss=loss.detach())
    watch.close()
    return watch


def test_lightning_updates_the_watch_and_logs_its_rows(tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.vae = _network()

        def training_step(self, batch, _):
            return self.vae.loss(batch[0]) / len(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    module = Module()
    watch = _watch(module.vae, every=3)
    logger = CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[vs.adapters.lightning_callback(watch)],
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(_data()), batch_size=24)
    trainer.fit(module, loader)
    assert [row.step for row in watch.rows] == [0, 3, 6, 9, 12]
    assert watch.rows[-1].weights.gradient_norm > 0
    assert math.isfinite(watch.rows[-1].loss)
    first, last = watch.rows[0].bound, watch.rows[-1].bound
    assert last.log_likelihood > first.log_likelihood
    assert "watch/elbo" in (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_pythae_updates_the_watch(tmp_path):
    pytest.importorskip("pythae")
    from pythae.data.datasets import BaseDataset
    from pythae.models import VAE, VAEConfig
    from pythae.trainers import BaseTrainer, BaseTrainerConfig

    x = _data()
    torch.manual_seed(0)
    model = VAE(VAEConfig(input_dim=(6,), latent_dim=2))
    watch = vs.Watch(vs.adapters.from_pythae(model), x, every=2, show=False)
    config = BaseTrainerConfig(
        output_dir=str(tmp_path), num_epochs=3, per_device_train_batch_size=32, no_cuda=True, learning_rate=1e-2
    )
    data = BaseDataset(x, torch.zeros(len(x)))
    BaseTrainer(model, data, training_config=config, callbacks=[vs.adapters.pythae_callback(watch)]).train()
    assert [row.step for row in watch.rows] == [0, 2, 4, 6, 8]
    first, last = watch.rows[0].bound, watch.rows[-1].bound
    assert last.log_likelihood > first.log_likelihood


def test_transformers_updates_the_watch(tmp_path):
    """With gradients: the callback comes before the trainer sets them to zero."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    class WithLoss(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            return {"loss": self.network.loss(x) / len(x)}

    network = _network()
    watch = _watch(network, every=2)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=32,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
    )
    rows = [{"x": row} for row in _data()]
    callback = vs.adapters.transformers_callback(watch)
    transformers.Trainer(WithLoss(network), arguments, train_dataset=rows, callbacks=[callback]).train()
    assert [row.step for row in watch.rows] == [0, 2, 4, 6, 8]
    assert watch.rows[-1].weights.gradient_norm > 0
    assert watch.rows[-1].elbo > watch.rows[0].elbo


def test_tensorboard_reads_the_rows(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = _trained([vs.jobs.tracking.live(f"tensorboard:{tmp_path}", "mine")])
    events = EventAccumulator(str(tmp_path / "mine"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("watch/elbo")]
    assert found == [(row.step, pytest.approx(row.elbo, rel=1e-5)) for row in watch.rows]


def test_mlflow_has_the_rows_while_the_run_is_open(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/mlflow.db"
    watch = _trained([vs.jobs.tracking.live(address, "mine")])
    client = mlflow.MlflowClient(address)
    (run,) = client.search_runs([client.get_experiment_by_name("vaescope/watch").experiment_id])
    assert run.info.status == "RUNNING"
    history = client.get_metric_history(run.info.run_id, "watch/elbo")
    assert sorted((m.step, m.value) for m in history) == [(row.step, pytest.approx(row.elbo)) for row in watch.rows]


def test_members_of_a_fit_are_live_in_mlflow_and_completed_by_the_export(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from vaescope.jobs.tracking import export_run, live_members

    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/mlflow.db"
    observer = vs.watch.WatchedMembers(live_members(address, "fit", tmp_path / "run"))
    from vaescope.training import NoProgress

    options = {"precision": 2.0, "epochs": 3, "compile": "never", "progress": NoProgress(), "observer": observer}
    vs.fit(_data(), latent_dim=2, out=tmp_path / "run", **options)
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("vaescope/fit").experiment_id
    (live,) = client.search_runs([experiment])
    assert live.info.status == "RUNNING"
    assert "watch/kl" in live.data.metrics
    assert export_run(tmp_path / "run", address) == 1
    runs = {run.info.run_id: run for run in client.search_runs([experiment])}
    assert len(runs) == 2  # the member and its parent
    finished = runs[live.info.run_id]
    assert finished.info.status == "FINISHED"
    assert {"watch/kl", "elbo"} <= set(finished.data.metrics)


def test_wandb_offline_writes_the_rows(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    _trained([vs.jobs.tracking.live("wandb:project", "mine")])
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for _ in range(100):  # its service writes the file on its own time
        if b"watch/elbo" in file.read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError("no rows in the file")


def test_keras_updates_the_watch_and_logs_the_last_row(monkeypatch):
    """With the PyTorch backend, where the layers of a Keras model are modules in training."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("Keras was imported with another backend")

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = keras.layers.Dense(4), keras.layers.Dense(6)

        def call(self, x):
            mean, log_variance = keras.ops.split(self.encoder(x), 2, axis=1)
            z = mean + keras.ops.exp(log_variance / 2) * keras.random.normal(keras.ops.shape(mean))
            kl = 0.5 * keras.ops.sum(mean**2 + keras.ops.exp(log_variance) - 1 - log_variance, axis=1)
            self.add_loss(keras.ops.mean(kl))
            return self.decoder(z)

    keras.utils.set_random_seed(0)
    network, x = Model(), _data()
    network(x)  # builds the layers
    model = vs.adapters.from_modules(
        network.encoder, network.decoder, latent_dim=2, scale="log_variance", precision=2.0
    )
    watch = vs.Watch(model, x, every=3, show=False)
    network.compile(optimizer=keras.optimizers.Adam(1e-2), loss=lambda x, y: keras.ops.sum((x - y) ** 2, axis=1))
    callback = vs.adapters.keras_callback(watch)
    history = network.fit(x.numpy(), x.numpy(), batch_size=24, epochs=3, verbose=0, callbacks=[callback])
    assert [row.step for row in watch.rows] == [0, 3, 6, 9, 12]
    assert watch.rows[-1].weights.gradient_norm > 0
    assert math.isfinite(watch.rows[-1].loss)
    assert watch.rows[-1].bound.log_likelihood > watch.rows[0].bound.log_likelihood
    assert history.history["watch/elbo"][-1] == watch.rows[-1].numbers()["elbo"]
