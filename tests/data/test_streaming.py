"""Training on files that stay on disk."""

import h5py
import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.data.catalogue import training_data_from
from vaescope.data.files import loading, streaming
from vaescope.data.files.loading import load_for_training, open_array
from vaescope.data.files.streaming import StoredDataset, open_stored
from vaescope.models import VAE
from vaescope.runs.store import CheckpointFile
from vaescope.training import MemberSpec, NoProgress, TrainSettings, checkpoint, train

ROWS = 500


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    """Several windows of several blocks, also for small files."""
    monkeypatch.setattr(streaming, "WINDOW_BYTES", 3000)
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 400)


def images(binary=False):
    """The first pixels of every image are its number."""
    values = np.random.default_rng(0).integers(0, 2 if binary else 256, (ROWS, 4, 4, 1), dtype=np.uint8)
    if not binary:
        values[:, 0, 0, 0], values[:, 0, 1, 0] = np.arange(ROWS) % 256, np.arange(ROWS) // 256
    return values


def numbers(rows):
    """The numbers of images, from their rows of bytes."""
    return (rows[..., 0].int() + 256 * rows[..., 1].int()).flatten().tolist()


def write_npy(path, values):
    np.save(path.with_suffix(".npy"), values)
    return path.with_suffix(".npy")


def write_npz(path, values):
    np.savez(path.with_suffix(".npz"), x=values)
    return path.with_suffix(".npz")


def write_hdf5(path, values):
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file.create_dataset("images", data=values, chunks=(7, *values.shape[1:]))
    return path.with_suffix(".h5")


@pytest.mark.parametrize("write", [write_npy, write_npz, write_hdf5])
def test_an_epoch_visits_every_row_once_but_those_held_out(write, tmp_path):
    stored = open_stored(open_array(write(tmp_path / "x", images())))
    rows, validation = stored.split_rows(0.2)
    generator = torch.Generator().manual_seed(0)
    epochs = [numbers(torch.cat(list(rows.windows(generator)), dim=1)) for _ in range(2)]
    held_out = numbers((validation.data * 1.0).to(torch.uint8))
    assert len(held_out) == 100
    assert rows.shape == (1, 400, 16)
    for epoch in epochs:
        assert sorted(epoch + held_out) == list(range(ROWS))
    assert epochs[0] != epochs[1]
    again = numbers(torch.cat(list(rows.windows(torch.Generator().manual_seed(0))), dim=1))
    assert again == epochs[0]


def test_windows_are_mixed_from_all_over_the_file(tmp_path):
    rows, _ = open_stored(open_array(write_npy(tmp_path / "x", images()))).split_rows(0.1)
    first = numbers(next(iter(rows.windows(torch.Generator().manual_seed(0)))))
    assert max(first) - min(first) > ROWS / 2


def test_bytes_become_numbers_between_0_and_1(tmp_path):
    stored = open_stored(open_array(write_npy(tmp_path / "x", images())))
    in_memory = vs.data.load(tmp_path / "x.npy")
    assert stored.image_shape == in_memory.image_shape == (1, 4, 4)
    rows, _ = stored.split_rows(0.1)
    found = rows.to_float(torch.from_numpy(images()).flatten(1))
    assert torch.allclose(found, in_memory.x)
    binary = open_stored(open_array(write_npy(tmp_path / "binary", images(binary=True))))
    assert binary.byte_scale == 1.0


def test_files_above_the_limit_stay_on_disk_and_others_are_loaded(tmp_path, monkeypatch):
    path = write_npy(tmp_path / "x", images())
    assert not isinstance(load_for_training(path), StoredDataset)
    monkeypatch.setattr(loading, "STREAMED_BYTES", 100)
    assert isinstance(load_for_training(path), StoredDataset)
    assert isinstance(training_data_from(str(path)), StoredDataset)
    assert not isinstance(load_for_training(path, rows=50), StoredDataset)


def test_images_that_are_not_all_binary_are_refused(tmp_path):
    values = images(binary=True)
    values[3] = 200
    stored = open_stored(open_array(write_npy(tmp_path / "x", values)))
    rows, _ = StoredDataset(stored.name, stored.array, stored.image_shape, byte_scale=1.0).split_rows(0.1)
    with pytest.raises(vs.InputError, match="store all images as 0 and 1, or all as 0 to 255"):
        list(rows.windows(torch.Generator()))


class Interrupt(NoProgress):
    def epoch(self, done, **state):
        if done == 2:
            raise KeyboardInterrupt


def test_streamed_training_resumes_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_SHARE", np.inf)
    rows, validation = open_stored(open_array(write_npy(tmp_path / "x", images()))).split_rows(0.2)
    settings = TrainSettings(epochs=4, batch_size=20, compile="never")
    model, specs = VAE.mlp(16, 2, hidden=(8,)), [MemberSpec(0), MemberSpec(1)]

    def run(name, progress):
        store = CheckpointFile(tmp_path / name, interval_seconds=0.0)
        return train(model, rows, validation, specs, settings, progress=progress, checkpoints=store)

    whole = run("whole", NoProgress())
    with pytest.raises(KeyboardInterrupt):
        run("state", Interrupt())
    resumed = run("state", NoProgress())
    for a, b in zip(whole, resumed, strict=True):
        assert a.history == b.history
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)


def test_fit_streams_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "STREAMED_BYTES", 100)
    path = write_npy(tmp_path / "x", images())
    member = vs.fit(path, latent_dim=2, network="mlp", hidden=(8,), epochs=2, precision=1.0, compile="never").best
    assert np.isfinite(member.history["elbo"]).all()
    with pytest.raises(vs.InputError, match="too large for an iVAE"):
        vs.fit(path, latent_dim=2, model="ivae", auxiliary=np.zeros((ROWS, 1)), epochs=1)
