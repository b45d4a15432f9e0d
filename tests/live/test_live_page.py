"""The page at `/` in a real browser: it shows what the engine does, and takes nothing from anywhere else."""

import asyncio
import base64
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.stamp import StampOptions, StampRunner
from tokenspeed import AsyncEngine

playwright = pytest.importorskip("playwright.async_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# How many pixels of a picture have each colour, counted by the browser that made it.
COLORS = """async (data) => {
  const picture = new Image();
  picture.src = "data:image/png;base64," + data;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height), pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, picture.width, picture.height).data.buffer), counts = {};
  for (const pixel of pixels) counts[pixel] = (counts[pixel] ?? 0) + 1;
  return counts;
}"""


class SteppedRunner(StampRunner):
    """The stamp model; each round waits until it may go."""

    def __init__(self) -> None:
        super().__init__(StampOptions(max_context_tokens=2048, group_kinds=("full", "sliding"), **TWO))
        self.may_go = threading.Semaphore(0)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        self.may_go.acquire()
        return super().run(rows)


TWO: Any = {"block_granularities": (16, 16), "packings": (1, 1), "windows": (0, 64)}


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """A headless Chromium without a sandbox, which containers do not have."""
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


async def colors(page: Any, selector: str) -> dict[str, int]:
    """The colours of a part of the page as it is on the screen."""
    picture = await page.locator(selector).screenshot()
    return dict(await page.evaluate(COLORS, base64.b64encode(picture).decode()))


async def test_it_shows_requests_blocks_and_rounds(start: Any, browser: Any) -> None:
    """Two run and one waits; a click says why; then tokens flow, and everything goes back to nothing."""
    runner = SteppedRunner()
    engine, url = await start(runner=runner, max_batch_size=2)
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    troubles: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    expect = playwright.expect
    expect.set_options(timeout=30_000)
    try:
        await page.goto(url)
        await expect(page.locator("#condition")).to_have_text("ready")
        await expect(page.locator("#more")).to_have_text("None now.")
        blank = await colors(page, "#rounds")

        ids = ["first", "<b>second</b>", "third"]
        running = [asyncio.create_task(whole(engine, request_id)) for request_id in ids]
        runner.may_go.release(10)
        await expect(page.locator("#requests tr")).to_have_count(3)
        await expect(page.locator("#requests tr td:first-child")).to_have_text(ids)
        await expect(page.locator("#requests tr:nth-child(3) td:nth-child(2)")).to_have_text("waiting")
        await expect(page.locator("#requests tr:nth-child(1) td:nth-child(2)")).to_have_text("decoding")
        await expect(page.locator("#waiting")).to_have_text("1")
        await expect(page.locator("#pools .pool span:first-child")).to_have_text(["full-0", "sliding-1", "free"])
        await page.locator("#requests tr:nth-child(3)").click()
        await expect(page.locator("#where")).to_have_text("third: waiting, first in line: all 2 slots are taken")
        await page.locator("dialog button").click()

        runner.may_go.release(10_000)
        await asyncio.gather(*running)
        await expect(page.locator("#more")).to_have_text("None now.")
        await expect(page.locator("#running")).to_have_text("0")
        await expect(page.locator("#batch")).to_contain_text("decodes")
        drawn = await colors(page, "#rounds")
        # A picture of one colour, or of text alone, is a failure: bars take up their share of it.
        assert len(drawn) > len(blank)
        assert sorted(drawn.values())[-2] > 10 * (sorted(blank.values())[-2] if len(blank) > 1 else 1)
        whole_page = await colors(page, "body")
        assert len(whole_page) > 20
        assert max(whole_page.values()) < 0.97 * sum(whole_page.values())
        assert troubles == []
        assert {
            address.removeprefix(url).partition("?")[0] for address in asked if not address.startswith("data:")
        } == {
            "/",
            "/v1/live",
            "/v1/requests/third",
        }
    finally:
        runner.may_go.release(10_000)


async def whole(engine: AsyncEngine, request_id: str) -> None:
    """A request of 40 prompt tokens and 30 more."""
    from tokenspeed import SamplingParams

    async for _ in engine.generate("x" * 40, SamplingParams(max_tokens=30), request_id=request_id):
        pass


async def test_with_a_key_it_asks_for_it(start: Any, browser: Any) -> None:
    """The page is open, its numbers are not; the key goes into a header and nowhere else."""
    _, url = await start(api_key="open sesame")
    page = await browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(url)
    await playwright.expect(page.locator("#condition")).to_have_text("needs its API key")
    await page.locator("#key").fill("open sesame")
    await page.locator("#ask button").click()
    await playwright.expect(page.locator("#condition")).to_have_text("ready")
    await playwright.expect(page.locator("#ask")).to_be_hidden()
    assert not [address for address in asked if "sesame" in address]
