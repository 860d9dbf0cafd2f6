"""The client's event stream, over a socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controller.client import Client, Notice
from tests.controller.site import serving


def test_events_go_on_arriving_over_one_connection(tmp_path: Path) -> None:
    def learned(notices: Iterator[Notice], least: int) -> Notice:
        return next(n for n in notices if n.kind == "state" and n.data["frames"]["learned"] >= least)

    with ThreadPoolExecutor(1) as pool, serving(tmp_path) as site, Client(site.url) as client:
        notices = client.events("p")
        first = pool.submit(learned, notices, 1).result(30)
        for frames in (2, 3):
            site.report(10)
            news = pool.submit(learned, notices, frames).result(30)
            assert news.data["frames"]["learned"] == frames
            assert tuple(map(int, news.id.split("."))) > tuple(map(int, first.id.split(".")))
            first = news
