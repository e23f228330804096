"""File readers: exact round trips, in batches and by index; one-line errors for damaged and malicious files."""

import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vaescope as vs
from vaescope.data.catalogue import open_for_training
from vaescope.data.files import load, official, open_array
from vaescope.data.files.official import load_official, open_official
from vaescope.data.files.streaming import open_stored

ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
PIXELS = np.random.default_rng(1).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
LABELS = np.random.default_rng(2).integers(0, 4, (50, 2)).astype(float)


class Payload:
    """Would exit the interpreter if it were unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


def write(path, rows):
    kind = path.suffix
    if kind == ".npy":
        np.save(path, rows)
    elif kind == ".npz":
        np.savez_compressed(path, x=rows, factors=LABELS)
    elif kind == ".pt":
        torch.save({"x": torch.from_numpy(rows), "factors": torch.from_numpy(LABELS)}, path)
    elif kind == ".h5":
        with h5py.File(path, "w") as file:
            file["x"], file["factors"] = rows, LABELS
    elif kind == ".h5ad":
        with h5py.File(path, "w") as file:
            file["X"] = rows
    elif kind == ".parquet":
        columns = {f"gene {k}": rows[:, k] for k in range(3)} | {"a": LABELS[:, 0], "b": LABELS[:, 1]}
        pq.write_table(pa.table(columns | {"name": ["cell"] * len(rows)}), path)
    return path


KINDS = [".npy", ".npz", ".pt", ".h5", ".h5ad", ".parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind, tmp_path):
    path = write(tmp_path / f"data{kind}", ROWS)
    data = load(path, factors="a,b" if kind == ".parquet" else None)
    np.testing.assert_array_equal(data.x.numpy(), ROWS)
    if kind in (".npz", ".pt", ".h5", ".parquet"):
        np.testing.assert_array_equal(data.factors.numpy(), LABELS)
        assert len(data.factor_names) == 2
    else:
        assert data.factors is None


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_rows_by_index(kind, tmp_path):
    stored = open_array(write(tmp_path / f"data{kind}", ROWS), without="a,b")
    np.testing.assert_array_equal(np.concatenate(list(stored.stream(7))), ROWS)
    indices = np.array([40, 3, 3, 49, 0])
    np.testing.assert_array_equal(stored.rows(indices), ROWS[indices])
    with pytest.raises(vs.InputError, match="rows 0 to 49"):
        stored.rows(np.array([50]))


def test_random_rows_keep_their_factors(tmp_path):
    path = write(tmp_path / "data.npz", ROWS)
    some, again = load(path, rows=10, seed=3), load(path, rows=10, seed=3)
    assert torch.equal(some.x, again.x)
    for row, factors in zip(some.x.numpy(), some.factors.numpy(), strict=True):
        index = int(np.flatnonzero((row == ROWS).all(1))[0])
        np.testing.assert_array_equal(factors, LABELS[index])


def test_sparse_anndata(tmp_path):
    dense = ROWS * (ROWS > 0.5)
    rows, columns = dense.nonzero()
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", dense.shape
        group["data"], group["indices"] = dense[rows, columns], columns
        group["indptr"] = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
    np.testing.assert_array_equal(load(tmp_path / "cells.h5ad").x.numpy(), dense)


@pytest.mark.parametrize("shape", [(12, 8, 8), (12, 8, 8, 3), (12, 3, 8, 8), (12, 8, 8, 1)])
def test_images_of_any_layout(shape, tmp_path):
    values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.save(tmp_path / "images.npy", values)
    data = load(tmp_path / "images.npy")
    assert data.image_shape == ((3 if 3 in shape else 1), 8, 8)
    assert data.x.shape == (12, data.image_shape[0] * 64)
    assert 0 <= data.x.min() <= data.x.max() <= 1


def folder(path, images=PIXELS):
    path.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / f"{number:03}.png")
    return path


def test_a_folder_of_images(tmp_path):
    data = load(folder(tmp_path / "pictures"))
    assert data.image_shape == (3, 8, 8)
    expected = np.moveaxis(PIXELS, -1, 1).reshape(12, -1) / 255
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-6)


# damaged files --------------------------------------------------------------------------------


def bad_cases(tmp_path):
    def path(name, content=b""):
        file = tmp_path / name
        file.write_bytes(content)
        return file

    complete = write(tmp_path / "complete.npz", np.tile(ROWS, (200, 1))).read_bytes()
    np.savez(tmp_path / "pickled.npz", x=np.array([Payload()], dtype=object))
    np.save(tmp_path / "pickled.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    torch.save(Payload(), tmp_path / "evil.pt")
    np.save(tmp_path / "range.npy", 3 * np.random.default_rng(0).normal(size=(5, 4, 4)))
    np.save(tmp_path / "nan.npy", np.full((5, 4), np.nan))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "line.npy", np.zeros(7))
    np.savez(tmp_path / "two.npz", one=ROWS, other=ROWS)
    folder(tmp_path / "broken")
    (tmp_path / "broken" / "005.png").write_bytes(b"other content")
    folder(tmp_path / "sizes")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "sizes" / "003.png")
    (tmp_path / "nothing").mkdir()
    return [
        (tmp_path / "absent.npy", "does not exist"),
        (path("empty.npy"), "empty.npy is empty"),
        (path("cut.npz", complete[: len(complete) // 2]), "cannot be read as an .npz archive"),
        (path("noise.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"x" * 99), "cannot be read as an .npy array"),
        (path("noise.npz", b"some other content"), "cannot be read as an .npz archive"),
        (path("noise.h5", b"some other content"), "cannot be read as an HDF5 file"),
        (path("noise.pt", b"some other content"), "cannot be read as tensors without running code"),
        (path("noise.parquet", b"some other content"), "cannot be read as a Parquet table"),
        (path("pickle.pt", pickle.dumps(Payload())), "cannot be read as tensors without running code"),
        (path("table.xlsx", b"x"), "use .npy, .npz"),
        (tmp_path / "pickled.npz", "pickle, which could run code"),
        (tmp_path / "pickled.npy", "cannot be read as an .npy array"),
        (tmp_path / "evil.pt", "cannot be read as tensors without running code"),
        (tmp_path / "range.npy", r"values in \[0, 1\]"),
        (tmp_path / "nan.npy", "must be finite"),
        (tmp_path / "text.npy", "x in text.npy must be an array of numbers"),
        (tmp_path / "line.npy", "a row per sample"),
        (tmp_path / "two.npz", "has the arrays one, other; specify the observations"),
        (tmp_path / "broken", "005.png cannot be read as an image"),
        (tmp_path / "sizes", "000.png is 8 x 8 x 3, 003.png is 4 x 4 x 3"),
        (tmp_path / "nothing", "has no images"),
    ]


def test_bad_files_are_rejected_in_one_line(tmp_path):
    for path, message in bad_cases(tmp_path):
        with pytest.raises(vs.InputError, match=message) as error:
            load(path)
        assert "\n" not in str(error.value)


def test_damage_inside_a_file_is_detected(tmp_path):
    path = write(tmp_path / "data.npz", np.random.default_rng(0).normal(size=(9000, 3)))
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("x.npy").header_offset + 2000
    content = bytearray(path.read_bytes())
    content[offset : offset + 50] = b"\x00" * 50
    path.write_bytes(bytes(content))
    with pytest.raises(vs.InputError, match=r"is damaged|is truncated"):
        load(path)


def test_size_and_array_names_are_checked(tmp_path, monkeypatch):
    path = write(tmp_path / "data.npy", ROWS)
    monkeypatch.setattr("vaescope.data.files.loading.MEMORY_LIMIT", 100)
    with pytest.raises(vs.InputError, match="load some of its 50 rows with rows=N"):
        load(path)
    assert len(load(path, rows=8)) == 8
    with pytest.raises(vs.InputError, match="at least 1"):
        load(path, rows=0)
    with pytest.raises(vs.InputError, match="no array 'y'"):
        load(write(tmp_path / "data.npz", ROWS), array="y")
    np.savez(tmp_path / "odd.npz", x=ROWS, factors=LABELS[:20])
    with pytest.raises(vs.InputError, match="a row of factors for each of 50 samples"):
        load(tmp_path / "odd.npz", rows=8)


# official files, with fewer images of the same layout -----------------------------------------


def small(name):
    """The official layout with fewer values per factor, and no published checksum."""
    spec = official.OFFICIAL_FILES[name]
    sizes = tuple(min(2, s) for s in spec.sizes)
    return replace(spec, sizes=sizes, files=((spec.files[0][0], None),))


def write_official(spec, tmp_path):
    path = tmp_path / spec.files[0][0]
    images = np.random.default_rng(0).integers(0, 2 if spec.name == "dsprites" else 256, spec.shape).astype(np.uint8)
    if path.suffix == ".npz":
        extra = {"metadata": np.array([Payload()], dtype=object), "latents_values": np.zeros((spec.count, 5))}
        np.savez_compressed(path, **{spec.array: images}, **(extra if spec.name == "dsprites" else {}))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file[spec.array] = images
    else:
        torch.save(torch.from_numpy(images), path)
    return path, images.reshape(spec.count, *spec.pixels)


@pytest.mark.parametrize("name", official.OFFICIAL_FILES)
def test_official_files(name, tmp_path):
    spec = small(name)
    path, images = write_official(spec, tmp_path)
    stored = open_official(spec, path)
    np.testing.assert_array_equal(np.concatenate(list(stored.stream(5))), images)
    data = load_official(spec, path, rows=6, seed=1)
    assert data.image_shape == ((3, 64, 64) if 3 in spec.pixels else (1, 64, 64))
    assert data.factor_names == spec.factor_names
    indices = (data.factors * torch.tensor([int(np.prod(spec.sizes[k + 1 :])) for k in range(len(spec.sizes))])).sum(1)
    scale = 1 if name == "dsprites" else 255
    for row, index in zip(data.x, indices.long(), strict=True):
        image = row.reshape(data.image_shape).permute(1, 2, 0).numpy().reshape(images[index].shape)
        np.testing.assert_allclose(image, images[index] / scale, atol=1e-6)


@pytest.mark.parametrize("name", official.OFFICIAL_FILES)
def test_other_layouts_and_checksums_are_rejected(name, tmp_path):
    spec = small(name)
    path, _ = write_official(spec, tmp_path)
    with pytest.raises(vs.InputError, match=f"not have the layout of {name}"):
        open_official(official.OFFICIAL_FILES[name], path)
    wrong = replace(spec, files=((path.name, "0" * 32),))
    with pytest.raises(vs.InputError, match=r"not the official file .* download it again"):
        open_official(wrong, path)
    assert len(open_official(wrong, path, checksum=False)) == spec.count
    with pytest.raises(vs.InputError, match=r"does not exist; .* comes as"):
        open_official(spec, tmp_path / "absent")


def test_archives_are_read_in_batches(tmp_path):
    """A compressed archive is never decompressed as a whole."""
    import tracemalloc

    path = tmp_path / "large.npz"
    np.savez_compressed(path, x=np.zeros((4000, 4096), np.float32))  # 64 MB
    stored = open_array(path)
    tracemalloc.start()
    total = sum(float(batch.sum()) for batch in stored.stream(100))
    rows = stored.rows(np.arange(0, 4000, 500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 0
    assert rows.shape == (8, 4096)
    assert peak < 140e6  # a batch (64 MB) and its copy


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    """Arrays that are unpacked to be trained on: the space is checked first, and the copy has no name."""
    path, folder = tmp_path / "x.npz", tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    np.savez_compressed(path, x=np.arange(3000, dtype=np.float32).reshape(1000, 3))
    stored = open_stored(open_array(path))
    assert list(folder.iterdir()) == []
    np.testing.assert_array_equal(stored.array.rows(np.array([7, 3])), [[21, 22, 23], [9, 10, 11]])
    np.testing.assert_array_equal(stored.array.all_rows(), np.arange(3000).reshape(1000, 3))
    free = shutil.disk_usage(folder)._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(vs.InputError, match=r"to be unpacked, which has .* free; set TMPDIR"):
        open_stored(open_array(path))
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_while_an_array_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=np.ones((1000, 3)))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(vs.InputError, match="to be unpacked: no space left on device"):
        open_stored(open_array(tmp_path / "x.npz"))


def test_members_that_are_not_compressed_are_read_directly(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 3))
    np.savez(tmp_path / "x.npz", factors=np.zeros(50), x=x)
    stored = open_array(tmp_path / "x.npz")
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    assert open_stored(stored).array is stored
    np.testing.assert_array_equal(stored.read_slice(7, 20), x[7:20])


def test_arrays_that_declare_more_than_the_file_holds(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (10**12, 3), "f4", chunks=(1000, 3))
    torch.save(torch.zeros(1, 3).expand(10**12, 3), tmp_path / "x.pt")
    for file in ("x.h5", "x.pt"):
        for rows in (None, 10):
            with pytest.raises(vs.InputError, match="declares 12000 GB, but the file has"):
                open_for_training(str(tmp_path / file), rows=rows)
    with pytest.raises(vs.InputError, match="repeats a few numbers to 12000 GB"):
        vs.data.dataset_from(torch.zeros(1, 3).expand(10**12, 3))


def test_arrays_whose_numbers_are_in_another_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = ROWS
    layout = h5py.VirtualLayout(shape=(10**9, 3), dtype="f4")
    layout[:50] = h5py.VirtualSource(str(tmp_path / "a.h5"), "x", shape=ROWS.shape)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    np.testing.assert_array_equal(open_array(tmp_path / "b.h5").rows(np.arange(50)), ROWS)


def test_parquet_of_pandas_has_its_row_labels_left_out_and_its_booleans_read(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [0.5, 1.5], "yes": [True, False]}, index=[17, 3])
    for name in (None, "id"):
        frame.rename_axis(name).to_parquet(tmp_path / "x.parquet")
        loaded = load(tmp_path / "x.parquet")
        assert loaded.x.tolist() == [[0.5, 1.0], [1.5, 0.0]]
        assert loaded.what_was_read.endswith(f"left out: {name or '__index_level_0__'} (row labels)")


def test_parquet_with_columns_of_one_name(tmp_path):
    table = pa.table([[1.0, 2.0], [3.0, 4.0]], names=["a", "a"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(vs.InputError, match=r"x.parquet has 2 columns 'a'; rename them"):
        load(tmp_path / "x.parquet")


@pytest.mark.parametrize("shape", [(-5, 3), (5, -3), (10**9, 3), (5,)])
def test_sparse_matrices_of_another_shape(tmp_path, shape):
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", shape
        group["data"], group["indices"], group["indptr"] = np.ones(2), np.array([0, 1]), np.array([0, 1, 1, 1, 1, 2])
    with pytest.raises(vs.InputError, match="declares the shape"):
        load(tmp_path / "x.h5ad")


def test_names_of_arrays_that_a_file_does_not_have(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 3)))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    for file in ("x.npy", "x.csv"):
        with pytest.raises(vs.InputError, match=f"{file} holds one array without a name, so it has no array 'nope'"):
            load(tmp_path / file, array="nope")
    with pytest.raises(vs.InputError, match=r"sprites is a known data set .* remove array=nope"):
        open_for_training("sprites", array="nope")


def test_factors_must_be_finite(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 3)), factors=np.full((5, 1), np.nan))
    with pytest.raises(vs.InputError, match=r"factors .*finite, got NaN or infinity in 5 of 5 rows"):
        open_for_training(str(tmp_path / "x.npz"))
