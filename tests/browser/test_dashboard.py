"""The dashboard in a real Chromium, beside the API it shows. `make test-browser` leaves pictures in out/browser."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Route, expect, sync_playwright

from controller.client import Client
from engine.link.messages import Keys, encode
from tests.controller.site import ADMIN, READER, Site, serving, standing_by

pytestmark = pytest.mark.browser

OUT = Path(__file__).parents[2] / "out" / "browser"
SLOW = 30_000  # milliseconds that a page may take on a busy machine
LINK = '<a href="http://evil.example">code</a>'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site"), steps=400) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "Chromium is needed: apt-get install chromium"
    expect.set_options(timeout=SLOW)
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


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until it is there, as somebody without a mouse would."""
    expect(wanted).to_be_visible()
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("(node) => node === document.activeElement"):
            return
    raise AssertionError(f"60 times Tab do not reach {wanted}")


def hover_last_point(page: Page, chart: Locator) -> Locator:
    """Put the mouse over the newest point of a chart's first line; the layer that tells about it."""
    at = chart.evaluate(
        "(node) => { const { xaxis, yaxis, _size } = node._fullLayout, { x, y } = node.data[0];"
        " return [_size.l + xaxis.d2p(x.at(-1)), _size.t + yaxis.d2p(y.at(-1))]; }"
    )
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + at[0] - 3, box["y"] + at[1])
    page.mouse.move(box["x"] + at[0], box["y"] + at[1])
    return chart.locator(".hoverlayer")


def shorter(label: str, ends: int = 10) -> re.Pattern[str]:
    """What a chart shows of a label that is wider than it has room for: at least so much of its beginning and end."""
    return re.compile(f"{re.escape(label[:ends])}.*…\\S*{re.escape(label[-ends:])}")


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


def test_a_frame_s_news_arrives_by_the_stream_while_no_timer_runs(site: Site, watched: Watched) -> None:
    page = watched.page
    page.clock.install()
    page.goto(f"{site.url}/#/p")
    tokens = page.get_by_role("table", name="Domains").get_by_role("row").filter(has_text="code").get_by_role("cell")
    expect(page.locator("#link")).to_have_text("live")
    # From here on nothing on the page asks by itself: only an event can bring news.
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
    before = tokens.last.inner_text()
    site.report(50)
    expect(tokens.last).not_to_have_text(before, timeout=SLOW)
    assert watched.errors == []


def test_without_a_mouse_the_content_is_skipped_to(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    expect(page.locator("#speedup")).to_be_visible()
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")  # on to what can be reached within it
    inside = page.evaluate("document.getElementById('main').contains(document.activeElement)")
    expect(page.get_by_role("heading", level=1)).to_have_text("p")
    assert (inside, page.evaluate("location.hash")) == (True, "#/p")


def test_news_leave_the_keyboard_where_it_was(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p")
    row = page.get_by_role("table", name="Domains").get_by_role("row").filter(has_text="code")
    link = row.get_by_role("link", name="code")
    tab_to(page, link)
    tokens = row.get_by_role("cell").last
    before = tokens.inner_text()
    expect(page.locator("#link")).to_have_text("live")
    site.report(50)
    expect(tokens).not_to_have_text(before)
    expect(link).to_be_focused()


def test_a_domain_is_pinned_without_a_mouse(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/chat")
    tab_to(page, page.get_by_role("button", name="Sign in"))
    page.keyboard.press("Enter")
    page.keyboard.type(ADMIN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="ana (admin)")).to_be_visible()
    tab_to(page, page.get_by_role("button", name="Pin …"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("Draft")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.get_by_label("Draft")).to_have_value("none")
    tab_to(page, page.get_by_label("Why"))
    page.keyboard.type("no mouse")
    confirm = page.get_by_role("dialog").get_by_role("button", name="Pin")
    expect(confirm).to_be_enabled()
    tab_to(page, confirm)
    page.keyboard.press("Enter")
    expect(page.get_by_text("to none at K = 0 by ana: no mouse")).to_be_visible()
    # Back where it began, though the button has other words now.
    expect(page.get_by_role("button", name="Pin otherwise …")).to_be_focused()
    with Client(site.url, ADMIN) as client:
        client.unpin("p", "chat")
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
        (pin,) = client.orders("p").pins
    # What was priced, and no more: the other regime goes on as it was.
    assert (pin.domain, pin.regime, pin.draft, pin.k, pin.by) == ("chat", "greedy", "none", 0, "ana")
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


def test_a_pin_of_both_regimes_is_taken_off_one(site: Site, watched: Watched) -> None:
    page = watched.page
    with Client(site.url, ADMIN) as client:
        client.pin("p", "chat", "none", 0)
        client.pin("p", "chat", "ngram", 2, regime="greedy")
        page.goto(f"{site.url}/#/p/chat")
        sign_in(page, ADMIN)
        expect(
            page.get_by_text("pinned to ngram at K = 2 by ana", exact=True)
        ).to_be_visible()  # the later one is in force
        page.get_by_role("button", name="Unpin …").click()
        page.get_by_role("dialog").get_by_role("button", name="Unpin").click()
        expect(page.get_by_role("button", name="Unpin …")).to_have_count(0)
        assert [(p.regime, p.draft) for p in client.orders("p").pins] == [("sampled", "none")]
        client.unpin("p", "chat")


def test_the_price_told_is_that_of_the_arm_chosen_and_without_one_nothing_is_pinned(
    site: Site, watched: Watched
) -> None:
    page = watched.page
    held: list[Route] = []
    page.goto(f"{site.url}/#/p/chat")
    sign_in(page, ADMIN)

    def late(route: Route) -> None:
        """The first question is answered last."""
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/what-if", late)
    cost, confirm = page.locator("#pin-cost"), page.get_by_role("dialog").get_by_role("button", name="Pin")
    page.get_by_role("button", name="Pin …").first.click()
    page.get_by_label("Draft").select_option("none")
    expect(cost).to_contain_text("1.00× (1.00–1.00) plain")
    expect(confirm).to_be_enabled()
    told = cost.inner_text()
    (first,) = held
    with page.expect_response(lambda answer: answer.request == first.request) as answer:
        first.continue_()
    answer.value.finished()
    page.evaluate("fetch('/healthz').then((answer) => answer.json())")  # what came before it has been read by now
    assert cost.inner_text() == told
    # While a question is open, and where it has no answer, there is nothing to confirm.
    page.unroute("**/what-if")
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    page.route("**/what-if", hold)
    with page.expect_request("**/what-if"):
        page.get_by_label("Draft").select_option("ngram")
    expect(cost).to_have_text("…")
    expect(confirm).to_be_disabled()
    waiting[0].fulfill(status=503, body=json.dumps({"title": "Busy", "detail": "No answer in time"}))
    expect(cost).to_contain_text("No answer in time")
    expect(confirm).to_be_disabled()
    page.keyboard.press("Enter")
    with Client(site.url) as client:
        assert client.orders("p").pins == []


def test_a_pin_of_a_domain_that_nobody_asked_for_is_seen_and_taken_off(site: Site, watched: Watched) -> None:
    page = watched.page
    with Client(site.url, ADMIN) as client:
        client.pin("p", "caht", "ngram", 2)
        page.goto(f"{site.url}/#/p")
        told = page.get_by_text("No request of domain caht has been seen, which is pinned to ngram at K = 2 by ana.")
        expect(told).to_be_visible()
        expect(page.get_by_role("button", name="Unpin …")).to_have_count(0)
        sign_in(page, ADMIN)
        page.get_by_role("button", name="Unpin …").click()
        page.get_by_role("dialog").get_by_role("button", name="Unpin").click()
        expect(told).to_have_count(0)
        assert client.orders("p").pins == []
    assert watched.errors == []


def test_an_engine_that_is_slower_than_usual_says_by_how_much(site: Site, watched: Watched) -> None:
    page = watched.page
    with Client(site.url) as client:
        (one,) = (asdict(engine) for engine in client.engines("p") if engine.engine == "e")

    def slower(route: Route) -> None:
        route.fulfill(json=[{**one, "engine": "slow", "slowness": 1.84}, {**one, "engine": "usual", "slowness": 1.04}])

    page.route("**/engines", slower)
    page.goto(f"{site.url}/#/p")
    rows = page.get_by_role("table", name="Engines").get_by_role("row")
    expect(rows.filter(has_text="slow")).to_contain_text("1.8× usual")
    expect(rows.filter(has_text="usual").last).not_to_contain_text("×")
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
    with Client(site.url) as client:
        fixed = client.what_if("p", 1).fixed
    assert fixed is not None
    page.get_by_role("button", name="Mode …").click()
    cost = page.locator("#mode-cost")
    expect(cost).to_contain_text(
        "All requests would follow what is learned. At load 1 the static choice, ngram at K = 2"
    )
    page.get_by_label("Mode", exact=True).select_option("off")
    expect(cost).to_contain_text("All requests would play the static choice. At load 1")
    loss, low, high, static, learned = map(float, re.findall(
        r"give ([\d.]+)% .*?\((-?[\d.]+)% to (-?[\d.]+)%\).*: ([\d.]+)× .* against ([\d.]+)×", cost.inner_text()
    )[0])  # fmt: skip
    sign = -1 if "more" in cost.inner_text() else 1
    assert 0.01 * sign * loss == pytest.approx(fixed.loss.value, abs=0.002)  # counts fade while the page asks
    assert 0.01 * low <= 0.01 * loss <= 0.01 * high
    assert (static, learned) == pytest.approx((fixed.speedup.value, fixed.learned.value), abs=0.011)
    picture(page, "mode")
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


def test_a_link_in_a_label_stays_text_in_charts(tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    with serving(tmp_path, domains=(LINK, "chat"), draft=LINK) as site:
        page.goto(f"{site.url}/#/p")
        chart = page.locator("#chart-choices")
        expect(chart.locator(".legend")).to_contain_text(shorter(f"{LINK}, greedy"))
        expect(hover_last_point(page, chart)).to_contain_text(f"{LINK}, greedy")
        expect(chart.locator(".hoverlayer")).to_contain_text("on <a href=")
        picture(page, "label")
        expect(page.locator(".chart a")).to_have_count(0)
        page.get_by_role("table", name="Domains").get_by_role("link", name=LINK).click()
        survival, heat = page.locator(".chart").nth(0), page.locator(".chart").nth(1)
        expect(heat.locator(".main-svg").first).to_contain_text(shorter(LINK, 4))
        expect(hover_last_point(page, survival)).to_contain_text("raw counts")
        heat.locator(".nsewdrag").hover()
        expect(heat.locator(".hoverlayer")).to_contain_text(LINK)
        expect(page.locator(".chart a")).to_have_count(0)
    assert watched.errors == []


@pytest.mark.parametrize(
    ("width", "of"), [(390, "customer-support-"), (1280, "customer-support-"), (390, "客户支持"), (390, "W👍")]
)
def test_labels_as_long_as_they_may_be_leave_charts_and_pages_whole(
    tmp_path: Path, browser: Browser, width: int, of: str
) -> None:
    """64 characters each, alike but for the last: told apart in the legend, told whole by hovering."""
    names = tuple((of * 64)[:63] + end for end in "12")
    context = browser.new_context(viewport={"width": width, "height": 840})
    context.set_default_timeout(SLOW)
    page = context.new_page()

    def fits() -> bool:
        inside = page.locator(".chart").evaluate_all(
            "(charts) => charts.every((chart) => { const box = chart.getBoundingClientRect();"
            " return [...chart.querySelectorAll('.legendtext, .ytick text')].every((label) => {"
            " const it = label.getBoundingClientRect(); return it.left >= box.left && it.right <= box.right; })"
            " && chart._fullLayout._size.w > box.width / 4; })"
        )
        whole = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        return bool(inside) and bool(page.evaluate(whole))

    with serving(tmp_path, domains=names, draft=names[0]) as site:
        page.goto(f"{site.url}/#/p")
        legend = page.locator("#chart-choices .legend")
        for name in names:
            expect(legend).to_contain_text(shorter(f"{name}, greedy"))
        assert fits()
        expect(hover_last_point(page, page.locator("#chart-choices"))).to_contain_text(names[0])
        picture(page, f"long-{width}-{len(of)}")
        page.goto(f"{site.url}/#/p/{names[1]}")
        expect(page.locator(".chart").nth(1).locator(".main-svg").first).to_contain_text(shorter(names[0], 3))
        picture(page, f"long-domain-{width}-{len(of)}")
        assert fits()
    context.close()


def test_a_measurement_and_its_fixed_windows_are_shaded(tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    with serving(tmp_path) as site, Client(site.url, ADMIN) as client:
        page.goto(f"{site.url}/#/p")
        expect(page.locator("#chart-choices .main-svg").first).to_be_visible()
        expect(page.locator("#shaded")).to_be_empty()
        client.measure("p", 0.5, 6, why="how much?")  # three pairs of windows of 5 s
        deadline = time.monotonic() + 60
        while {(m.measuring, m.fixed) for m in client.history("p")} < {(False, False), (True, False), (True, True)}:
            assert time.monotonic() < deadline
            site.report(10)
            page.wait_for_timeout(500)
        expect(page.locator("#shaded")).to_have_text("Shaded: a measurement ran; darker: all played its fixed choice.")
        for name in ("goodput", "choices", "load"):
            bands = page.locator(f"#chart-{name}").evaluate(
                "(chart) => chart._fullLayout.shapes.map((s) => [s.name, new Date(s.x0) < new Date(s.x1), s.y0, s.y1])"
            )
            assert {band[0] for band in bands} == {"measuring", "fixed"}
            assert [band[1:] for band in bands] == [[True, 0, 1]] * len(bands)
            expect(page.locator(f"#chart-{name} .shapelayer path")).to_have_count(len(bands))
        client.stop_measuring("p")
        picture(page, "measurement")
    assert watched.errors == []


def test_learning_anew_tells_what_is_forgotten_and_what_it_may_cost(tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    with serving(tmp_path, steps=400) as site, Client(site.url) as client:
        page.goto(f"{site.url}/#/p/code")
        sign_in(page, ADMIN)
        (curve,), summary = client.domain("p", "code")[0].curves, client.pool("p")
        (choice,) = (c for c in client.domain("p", "code")[0].choices if c.load == 1)
        plain = next(arm.goodput for arm in choice.arms if arm.draft == "none")
        page.get_by_role("button", name="Learn anew …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(
            f"ngram, greedy: {curve.spread.observed:,.0f} steps, worth {curve.effective_n:,.0f} independent ones"
        )
        budget = summary.budget_steps
        assert budget == 6.0
        expect(dialog).to_contain_text(f"{budget:.1f} steps without speculation take, {budget / plain:.2f} s at load 1")
        picture(page, "reset")
        page.get_by_label("Why").fill("a test")
        dialog.get_by_role("button", name="Learn anew").click()
        expect(dialog).to_be_hidden()
        spread = page.get_by_role("table", name="Requests").get_by_role("row").nth(1).get_by_role("cell")
        expect(spread.nth(4)).to_have_text("0", timeout=SLOW)  # steps counted lately
        assert client.audit("p", who="ana")[0].what == "reset domain code"


def test_a_replica_that_stands_by_says_so(site: Site, tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    with standing_by(site, tmp_path) as url:
        page.goto(f"{url}/#/p")
        expect(page.locator("main .note")).to_contain_text("Another replica leads this pool; this one stands by")
        expect(page.locator("main .note")).to_have_count(1)
        expect(page.get_by_role("table", name="Events")).to_be_visible()
        for words in ("No frame has been read yet", "Nothing has been served yet", "No engine has reported"):
            expect(page.get_by_text(words)).to_be_hidden()
        picture(page, "standby")
        page.goto(f"{url}/#/p/code")
        expect(page.get_by_role("heading", level=1)).to_have_text("p / code")
        expect(page.locator("main .note")).to_contain_text("this one stands by")
    assert watched.errors == []


def test_what_the_static_choice_brings_is_shown_where_all_play_it(tmp_path: Path, watched: Watched) -> None:
    page = watched.page
    with serving(tmp_path, variant="static", AKC_MODE="off") as site:
        page.goto(f"{site.url}/#/p")
        with Client(site.url) as client:
            traffic = client.pool("p").traffic
        assert traffic is not None
        assert traffic.speedup is not None
        speedup = traffic.speedup
        expect(page.locator(".hero")).to_contain_text(f"between {speedup.low:.2f} and {speedup.high:.2f}")
        picture(page, "off")
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


def test_a_stream_that_is_refused_is_told_with_its_reason_and_the_page_goes_on(site: Site, watched: Watched) -> None:
    page = watched.page
    problem = {"title": "Too many listeners", "detail": "128 listen already"}
    page.route("**/events", lambda route: route.fulfill(status=503, body=json.dumps(problem)))
    page.goto(f"{site.url}/#/p")
    expect(page.locator("#gone")).to_contain_text("128 listen already")
    row = page.get_by_role("table", name="Domains").get_by_role("row").filter(has_text="code")
    before = row.get_by_role("cell").last.inner_text()
    site.report(50)
    expect(row.get_by_role("cell").last).not_to_have_text(before, timeout=SLOW)


def test_a_domain_that_is_not_there_is_told_with_a_way_back(site: Site, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/p/poetry")
    expect(page.locator("main .note.bad")).to_contain_text("'chat', 'code'")
    page.get_by_role("link", name="Back to p").click()
    expect(page.locator("#speedup")).to_be_visible()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("%zz", "No such pool: There is no pool '%zz'; known pools: 'p'"),
        ("p/%zz", "No such domain: Pool 'p' has no domain '%zz'"),
        ("p/a/b", "No such domain: Pool 'p' has no domain 'a/b'"),
    ],
)
def test_an_address_that_is_badly_encoded_names_nothing(site: Site, watched: Watched, address: str, told: str) -> None:
    page = watched.page
    page.goto(f"{site.url}/#/{address}")
    expect(page.locator("main .note.bad")).to_contain_text(told)
    page.get_by_role("link", name="Back to p" if "/" in address else "All pools").click()
    expect(page.locator("#speedup")).to_be_visible()
    assert [error for error in watched.errors if "404" not in error] == []


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
@pytest.mark.parametrize(("size", "width"), [("phone", 390), ("desktop", 1280)])
def test_pages_fit_a_phone_and_a_desktop(site: Site, browser: Browser, size: str, width: int, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": width, "height": 840}, color_scheme=scheme)
    context.set_default_timeout(SLOW)
    page = context.new_page()
    for path, awaited in (("p", "#speedup"), ("p/code", ".reason")):
        page.goto(f"{site.url}/#/{path}")
        expect(page.locator(awaited).first).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide, f"{path} is wider than a {size}"
        for table in page.locator(".scroll").all() if size == "desktop" else []:
            cut = table.evaluate("(node) => node.scrollWidth > node.clientWidth")
            assert not cut, f"of {path} a table is cut off: {table.inner_text()}"
        picture(page, f"{path.replace('/', '-')}-{size}-{scheme}")
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
