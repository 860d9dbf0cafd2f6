"""A typed client of the controller's API, for scripts and for the command line.

>>> Client("http://127.0.0.1:8080").pool_url("qwen-72b.awq")
'/v1/pools/qwen-72b.awq'
"""

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from controller.api.audit import AuditEntry
from controller.api.domains import DomainSummary
from controller.api.events import Moment
from controller.api.pools import PoolName, PoolSummary
from controller.api.steer import OrdersView
from controller.api.whatif import Answer
from controller.view import DecisionRecord, Domain, Engine
from engine.link.messages import Mode, Policy, Regime, decode_policy

T = TypeVar("T")

QUIET_SECONDS = 45.0  # a stream says something every 15 s, if only a comment: three missed mean that nobody is there


class ControllerError(RuntimeError):
    """The controller cannot be reached, or refused. `status`: of HTTP, 0 where it was not reached."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status, self.title, self.detail = status, title, detail


class Notice(NamedTuple):
    """One event of the stream: its id (for `since`), kind (`state`, `decision`, `order`) and content."""

    id: str
    kind: str
    data: Any


class Client:
    """`url`: the controller's address; `token`: a bearer token, where it asks for one. Every method may raise
    `ControllerError`; those that write return the orders now in force."""

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 10.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)
        except httpx.InvalidURL as error:
            raise ControllerError(0, f"{url!r} is no address of a controller", str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @staticmethod
    def pool_url(pool: str) -> str:
        """Path of a pool."""
        return f"/v1/pools/{quote(pool, safe='')}"

    def pools(self) -> list[PoolName]:
        """All pools that the controller knows."""
        return self._get(list[PoolName], "/v1/pools")

    def pool(self, pool: str) -> PoolSummary:
        """One pool at a glance."""
        return self._get(PoolSummary, self.pool_url(pool))

    def policy(self, pool: str) -> Policy:
        """The policy in force."""
        return decode_policy(self._ask("GET", f"{self.pool_url(pool)}/policy").content)

    def domains(self, pool: str) -> list[DomainSummary]:
        """Its domains in brief, one entry a regime."""
        return self._get(list[DomainSummary], f"{self.pool_url(pool)}/domains")

    def domain(self, pool: str, domain: str) -> list[Domain]:
        """One domain in full, one entry a regime."""
        return self._get(list[Domain], f"{self.pool_url(pool)}/domains/{quote(domain)}")

    def engines(self, pool: str) -> list[Engine]:
        """Its engines, live ones first."""
        return self._get(list[Engine], f"{self.pool_url(pool)}/engines")

    def decisions(self, pool: str, limit: int = 50) -> list[DecisionRecord]:
        """The newest decisions that changed something, newest first."""
        return self._get(list[DecisionRecord], f"{self.pool_url(pool)}/decisions", limit=limit)

    def history(self, pool: str, **bounds: float) -> list[Moment]:
        """How it went; bounds: `since`, `until` (Unix seconds), `points`."""
        return self._get(list[Moment], f"{self.pool_url(pool)}/history", **bounds)

    def audit(
        self, pool: str, limit: int = 100, *, before: str | None = None, who: str | None = None
    ) -> list[AuditEntry]:
        """Who changed what, newest first; `before`: only entries older than this id; `who`: only theirs."""
        bounds = {"limit": limit, "before": before, "who": who}
        given = {name: value for name, value in bounds.items() if value is not None}
        return self._get(list[AuditEntry], f"{self.pool_url(pool)}/audit", **given)

    def orders(self, pool: str) -> OrdersView:
        """What operators have ordered."""
        return self._get(OrdersView, f"{self.pool_url(pool)}/orders")

    def set_mode(self, pool: str, mode: Mode, share: float | None = None, why: str = "") -> OrdersView:
        """Set the mode."""
        return self._put(OrdersView, f"{self.pool_url(pool)}/mode", {"mode": mode, "share": share, "why": why})

    def pin(
        self,
        pool: str,
        domain: str,
        draft: str,
        k: int,
        *,
        regime: Regime | None = None,
        until: float | None = None,
        why: str = "",
    ) -> OrdersView:
        """Hold a domain on one arm, until a time (Unix seconds) or until it is unpinned."""
        body = {"draft": draft, "k": k, "regime": regime, "until": until, "why": why}
        return self._put(OrdersView, f"{self.pool_url(pool)}/pins/{quote(domain)}", body)

    def unpin(self, pool: str, domain: str, *, regime: Regime | None = None, why: str = "") -> OrdersView:
        """Let a domain go back to what is learned."""
        params = {"why": why, **({} if regime is None else {"regime": regime})}
        answer = self._ask("DELETE", f"{self.pool_url(pool)}/pins/{quote(domain)}", params=params)
        return _read(OrdersView, answer)

    def reset(self, pool: str, domain: str | None = None, draft: str | None = None, why: str = "") -> OrdersView:
        """Learn a domain, a draft, or a draft in a domain anew."""
        body = {"domain": domain, "draft": draft, "why": why}
        return _read(OrdersView, self._ask("POST", f"{self.pool_url(pool)}/resets", json=body))

    def retire(self, pool: str, draft: str, retired: bool = True, why: str = "") -> OrdersView:
        """Leave a draft out of policies, or bring it back."""
        return self._put(
            OrdersView, f"{self.pool_url(pool)}/drafts/{quote(draft, safe='')}", {"retired": retired, "why": why}
        )

    def measure(
        self,
        pool: str,
        minutes: float,
        windows: int = 20,
        *,
        share: float = 0.5,
        against: Literal["static", "none"] = "static",
        why: str = "",
    ) -> OrdersView:
        """Measure the gain over a fixed choice; what comes out is `measured_gain` of the pool."""
        body = {"minutes": minutes, "windows": windows, "share": share, "against": against, "why": why}
        return self._put(OrdersView, f"{self.pool_url(pool)}/measure", body)

    def stop_measuring(self, pool: str, why: str = "") -> OrdersView:
        """End the measurement; what is complete counts."""
        return _read(OrdersView, self._ask("DELETE", f"{self.pool_url(pool)}/measure", params={"why": why}))

    def what_if(
        self,
        pool: str,
        load: int,
        mix: Mapping[str, float] | None = None,
        pin: tuple[str, str, int] | None = None,
        *,
        regime: Regime | None = None,
    ) -> Answer:
        """What arms would bring at a load; `pin`: (domain, draft, K), the only arm asked about, in one `regime` or in
        both. Raises `ValueError` for a regime without a pin."""
        if regime is not None and pin is None:
            raise ValueError(f"regime is {regime!r} without a pin; allowed: None, then all regimes are answered")
        held = None if pin is None else {"domain": pin[0], "draft": pin[1], "k": pin[2], "regime": regime}
        body = {"load": load, "mix": None if mix is None else dict(mix), "pin": held}
        return _read(Answer, self._ask("POST", f"{self.pool_url(pool)}/what-if", json=body))

    def events(self, pool: str, since: str | None = None, *, quiet: float | None = None) -> Iterator[Notice]:
        """What happens, as it happens, from the event after `since` on; ends when the controller ends. Raises
        `ControllerError` too where not even a keep-alive comment came for `quiet` seconds (None: `QUIET_SECONDS`): ask
        again, `since` the last event that came."""
        quiet = QUIET_SECONDS if quiet is None else quiet
        headers = {} if since is None else {"Last-Event-ID": since}
        timeout = httpx.Timeout(10.0, read=quiet)
        try:
            with self._http.stream("GET", f"{self.pool_url(pool)}/events", headers=headers, timeout=timeout) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _refusal(answer)
                fields: dict[str, str] = {}
                for line in answer.iter_lines():
                    name, _, value = line.partition(":")
                    if line and name:
                        fields[name] = value.removeprefix(" ")
                    elif not line and "data" in fields:
                        yield Notice(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
                        fields = {}
        except httpx.ReadTimeout:
            silent = f"nothing came for {quiet:g} s, no keep-alive either"
            raise ControllerError(0, f"The event stream of {self._http.base_url} is silent", silent) from None
        except httpx.TransportError as error:
            raise self._unreached(error) from None

    def _get(self, kind: type[T], path: str, **params: float | str) -> T:
        return _read(kind, self._ask("GET", path, params=params))

    def _put(self, kind: type[T], path: str, body: Mapping[str, object]) -> T:
        return _read(kind, self._ask("PUT", path, json=body))

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **given)
        except httpx.TransportError as error:
            raise self._unreached(error) from None
        if answer.status_code >= 400:
            raise _refusal(answer)
        return answer

    def _unreached(self, error: httpx.TransportError) -> ControllerError:
        return ControllerError(0, f"No controller answers at {self._http.base_url}", str(error))


def _read(kind: type[T], answer: httpx.Response) -> T:
    try:
        return TypeAdapter(kind).validate_json(answer.content)
    except ValidationError as error:
        what = f"{answer.request.url} did not answer as this version expects; are both of the same version?"
        raise ControllerError(answer.status_code, what, str(error).splitlines()[0]) from None


def _refusal(answer: httpx.Response) -> ControllerError:
    try:
        problem = answer.json()
        return ControllerError(answer.status_code, str(problem["title"]), str(problem["detail"]))
    except (ValueError, KeyError, TypeError):
        return ControllerError(answer.status_code, f"HTTP {answer.status_code}", f"{answer.request.url}")
