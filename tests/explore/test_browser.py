"""Explorer and diagnosis in headless Chromium: no console errors, no other hosts; sliders and sorting work."""

import shutil
import statistics
import threading
from contextlib import contextmanager

import pytest
import torch

import vaescope as vs
from vaescope.products.explore.server import Explorer
from vaescope.products.explore.session import Session

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

SIZE = 32
G = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def page(browser):
    """A page that records console messages, errors and requests."""
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    opened.problems = []
    opened.on("console", lambda m: opened.problems.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda e: opened.problems.append(str(e)))
    opened.requests = []
    opened.on("request", lambda r: opened.requests.append(r.url))
    yield opened
    opened.close()


def member(seed):
    """The untrained network of the sprites experiment."""
    model = vs.models.VAE.conv((3, SIZE, SIZE), latent_dim=4)
    return vs.models.Member(model, {n: v for n, v in model.init([seed]).items()}, precision=1.0)


def adapted(inner):
    spread = torch.tensor([0.01, 0.02, 0.05, 1.0])

    def encode(x):
        mean = torch.stack([3.4 * x[:, k] - 1.7 for k in (0, 7, 9)] + [0 * x[:, 0]], dim=1)
        return mean, spread.expand(len(x), 4)

    return vs.adapters.from_callables(
        encode=encode,
        decode=lambda z: torch.sigmoid(30 * inner.decode(z.float())),
        latent_dim=4,
        image_shape=(3, SIZE, SIZE),
    )


@contextmanager
def serving(models, x, name="model"):
    with Explorer(Session.of(models, x, name=name)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def server():
    x = torch.rand(80, 3 * SIZE * SIZE, generator=G)
    with serving([adapted(member(0)), adapted(member(1))], x, "sprites & <i>more</i>") as running:
        yield running


def drawn(page, index=0):
    return int(page.locator(".member").nth(index).get_attribute("data-drawn") or 0)


def wait_for_drawing(page, before, index=0):
    page.wait_for_function(
        "([n, k]) => Number(document.querySelectorAll('.member')[k].dataset.drawn || 0) > n", arg=[before, index]
    )


def image(page, index=0):
    return page.locator(".member .output").nth(index).evaluate("c => c.toDataURL()")


def test_sliders_change_the_image(page, server):
    page.goto(server.address)
    wait_for_drawing(page, 0)
    assert page.locator("h1").inner_text() == "sprites & <i>more</i>"
    assert page.locator(".used input[type=range]").count() == 3
    assert page.locator(".passive input[type=range]").count() == 1
    assert not page.locator(".passive input").first.is_visible()  # folded away
    before, count = image(page), drawn(page)
    slider = page.locator(".used input[type=range]").first
    slider.focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    wait_for_drawing(page, count)
    page.wait_for_timeout(200)
    assert image(page) != before
    assert page.problems == []
    assert all(url.startswith(server.address) for url in page.requests)


def test_a_click_starts_from_a_sample(page, server):
    page.goto(server.address)
    wait_for_drawing(page, 0)
    count, before = drawn(page), page.locator("input[type=number]").input_value()
    page.locator("canvas.codes").click(position={"x": 30, "y": 30})
    wait_for_drawing(page, count)
    assert page.locator("input[type=number]").input_value() != before
    assert page.problems == []


def test_two_members_side_by_side(page, server):
    page.goto(server.address)
    wait_for_drawing(page, 0)
    page.locator("#compare").click()
    wait_for_drawing(page, 0, 1)
    assert page.locator(".member").count() == 2
    assert image(page, 0) != image(page, 1)
    page.locator("#compare").click()
    assert page.locator(".member").count() == 1
    assert page.problems == []


def test_it_fits_a_phone(browser, server):
    phone = browser.new_page(viewport={"width": 380, "height": 800})
    phone.goto(server.address)
    phone.wait_for_selector(".member[data-drawn]")
    assert phone.evaluate("document.documentElement.scrollWidth") <= 380
    phone.close()


def test_sliders_respond_within_a_second(page, server):
    """A loose bound, since the machine may be shared."""
    page.goto(server.address)
    wait_for_drawing(page, 0)
    times = []
    slider = page.locator(".used input[type=range]").first
    slider.focus()
    for _ in range(25):
        count = drawn(page)
        page.keyboard.press("ArrowRight")
        wait_for_drawing(page, count)
        times.append(float(page.locator(".member").get_attribute("data-milliseconds")))
    print(f"slider to image: median {statistics.median(times):.1f} ms")
    assert statistics.median(times) < 1000


@pytest.mark.parametrize("outputs", [1, 12, 200])
def test_other_outputs_are_drawn_as_bars_or_as_a_curve(page, outputs):
    B = torch.randn(outputs, 2, generator=G)
    model = vs.adapters.from_callables(
        encode=lambda x: (torch.stack([x[:, 0], x.sum(1)], 1), torch.full((len(x), 2), 0.01)),
        decode=lambda z: z @ B.T.to(z),
        latent_dim=2,
    )
    with serving([model], torch.randn(50, outputs, generator=G)) as running:
        page.goto(running.address)
        wait_for_drawing(page, 0)
        ink = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((v) => v > 0).length"
        assert page.locator(".output").evaluate(ink) > 500
        before, count = image(page), drawn(page)
        page.locator(".used input[type=range]").first.focus()
        for _ in range(20):
            page.keyboard.press("ArrowLeft")
        wait_for_drawing(page, count)
        page.wait_for_timeout(200)
        assert image(page) != before
    assert page.problems == []


def test_the_page_of_a_diagnosis_opens_and_sorts(page, tmp_path):
    W = torch.linalg.qr(torch.randn(6, 3, generator=G))[0] * torch.tensor([3.0, 2.0, 1.0])
    x = torch.randn(300, 3, generator=G) @ W.T + 0.1 * torch.randn(300, 6, generator=G)
    variance = 1 / (1 + 100 * W.square().sum(0))
    model = vs.adapters.from_callables(
        encode=lambda x: (100 * (x @ W) * variance, variance.expand(len(x), 3)),
        decode=lambda z: z @ W.T.to(z),
        latent_dim=3,
        precision=100.0,
    )
    file = vs.diagnose(model, x, name="<img src=x onerror=alert(1)>").to_html(tmp_path / "page.html")
    page.goto(f"file://{file}")
    assert page.locator("h1").inner_text() == "<img src=x onerror=alert(1)>"
    first = page.locator("#latents tbody tr td:first-child")
    assert first.all_inner_texts() == ["0", "1", "2"]
    page.locator("#latents th button", has_text="variance ratio").focus()
    page.keyboard.press("Enter")
    assert first.all_inner_texts() == ["2", "1", "0"]
    page.locator("#latents th button", has_text="variance ratio").click()
    assert first.all_inner_texts() == ["0", "1", "2"]
    assert page.problems == []
    assert len(page.requests) == 1
