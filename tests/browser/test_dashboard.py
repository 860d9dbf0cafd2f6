"""The dashboard in a real Chromium, beside the API it shows. `make test-browser` leaves pictures in out/browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from controller.client import Client
from engine.link.messages import Keys, encode
from tests.controller.site import ADMIN, READER, Site, serving

pytestmark = pytest.mark.browser

OUT = Path(__file__).parents[2] / "out" / "browser"
SLOW = 30_000  # milliseconds that a page may take on a busy machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site"), steps=400) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched(NamedTuple):
    """A page, with what it complained about and whom it asked."""

    page: Page
    errors: list[str]
    asked: list[str]


@pytest.fixture
def watched(browser: Browser, site: Site) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(SLOW)
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    def sent(request: Request) -> None:
        asked.append(request.url)

    page.on("console", heard)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", sent)
    yield Watched(page, errors, asked)
    context.close()


def sign_in(page: Page, secret: str) -> None:
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(secret)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def picture(page: Page, name: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=OUT / f"{name}.png", full_page=True)


def test_the_pool_page_shows_the_api_s_numbers_and_asks_nobody_else(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/")
    expect(page.get_by_role("heading", name="p", exact=True)).to_be_visible()
    with Client(site.url) as client:
        summary, domains = client.pool("p"), client.domains("p")
    assert summary.traffic is not None
    assert summary.traffic.speedup is not None
    expect(page.locator("#speedup")).to_have_text(f"{summary.traffic.speedup.value:.2f}×")
    table = page.get_by_role("table", name="Domains")
    for domain in domains:
        row = table.get_by_role("row").filter(has_text=domain.domain)
        expect(row).to_contain_text(f"{domain.tokens:,}")
        assert domain.now is not None
        expect(row).to_contain_text(f"K = {domain.now.k} on {domain.now.draft}" if domain.now.k else "no speculation")
    for chart in ("goodput", "choices", "load"):
        expect(page.locator(f"#chart-{chart} .main-svg").first).to_be_visible()
    expect(page.get_by_role("table", name="Engines")).to_contain_text("closed")
    picture(page, "pool")
    assert watched.errors == []
    assert {url.split("/")[2] for url in watched.asked if url.startswith("http")} == {site.url.split("/")[2]}


def test_a_frame_s_news_arrives_without_a_reload(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    row = page.get_by_role("table", name="Domains").get_by_role("row").filter(has_text="code")
    before = row.inner_text()
    expect(page.locator("#link")).to_have_text("live")
    site.report(50)
    expect(row).not_to_have_text(before, timeout=SLOW)
    assert watched.errors == []


def test_the_domain_page_gives_the_reason_the_curve_and_the_arms(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/code")
    with Client(site.url) as client:
        (code,) = client.domain("p", "code")
    choice = next(c for c in code.choices if c.load == code.main_load)
    expect(page.locator(".reason")).to_contain_text(f"At load {choice.load}: ")
    arms = page.get_by_role("table", name="Arms")
    expect(arms.get_by_role("row")).to_have_count(1 + len(choice.arms))
    expect(arms).to_contain_text(f"{choice.arms[0].speedup.value:.2f}×")
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    # No token: nothing to steer with.
    expect(page.get_by_role("button", name="Pin")).to_have_count(0)
    picture(page, "domain")
    assert watched.errors == []


def test_pin_and_unpin_with_the_price_told_before(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/chat")
    sign_in(page, ADMIN)
    page.get_by_role("button", name="Pin …").first.click()
    page.get_by_label("Draft").select_option("none")
    expect(page.get_by_label("K", exact=True)).to_have_value("0")
    expect(page.locator("#pin-cost")).to_contain_text("expected to lose", timeout=SLOW)
    page.get_by_label("Why").fill("a test")
    picture(page, "pin")
    page.get_by_role("dialog").get_by_role("button", name="Pin").click()
    expect(page.get_by_text("to none at K = 0 by ana: a test")).to_be_visible()
    with Client(site.url) as client:
        assert [(p.domain, p.draft, p.k, p.by) for p in client.orders("p").pins] == [("chat", "none", 0, "ana")]
    page.get_by_role("button", name="Unpin …").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpin").click()
    expect(page.get_by_text("to none at K = 0")).to_have_count(0)
    with Client(site.url) as client:
        assert client.orders("p").pins == []
    assert watched.errors == []


def test_a_pin_and_shadow_show_what_is_played_and_what_would_be_chosen(site: Site, watched: Watched) -> None:
    page = watched.page
    with Client(site.url, ADMIN) as client:
        client.pin("p", "chat", "none", 0)
        site.report(50)  # shown is the load of the last minute
        page.goto(f"{site.url}/#/p")
        row = page.get_by_role("table", name="Domains").get_by_role("row").filter(has_text="chat")
        expect(row).to_contain_text("no speculation", timeout=SLOW)
        expect(row).to_contain_text("by pin; would choose K = ")
        client.unpin("p", "chat")
        client.set_mode("p", "shadow")
        expect(page.locator("#identified")).to_contain_text("In mode shadow all play ngram at K = 2", timeout=SLOW)
        expect(row).to_contain_text("K = 2 on ngram")
        expect(page.locator(".facts")).to_contain_text("0.0% of steps")
        picture(page, "shadow")
        page.goto(f"{site.url}/#/p/chat")
        deep = page.get_by_role("table", name="Arms").get_by_role("row").filter(has_text="not identified")
        expect(deep).to_have_count(1, timeout=SLOW)  # K = 4; its acceptance beyond position 2 is not shown
        client.set_mode("p", "on")
    assert watched.errors == []


def test_a_reader_sees_and_does_not_steer(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    sign_in(page, READER)
    expect(page.get_by_role("button", name="bob (read)")).to_be_visible()
    expect(page.get_by_role("button", name="Mode …")).to_have_count(0)


def test_the_mode_is_set_and_told(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    sign_in(page, ADMIN)
    page.get_by_role("button", name="Mode …").click()
    page.get_by_label("Mode", exact=True).select_option("off")
    page.get_by_label("Why").fill("maintenance")
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    expect(page.locator(".facts .tag")).to_have_text("off")
    expect(page.get_by_role("table", name="Events").get_by_role("row").nth(1)).to_contain_text("maintenance")
    with Client(site.url, ADMIN) as client:
        client.set_mode("p", "on")


def test_a_label_with_markup_stays_text(site: Site, watched: Watched) -> None:
    label = "<script>document.title='x'</script>"
    site.engine.run(20, site.rng)
    frame = site.engine.frame(full=True)
    renamed: dict[str, Any] = {
        kind: [msgspec.structs.replace(cell, domain=label) for cell in getattr(frame, kind) if cell.domain == "chat"]
        for kind in ("acceptance", "account", "moments")
    }
    other = msgspec.structs.replace(frame, engine="evil", incarnation="evil", **renamed)
    site.client.xadd(Keys("p").frames, {"frame": encode(other)})
    page = watched.page
    page.goto(f"{site.url}/#/p")
    link = page.get_by_role("link", name=label)
    expect(link).to_be_visible(timeout=SLOW)
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"p / {label}")
    assert "Adaptive K" in page.title()
    assert watched.errors == []


def test_a_controller_that_has_gone_is_told(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    expect(page.locator("#link")).to_have_text("live")
    page.context.set_offline(True)
    page.goto(f"{site.url}/#/p/code")
    expect(page.locator("main .note.bad")).to_contain_text("does not answer")
    page.context.set_offline(False)
    expect(page.locator(".reason")).to_be_visible(timeout=SLOW)


def test_a_domain_that_is_not_there_is_told_with_a_way_back(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/poetry")
    expect(page.locator("main .note.bad")).to_contain_text("'chat', 'code'")
    page.get_by_role("link", name="Back to p").click()
    expect(page.locator("#speedup")).to_be_visible()


def test_hover_gives_the_posterior_beside_the_raw_counts_and_requests_their_spread(
    site: Site, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/code")
    with Client(site.url) as client:
        (curve,) = client.domain("p", "code")[0].curves
    page.locator(".chart .scatterlayer .point").first.hover(force=True)
    first = curve.positions[0]
    told = page.locator(".hoverlayer").filter(has_text="raw counts")
    expect(told).to_contain_text(f"kept if reached: {first.acceptance.value:.3f} ({first.acceptance.low:.3f}")
    expect(told).to_contain_text(f"raw counts: {first.accepted:,} of {first.seen:,}")
    row = page.get_by_role("table", name="Requests").get_by_role("row").nth(1)
    expect(row).to_contain_text("not known yet")  # its requests are one step long
    expect(row).to_contain_text(f"{curve.effective_n:,.0f}")
    for title in ("position in the draft", "share of steps that keep so many", "K, draft tokens a step", "draft"):
        expect(page.locator(".chart .infolayer").filter(has_text=title).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(site: Site, browser: Browser, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 840}, color_scheme=scheme)
    context.set_default_timeout(SLOW)
    page = context.new_page()
    for path, awaited in (("p", "#speedup"), ("p/code", ".reason")):
        page.goto(f"{site.url}/#/{path}")
        expect(page.locator(awaited).first).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide, f"{path} is wider than a phone"
        picture(page, f"{path.replace('/', '-')}-phone-{scheme}")
    context.close()


def test_the_api_s_page_shows_every_endpoint_tries_one_out_and_asks_nobody_else(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/docs")
    expect(page.get_by_role("heading", name="Adaptive K controller")).to_be_visible()
    document = httpx.get(f"{site.url}/openapi.json").json()
    operations = sum(len(path) for path in document["paths"].values())
    expect(page.locator(".opblock")).to_have_count(operations)
    block = page.locator("#operations-pools-list_pools_v1_pools_get")
    block.locator(".opblock-summary-control").click()
    expect(block).to_contain_text("smollm2")  # the example
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    expect(block.locator(".live-responses-table td.response-col_description:not(.col_header)")).to_contain_text(
        '"leading"'
    )
    picture(page, "api")
    assert watched.errors == []
    assert {url.split("/")[2] for url in watched.asked if url.startswith("http")} == {site.url.split("/")[2]}
