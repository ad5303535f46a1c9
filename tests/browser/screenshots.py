"""Take the README's two pictures anew: `PYTHONPATH=functions:tests python -m browser.screenshots`."""

from __future__ import annotations

import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from s3queue.dashboard import server
from s3queue.dashboard.api import build
from support import chromium
from support.sample_bucket import working_hour
from support.workbench import Workbench

FOLDER = Path(server.__file__).parent / "screenshots"
PICTURES = (("overview", "light", ""), ("queue", "dark", "#/queue/orders"))
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--font-render-hinting=none"]


def main() -> None:
    bench = Workbench()
    bench.memory.url = "s3://acme-queues"
    working_hour(bench)
    found = chromium.find()
    assert found, "no Chromium for this machine: name one in S3QUEUE_CHROMIUM"
    executable, environment = found
    FOLDER.mkdir(exist_ok=True)
    with server.Server(build(bench.memory)) as serving, sync_playwright() as playwright:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, env=environment)
        for name, scheme, where in PICTURES:
            page = browser.new_page(
                color_scheme=scheme,
                viewport={"width": 1200, "height": 860},
                timezone_id="UTC",
                reduced_motion="reduce",
            )
            page.goto(serving.url)
            expect(page.locator("svg.spark")).to_have_count(4, timeout=20_000)
            if where:
                page.goto(f"{serving.address}/{where}")
                page.wait_for_selector("figure")
                page.wait_for_selector("td.path")
            expect(page.locator("#live-text")).to_contain_text("every", timeout=20_000)
            target = FOLDER / f"{name}.png"
            page.screenshot(path=target, full_page=not where)
            # A quarter of the size, and no difference to be seen.
            Image.open(target).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
        browser.close()
        serving.shutdown()


if __name__ == "__main__":
    main()
