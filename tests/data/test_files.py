"""Readers: what was written comes back, in parts and in any order; what is broken is refused whole."""

import pickle
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vaescope as vs
from vaescope.data.files import load, official, open_source
from vaescope.data.files.official import load_official, open_official

ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
PIXELS = np.random.default_rng(1).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
LABELS = np.random.default_rng(2).integers(0, 4, (50, 2)).astype(float)


class Evil:
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
def test_what_was_written_comes_back(kind, tmp_path):
    path = write(tmp_path / f"data{kind}", ROWS)
    data = load(path, factors="a,b" if kind == ".parquet" else None)
    np.testing.assert_array_equal(data.x.numpy(), ROWS)
    if kind in (".npz", ".pt", ".h5", ".parquet"):
        np.testing.assert_array_equal(data.factors.numpy(), LABELS)
        assert len(data.names) == 2
    else:
        assert data.factors is None


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_the_whole_and_rows_come_in_their_order(kind, tmp_path):
    source = open_source(write(tmp_path / f"data{kind}", ROWS), besides="a,b")
    np.testing.assert_array_equal(np.concatenate(list(source.stream(7))), ROWS)
    places = np.array([40, 3, 3, 49, 0])
    np.testing.assert_array_equal(source.rows(places), ROWS[places])
    with pytest.raises(vs.InputError, match="rows 0 to 49"):
        source.rows(np.array([50]))


def test_some_rows_at_random_with_their_factors(tmp_path):
    path = write(tmp_path / "data.npz", ROWS)
    some, again = load(path, rows=10, seed=3), load(path, rows=10, seed=3)
    assert torch.equal(some.x, again.x)
    for row, factors in zip(some.x.numpy(), some.factors.numpy(), strict=True):
        place = int(np.flatnonzero((row == ROWS).all(1))[0])
        np.testing.assert_array_equal(factors, LABELS[place])


def test_a_sparse_matrix_of_cells(tmp_path):
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
    assert data.image == ((3 if 3 in shape else 1), 8, 8)
    assert data.x.shape == (12, data.image[0] * 64)
    assert 0 <= data.x.min() <= data.x.max() <= 1


def folder(path, images=PIXELS):
    path.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / f"{number:03}.png")
    return path


def test_a_folder_of_images(tmp_path):
    data = load(folder(tmp_path / "pictures"))
    assert data.image == (3, 8, 8)
    expected = np.moveaxis(PIXELS, -1, 1).reshape(12, -1) / 255
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-6)


# what is broken -------------------------------------------------------------------------------


def bad_cases(tmp_path):
    def path(name, content=b""):
        file = tmp_path / name
        file.write_bytes(content)
        return file

    whole = write(tmp_path / "whole.npz", np.tile(ROWS, (200, 1))).read_bytes()
    np.savez(tmp_path / "pickled.npz", x=np.array([Evil()], dtype=object))
    np.save(tmp_path / "pickled.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    torch.save(Evil(), tmp_path / "evil.pt")
    np.save(tmp_path / "range.npy", 3 * np.random.default_rng(0).normal(size=(5, 4, 4)))
    np.save(tmp_path / "nan.npy", np.full((5, 4), np.nan))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "line.npy", np.zeros(7))
    np.savez(tmp_path / "two.npz", one=ROWS, other=ROWS)
    folder(tmp_path / "broken")
    (tmp_path / "broken" / "005.png").write_bytes(b"no image")
    folder(tmp_path / "sizes")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "sizes" / "003.png")
    (tmp_path / "nothing").mkdir()
    return [
        (tmp_path / "absent.npy", "does not exist"),
        (path("empty.npy"), "empty.npy is empty"),
        (path("cut.npz", whole[: len(whole) // 2]), "no archive that can be read"),
        (path("noise.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"x" * 99), "no array that can be read"),
        (path("noise.npz", b"nothing of the kind"), "no archive that can be read"),
        (path("noise.h5", b"nothing of the kind"), "no HDF5 file"),
        (path("noise.pt", b"nothing of the kind"), "read safely"),
        (path("noise.parquet", b"nothing of the kind"), "no Parquet file"),
        (path("pickle.pt", pickle.dumps(Evil())), "read safely"),
        (path("table.xlsx", b"x"), "use .npy, .npz"),
        (tmp_path / "pickled.npz", "pickle, which could run code"),
        (tmp_path / "pickled.npy", "no array that can be read"),
        (tmp_path / "evil.pt", "read safely"),
        (tmp_path / "range.npy", r"values in \[0, 1\]"),
        (tmp_path / "nan.npy", "must be finite"),
        (tmp_path / "text.npy", "must hold numbers"),
        (tmp_path / "line.npy", "a row per sample"),
        (tmp_path / "two.npz", "holds one, other; say which"),
        (tmp_path / "broken", "005.png is no image"),
        (tmp_path / "sizes", "000.png is 8 x 8 x 3, 003.png is 4 x 4 x 3"),
        (tmp_path / "nothing", "has no images"),
    ]


def test_broken_files_meet_one_line_each(tmp_path):
    for path, message in bad_cases(tmp_path):
        with pytest.raises(vs.InputError, match=message) as error:
            load(path)
        assert "\n" not in str(error.value)


def test_a_file_damaged_inside_is_noticed_while_it_is_read(tmp_path):
    path = write(tmp_path / "data.npz", np.random.default_rng(0).normal(size=(9000, 3)))
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("x.npy").header_offset + 2000
    content = bytearray(path.read_bytes())
    content[place : place + 50] = b"\x00" * 50
    path.write_bytes(bytes(content))
    with pytest.raises(vs.InputError, match=r"damaged|truncated|cannot be read"):
        load(path)


def test_what_does_not_fit_is_said(tmp_path, monkeypatch):
    path = write(tmp_path / "data.npy", ROWS)
    monkeypatch.setattr("vaescope.data.files.dataset.MEMORY", 100)
    with pytest.raises(vs.InputError, match="take some of its 50 rows with rows=N"):
        load(path)
    assert len(load(path, rows=8)) == 8
    with pytest.raises(vs.InputError, match="at least 1"):
        load(path, rows=0)
    with pytest.raises(vs.InputError, match="no array 'y'"):
        load(write(tmp_path / "data.npz", ROWS), array="y")
    np.savez(tmp_path / "odd.npz", x=ROWS, factors=LABELS[:20])
    with pytest.raises(vs.InputError, match="row for each of 50 samples"):
        load(tmp_path / "odd.npz", rows=8)


# official files, small ones of the same layout ------------------------------------------------


def small(name):
    """The official layout with fewer values per factor, and no published checksum."""
    spec = official.OFFICIAL[name]
    sizes = tuple(min(2, s) for s in spec.sizes)
    return replace(spec, sizes=sizes, files=((spec.files[0][0], None),))


def write_official(spec, tmp_path):
    path = tmp_path / spec.files[0][0]
    images = np.random.default_rng(0).integers(0, 2 if spec.name == "dsprites" else 256, spec.shape).astype(np.uint8)
    if path.suffix == ".npz":
        extra = {"metadata": np.array([Evil()], dtype=object), "latents_values": np.zeros((spec.count, 5))}
        np.savez_compressed(path, **{spec.array: images}, **(extra if spec.name == "dsprites" else {}))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file[spec.array] = images
    else:
        torch.save(torch.from_numpy(images), path)
    return path, images.reshape(spec.count, *spec.pixels)


@pytest.mark.parametrize("name", official.OFFICIAL)
def test_official_layouts_are_read(name, tmp_path):
    spec = small(name)
    path, images = write_official(spec, tmp_path)
    source = open_official(spec, path)
    np.testing.assert_array_equal(np.concatenate(list(source.stream(5))), images)
    data = load_official(spec, path, rows=6, seed=1)
    assert data.image == ((3, 64, 64) if 3 in spec.pixels else (1, 64, 64))
    assert data.names == spec.names
    places = (data.factors * torch.tensor([int(np.prod(spec.sizes[k + 1 :])) for k in range(len(spec.sizes))])).sum(1)
    scale = 1 if name == "dsprites" else 255
    for row, place in zip(data.x, places.long(), strict=True):
        shown = row.reshape(data.image).permute(1, 2, 0).numpy().reshape(images[place].shape)
        np.testing.assert_allclose(shown, images[place] / scale, atol=1e-6)


@pytest.mark.parametrize("name", official.OFFICIAL)
def test_other_layouts_and_files_are_refused(name, tmp_path):
    spec = small(name)
    path, _ = write_official(spec, tmp_path)
    with pytest.raises(vs.InputError, match=f"not laid out as {name}"):
        open_official(official.OFFICIAL[name], path)
    wrong = replace(spec, files=((path.name, "0" * 32),))
    with pytest.raises(vs.InputError, match=r"not the official file .* fetch it again"):
        open_official(wrong, path)
    assert len(open_official(wrong, path, checksum=False)) == spec.count
    with pytest.raises(vs.InputError, match=r"does not exist; .* comes as"):
        open_official(spec, tmp_path / "absent")


def test_only_what_is_asked_for_is_in_memory(tmp_path):
    """Rows are taken from a compressed archive in passing: the whole array is never held."""
    import tracemalloc

    path = tmp_path / "large.npz"
    np.savez_compressed(path, x=np.zeros((4000, 4096), np.float32))  # 64 MB
    source = open_source(path)
    tracemalloc.start()
    total = sum(float(part.sum()) for part in source.stream(100))
    rows = source.rows(np.arange(0, 4000, 500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 0
    assert rows.shape == (8, 4096)
    assert peak < 140e6  # a part (64 MB) and its copy, whatever the file's size
