"""Rendered images: position, size, area and colour match the factors."""

import hashlib
import math

import pytest
import torch

import vaescope as vs
from vaescope import theory
from vaescope.data.catalogue import DATASETS, find_dataset, open_dataset, render_dataset
from vaescope.data.rendering import DSprites, Rendered3DFaces, RenderedMPI3D, Shapes3D, Sprites
from vaescope.data.rendering.images import SHAPES, Camera, coverage, hue_to_rgb, sprite_coordinates
from vaescope.distributions import Beta, Normal

RENDERERS = {"sprites": Sprites(size=32, shapes=("triangle", "heart"), rotating=True), "dsprites": DSprites(size=32)}
RENDERERS["3dshapes"] = Shapes3D(size=32)
RENDERERS["rendered-mpi3d"], RENDERERS["rendered-3dfaces"] = RenderedMPI3D(size=32), Rendered3DFaces(size=32)
AREAS = {
    "square": 2.0,
    "triangle": 3 * math.sqrt(3) / 4,
    "circle": math.pi,
    "ellipse": math.pi / 2,
    "heart": 0.92**2 * (1 + math.pi / 4),
}


def checksum(images):
    return hashlib.sha256((images * 15).round().byte().numpy().tobytes()).hexdigest()[:16]


# every renderer -------------------------------------------------------------------------------


@pytest.mark.parametrize("data", RENDERERS.values(), ids=RENDERERS)
def test_samples_are_reproducible_and_in_range(data):
    first, again, other = data.sample(70, seed=3), data.sample(70, seed=3), data.sample(70, seed=4)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.factors, other.factors)
    assert first.images.shape == (70, data.channels, 32, 32)
    assert 0 <= first.images.min() <= first.images.max() <= 1
    assert first.images.max() > 0.5
    for k, factor in enumerate(data.factors):
        assert factor.low <= first.factors[:, k].min() <= first.factors[:, k].max() <= factor.high


@pytest.mark.parametrize("data", RENDERERS.values(), ids=RENDERERS)
def test_an_image_does_not_depend_on_the_batch(data):
    indices = torch.tensor([0, 5, 77, len(data) - 1, 1234])
    together = data.images_at(indices)
    for i, index in enumerate(indices):
        torch.testing.assert_close(data.images_at(index[None]).images[0], together.images[i], atol=1e-6, rtol=0)


@pytest.mark.parametrize("data", RENDERERS.values(), ids=RENDERERS)
def test_the_stream_is_the_grid_in_order(data):
    batch = next(data.stream(50))
    assert torch.equal(batch.factors, data.values_at(torch.arange(50)))
    assert (batch.factors[1] != batch.factors[0]).nonzero().tolist() == [[len(data.factors) - 1]]  # the last fastest
    shuffled = next(data.stream(50, shuffle=True, seed=1))
    assert torch.equal(shuffled.factors, next(data.stream(50, shuffle=True, seed=1)).factors)
    assert not torch.equal(shuffled.factors, batch.factors)


@pytest.mark.parametrize("data", RENDERERS.values(), ids=RENDERERS)
def test_every_factor_changes_the_image(data):
    start = torch.tensor([[factor.values[len(factor.values) // 2] for factor in data.factors]], dtype=torch.float64)
    for k, factor in enumerate(data.factors):
        moved = start.clone()
        moved[0, k] = factor.values[0]
        assert (data.render(moved) - data.render(start)).abs().max() > 0.05, factor.name


def test_images_are_the_same_on_every_machine():
    indices = torch.arange(0, 480_000, 9_973)
    found = {
        "sprites": checksum(Sprites(size=32).sample(40, seed=0).images),
        "dsprites": checksum(DSprites().images_at(indices).images),
        "3dshapes": checksum(Shapes3D(size=32).images_at(indices).images),
        "rendered-mpi3d": checksum(RenderedMPI3D(size=32).images_at(indices).images),
        "rendered-3dfaces": checksum(Rendered3DFaces(size=32).images_at(indices // 4).images),
    }
    assert found == CHECKSUMS


CHECKSUMS = {"sprites": "de6660ae2a297452", "dsprites": "9420c239648b24da", "3dshapes": "18152956a987b5ed"}
CHECKSUMS |= {"rendered-mpi3d": "3a1f0d37c44b41e1", "rendered-3dfaces": "3c91649a43686995"}


# shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_areas_at_any_position_size_and_angle(name):
    generator = torch.Generator().manual_seed(0)
    x, y = (0.4 + 0.2 * torch.rand(20, dtype=torch.float64, generator=generator) for _ in range(2))
    radius = 0.1 + 0.25 * torch.rand(20, dtype=torch.float64, generator=generator)
    angle = 7 * torch.rand(20, dtype=torch.float64, generator=generator)
    inside = coverage(SHAPES[name](sprite_coordinates(128, x, y, radius, angle)), 128)
    area = inside.mean((1, 2)) / radius.square()
    torch.testing.assert_close(area, torch.full_like(area, AREAS[name]), rtol=0.02, atol=0)


@pytest.mark.parametrize("name", ["square", "circle", "ellipse", "triangle"])
def test_the_centre_of_mass_is_the_position(name):
    x = torch.tensor([0.3, 0.52, 0.7], dtype=torch.float64)
    y = torch.tensor([0.6, 0.31, 0.5], dtype=torch.float64)
    sprites = Sprites(size=64, shapes=(name,), x=(0.2, 0.8), y=(0.2, 0.8))
    images = sprites.render(torch.stack([x, y, torch.full_like(x, 0.15), torch.zeros_like(x)], 1), dtype=torch.float64)
    mass = images[:, 0]  # red
    grid = (torch.arange(64) + 0.5) / 64
    torch.testing.assert_close((mass.sum(1) * grid).sum(1) / mass.sum((1, 2)), x, atol=2e-3, rtol=0)
    torch.testing.assert_close((mass.sum(2) * grid).sum(1) / mass.sum((1, 2)), y, atol=2e-3, rtol=0)


def test_edges_are_smooth_and_dsprites_are_binary():
    sprites = Sprites().sample(20, seed=0).images
    assert ((sprites > 0.02) & (sprites < 0.98)).any()
    assert set(DSprites().sample(20, seed=0).images.unique().tolist()) == {0.0, 1.0}


def test_every_dsprite_is_inside_the_image():
    data = DSprites()
    corners = [(s, 1.0, o, x, y) for s in (1.0, 2.0, 3.0) for o in range(7) for x in (0.0, 1.0) for y in (0.0, 1.0)]
    images = data.render(torch.tensor(corners, dtype=torch.float64))
    assert images[..., 0, :].sum() + images[..., -1, :].sum() + images[..., 0].sum() + images[..., -1].sum() == 0


def test_hue_to_rgb():
    hues = torch.tensor([0.0, 1 / 6, 1 / 3, 0.5, 2 / 3, 5 / 6], dtype=torch.float64)
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    torch.testing.assert_close(hue_to_rgb(hues), torch.tensor(expected, dtype=torch.float64))


def test_colours_of_floor_wall_and_object():
    """Green floor below, blue wall above, a red object between."""
    values = torch.tensor([[1 / 3, 2 / 3, 0.0, 1.0, shape, 0.0] for shape in range(4)], dtype=torch.float64)
    images = Shapes3D().render(values)
    assert (images[:, :, -2, 3].argmax(1) == 1).all()
    assert (images[:, :, 2, 32].argmax(1) == 2).all()
    assert (images[:, :, 34, 32].argmax(1) == 0).all()
    small, large = (
        Shapes3D().render(values * torch.tensor([1, 1, 1, s, 1, 1.0]))[:, 0].gt(0.3).sum((1, 2)) for s in (0.75, 1.25)
    )
    assert (large > 1.5 * small).all()


# stand-ins for MPI3D and 3DFaces ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["mpi3d-simple", "3dfaces"])
def test_stand_ins_have_the_factors_of_the_originals(name):
    stand_in, official = find_dataset(f"rendered-{name.removesuffix('-simple')}"), find_dataset(name).official
    renderer = stand_in.renderer()
    assert (renderer.factor_names, renderer.shape) == (official.factor_names, official.sizes)
    assert stand_in.official is None
    data = render_dataset(stand_in, rows=200, size=16)
    for k, factor in enumerate(renderer.factors):
        assert set(data.factors[:, k].tolist()) <= set(factor.values)


@pytest.mark.parametrize("name", ["mpi3d", "mpi3d-simple", "3dfaces"])
def test_an_original_without_its_file_names_its_stand_in(name):
    with pytest.raises(vs.InputError, match="or use rendered-") as error:
        open_dataset(name)
    assert str(error.value).split("or use ")[1].split(",")[0] in {entry.name for entry in DATASETS}


def mpi3d(count, **factors):
    """Factors of a red cube, the same in every row but for these."""
    base = {"color": 2, "shape": 1, "size": 1.0, "camera_height": 1.5, "background_color": 1}
    base |= {"horizontal_axis": 0.0, "vertical_axis": 20.0} | factors
    columns = [torch.as_tensor(value, dtype=torch.float64).expand(count) for value in base.values()]
    return torch.stack(columns, 1)


@pytest.mark.parametrize("shape", [1, 2, 3, 5])
def test_the_object_is_where_the_arm_ends(shape):
    """The red pixels of bodies that are as high above their centre as below are centred on the projected tip."""
    data, turn = RenderedMPI3D(size=96), torch.linspace(-50, 50, 7)
    rise, height = torch.linspace(-10, 50, 7), torch.linspace(0.7, 2.3, 7)
    values = mpi3d(7, shape=shape, horizontal_axis=turn, vertical_axis=rise, camera_height=height)
    images = data.render(values, dtype=torch.float64)
    red = (images[:, 0] > 1.5 * images[:, 1]).double()
    grid = (torch.arange(96, dtype=torch.float64) + 0.5) / 96
    x, y, _ = Camera.at_height(values[:, 3]).project(data.tip(values))
    torch.testing.assert_close((red.sum(1) * grid).sum(1) / red.sum((1, 2)), x, atol=0.01, rtol=0)
    torch.testing.assert_close((red.sum(2) * grid).sum(1) / red.sum((1, 2)), y, atol=0.01, rtol=0)


def test_a_camera_looks_at_the_post_and_keeps_straight_lines():
    camera = Camera.at_height(torch.tensor([0.7, 2.3], dtype=torch.float64))
    x, y, _ = camera.project(torch.tensor([[0.0, 0.0, 0.62]], dtype=torch.float64).expand(2, 3))
    torch.testing.assert_close(torch.stack([x, y]), torch.full((2, 2), 0.5, dtype=torch.float64))
    left, middle, right = (
        torch.stack(camera.project(torch.tensor([[a, 0.3, 0.9]], dtype=torch.float64).expand(2, 3))[:2])
        for a in (-0.4, 0.0, 0.4)
    )
    torch.testing.assert_close(left + right, 2 * middle)


def test_objects_are_larger_for_larger_sizes_and_nearer_tips():
    data = RenderedMPI3D(size=64)
    images = data.render(torch.cat([mpi3d(2, size=torch.tensor([0.65, 1.0])), mpi3d(1, vertical_axis=55.0)]))
    small, large, far = (images[:, 0] > 1.5 * images[:, 1]).sum((1, 2)).tolist()
    assert large == pytest.approx(small / 0.65**2, rel=0.1)
    assert far < large


@pytest.mark.parametrize("index", range(6))
def test_colours_of_objects_are_as_named(index):
    """White, green, red, blue, brown and olive: the order of the channels of the brightest part."""
    image = RenderedMPI3D(size=64).render(mpi3d(1, color=index, shape=5))[0]
    x, y, _ = (float(v) for v in Camera.at_height(torch.tensor([1.5])).project(RenderedMPI3D().tip(mpi3d(1)).float()))
    r, g, b = image[:, int(64 * y), int(64 * x)].tolist()
    assert [r == pytest.approx(g, abs=0.02) == b, g > 2 * r, r > 2 * g, b > 1.5 * r, r > g > b, g >= r > b][index]


def face(count, **factors):
    base = {"identity": 7, "azimuth": 0.0, "elevation": 0.0, "lighting": 0.0} | factors
    columns = [torch.as_tensor(value, dtype=torch.float64).expand(count) for value in base.values()]
    return torch.stack(columns, 1)


def test_a_face_that_looks_and_is_lit_to_the_other_side_is_mirrored():
    data = Rendered3DFaces(size=48)
    azimuth, light = torch.linspace(-50, 50, 9), torch.linspace(70, -40, 9)
    elevation = torch.linspace(-25, 25, 9)
    here = data.render(face(9, azimuth=azimuth, lighting=light, elevation=elevation), dtype=torch.float64)
    there = data.render(face(9, azimuth=-azimuth, lighting=-light, elevation=elevation), dtype=torch.float64)
    torch.testing.assert_close(there, here.flip(3))


def test_light_from_the_right_makes_the_right_half_brighter():
    left, front, right = Rendered3DFaces(size=32).render(face(3, lighting=torch.tensor([-70.0, 0.0, 70.0])))[:, 0]
    assert right[:, 16:].sum() > 2 * right[:, :16].sum()
    assert left[:, :16].sum() > 2 * left[:, 16:].sum()
    assert front.sum() > right.sum()


def test_faces_turn_with_azimuth_and_elevation():
    """Eyes, brows and mouth are dark: their centre moves to the side to which, and up or down as, the head turns."""
    data, grid = Rendered3DFaces(size=64), (torch.arange(64) + 0.5) / 64
    middle = (grid[:, None] - 0.5).square() + (grid - 0.5).square() < 0.25**2  # the edges are dark too

    def dark(values):
        weight = ((data.render(values)[:, 0] < 0.4) & middle).float()
        return torch.stack([(weight.sum(k) * grid).sum(1) / weight.sum((1, 2)) for k in (1, 2)], 1)

    sideways = dark(face(3, azimuth=torch.tensor([-20.0, 0.0, 20.0])))[:, 0]
    upright = dark(face(3, elevation=torch.tensor([-20.0, 0.0, 20.0])))[:, 1]
    assert (sideways.diff() > 0.02).all()
    assert (upright.diff() > 0.02).all()


def test_heads_have_the_size_of_their_identity():
    """Seen from the front, the area of an ellipse with these half axes; 50 identities differ."""
    data = Rendered3DFaces(size=96)
    identity = torch.arange(50.0, dtype=torch.float64)
    images = data.render(face(50, identity=identity), dtype=torch.float64)[:, 0]
    traits = data.traits(identity)
    area = (images > 0).double().mean((1, 2))
    torch.testing.assert_close(area, math.pi * traits["width"] * traits["height"], rtol=0.04, atol=0)
    assert torch.pdist(images.flatten(1)).min() > 0.5


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (RenderedMPI3D(size=64), mpi3d(3, shape=5, horizontal_axis=torch.tensor([-31.0, 4.0, 42.0]))),
        (Rendered3DFaces(size=64), face(3, azimuth=torch.tensor([-31.0, 4.0, 42.0]), lighting=13.0)),
    ],
    ids=["rendered-mpi3d", "rendered-3dfaces"],
)
def test_stand_ins_are_differentiable(data, values):
    """Derivatives in the continuous factors are those of finite differences, but for corners at edges."""
    moving = [k for k, factor in enumerate(data.factors) if factor.continuous]

    def render(own):
        full = values.clone()
        full = full.index_copy(1, torch.tensor(moving), own)
        return data.render_batch(full).flatten(1)

    J = torch.autograd.functional.jacobian(lambda own: render(own).sum(0), values[:, moving]).movedim(1, 0)
    for k, factor in enumerate(moving):
        step = torch.zeros(len(moving), dtype=torch.float64)
        step[k] = 1e-5 * (data.factors[factor].high - data.factors[factor].low)
        own = values[:, moving]
        difference = (render(own + step) - render(own - step)) / (2 * step[k])
        assert (difference - J[:, :, k]).norm() / difference.norm() < 0.05, data.factors[factor].name


# the renderer as a decoder --------------------------------------------------------------------


def test_the_renderer_is_differentiable():
    sprites = Sprites(size=64, shapes=("circle",))
    z = sprites.sample(3, seed=0).factors

    def render(values):
        return sprites.render_batch(values).flatten(1)

    J = theory.jacobian(render, z)
    step = 1e-5
    for k in range(4):
        moved = z.clone()
        moved[:, k] += step
        back = z.clone()
        back[:, k] -= step
        difference = (render(moved) - render(back)) / (2 * step)
        assert (difference - J[:, :, k]).norm() / difference.norm() < 0.05  # edges have corners
    assert theory.ima_contrast(render, z).mean() < 0.1


# errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sprites(shapes=("star",)), "shapes must be from triangle, square"),
        (lambda: Sprites(size=2), "size must be at least 4"),
        (lambda: Sprites().sample(0, seed=0), "at least 1, got 0"),
        (lambda: Sprites().sample(5, seed=0, distributions={"colour": "grid"}), "no factor 'colour'; it has x, y"),
        (lambda: Sprites().sample(5, seed=0, distributions=Normal()), "must be grid, uniform, or a Beta"),
        (lambda: Sprites().render(torch.zeros(2, 3)), "a value for each of x, y, scale, hue"),
        (lambda: DSprites().images_at(torch.tensor([737_280])), "images 0 to 737279"),
    ],
)
def test_bad_arguments_are_rejected(call, message, unchecked_shapes):
    with pytest.raises(vs.InputError, match=message):
        call()


def test_distributions_of_factors():
    beta = Sprites(size=8).sample(4000, seed=0, distributions={"x": Beta(2.0, 6.0), "y": "grid"}).factors
    assert beta[:, 0].mean() == pytest.approx(0.25 + 0.5 * 0.25, abs=0.01)
    assert len(beta[:, 1].unique()) == 16
    assert len(beta[:, 2].unique()) == 4000
    sprites, priors = Sprites.published(seed=1, size=8)
    assert {(f.low, f.high) for f in sprites.factors} == {(0.0, 1.0)}
    assert all(2 <= prior.a <= 15 and 2 <= prior.b <= 15 for prior in priors.values())
