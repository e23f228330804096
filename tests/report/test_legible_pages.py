"""Pages in headless Chromium at 1280 and 400 pixels, dark and in print: nothing is clipped without a cue."""

import shutil

import numpy as np
import pytest
import torch

import vaescope as vs

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# elements whose content is wider than they are, but those that are scrolled and say so
CLIPPED = """() => [...document.querySelectorAll("body, body *")].filter((e) => {
  if (e instanceof SVGElement || getComputedStyle(e).display === "inline" || e.clientWidth === 0) return false;
  if (e.scrollWidth <= e.clientWidth + 1) return false;
  const hint = e.parentElement.querySelector(":scope > .hint");
  return !(e.matches(".wide.more > .scroll") && hint && hint.offsetHeight > 0);
}).map((e) => `${e.tagName}.${e.className}#${e.id} ${e.scrollWidth} > ${e.clientWidth}`)"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def linear(side=8, latents=9, precision=30.0, shift=0.0):
    """A linear VAE of flat square images, bright bars at several places, with long advice in its findings."""
    generator = torch.Generator().manual_seed(0)
    bars = torch.zeros(latents, side, side)
    for k in range(latents):
        bars[k, :, k % side] = 1.0 + 0.1 * torch.rand(side, generator=generator)
    W = bars.flatten(1).T + 0.02 * torch.randn(side * side, latents, generator=generator)
    S = torch.linalg.inv(torch.eye(latents) + precision * W.T @ W)
    model = vs.adapters.from_callables(
        encode=lambda x: (precision * x.float() @ W @ S + shift, S.diagonal().expand(len(x), -1)),
        decode=lambda z: z @ W.T.to(z),
        latent_dim=latents,
        precision=precision,
        name="a_model_with_a_very_long_name_without_any_blank_in_it_" * 2,
    )
    z = torch.randn(400, latents, generator=generator)
    return model, z @ W.T + torch.randn(400, side * side, generator=generator) / precision**0.5


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The five pages, of models with findings."""
    folder = tmp_path_factory.mktemp("pages")
    (model, x), (other, _) = linear(), linear(shift=1.0)
    made = {
        "diagnose": vs.diagnose(other, x, train=x, progress=None, budget=20.0),
        "compare": vs.compare({"first setting": [model, other], "second": [other]}, x, progress=None, budget=2.0),
        "certify": vs.certify(other, x, simulations=200, progress=None, budget=0.5),
        "preflight": vs.preflight(x),
        "identifiability": vs.identifiability([model, other], x),
    }
    return {name: found.to_html(folder / f"{name}.html") for name, found in made.items()}


NAMES = ("diagnose", "compare", "certify", "preflight", "identifiability")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_clipped_without_a_cue(browser, pages, name, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems = []
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.goto(pages[name].as_uri())
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 1280:
        assert page.locator(".wide.more").count() == 0 or name == "preflight"
    assert problems == []
    page.close()


def test_the_cue_goes_at_the_end_of_a_wide_table(browser, pages):
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(pages["diagnose"].as_uri())
    table = page.locator(".wide:has(#latents)")
    assert "more" in table.get_attribute("class")
    assert "scroll" in table.locator(":scope > .hint").inner_text()
    table.locator(".scroll").evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    page.wait_for_function("!document.querySelector('.wide:has(#latents)').classList.contains('more')")
    page.close()


def test_panels_stand_in_as_many_columns_as_are_legible(browser, pages):
    columns = {}
    for width in (1280, 400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(pages["diagnose"].as_uri())
        places = page.locator("#codes .panels > div").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect().left)"
        )
        columns[width] = len(set(places))
        text = page.locator("#codes .panels svg").first.evaluate(
            "e => e.getBoundingClientRect().width / e.viewBox.baseVal.width"
        )
        assert text * 10 > 7  # pixels of its letters of 10 points
        page.close()
    assert columns[1280] >= 3
    assert columns[400] == 2


def test_dark_pages_have_contrast_and_print_has_no_cues(browser, pages):
    page = browser.new_page(viewport={"width": 400, "height": 900}, color_scheme="dark")
    page.goto(pages["diagnose"].as_uri())
    colours = "e => [getComputedStyle(document.body).backgroundColor, getComputedStyle(e).color]"
    for place in ("h1", ".soft", ".finding p"):
        back, front = page.locator(place).first.evaluate(colours)
        assert contrast(back, front) > 4.5
    page.emulate_media(media="print")
    assert page.locator(".wide > .hint").first.is_hidden()
    page.close()


def contrast(first, second):
    """The ratio of relative luminances (WCAG 2.2)."""

    def luminance(colour):
        values = np.array([int(v) for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
        linear_values = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear_values @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_flat_square_images_are_drawn_as_images(pages):
    text = pages["diagnose"].read_text()
    assert 'id="reconstructions"' in text
    assert "drawn so: 8 x 8 pixels" in text
