"""From a request to what it is about and who asks: the supervisor, a pool's loop, its view, a token's holder."""

import ipaddress
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.api.problems import ProblemError, answer
from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.supervisor import Supervisor
from controller.tokens import Role, Tokens
from controller.view import PoolView

LOCAL = "local"  # who steers where no tokens are configured
NOT_LOCAL = "Not from here"  # the title of a refusal that no token would lift

_bearer = HTTPBearer(auto_error=False, description="A token of the controller's tokens file")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def supervisor(request: Request) -> Supervisor:
    """The process's supervisor."""
    return cast(Supervisor, request.app.state.supervisor)


SupervisorOf = Annotated[Supervisor, Depends(supervisor)]


def settings_of(request: Request) -> ControllerSettings:
    """The process's settings."""
    return cast(ControllerSettings, request.app.state.settings)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or a name that a service listens on. Names are the same in any case
    and with the dot of the root at their end.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "LocalHost.", "0.0.0.0", "gpu-1")]
    [True, True, True, True, False, False]
    """
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def asked_host(scope: Scope) -> str:
    """The name or address in the request's `Host`, without its port; empty where there is none.

    >>> [asked_host({"headers": [(b"host", host)]}) for host in (b"localhost:8080", b"[::1]:80", b"evil.example", b"")]
    ['localhost', '[::1]', 'evil.example', '']
    """
    host: str = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host


class LocalNames:
    """Answers 403 to requests that call this machine by other than a loopback name or address, but for the probes.

    For a service without tokens, which listens on loopback only: a page from elsewhere whose own name is made to point
    here (DNS rebinding) is of that name's origin to the browser, and could read and steer.
    """

    PROBES = ("/healthz", "/readyz")  # an orchestrator may call them by any name, and they hold no figures

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in self.PROBES or is_loopback(host := asked_host(scope)):
            await self._app(scope, receive, send)
            return
        what = (
            f"Host {host!r}; without tokens only loopback is allowed: localhost, 127.0.0.1, [::1]. Others need tokens"
        )
        await answer(403, NOT_LOCAL, f"{what} (AKC_TOKENS_FILE)")(scope, receive, send)


def holder(request: Request, credentials: Credentials, needed: Role) -> str:
    """Who holds the token that was sent, or `local` where none are configured. 401, and 403 for another role."""
    tokens = cast(Tokens, request.app.state.tokens)
    if not tokens.configured:
        return LOCAL  # `LocalNames` has seen to where it comes from
    holder = None if credentials is None else tokens.holder(credentials.credentials)
    if holder is None:
        what = "No token was sent" if credentials is None else "The token is not known"
        raise ProblemError(
            401, "Who are you?", f"{what}; send 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
        )
    if needed == "admin" and holder.role != "admin":
        raise ProblemError(403, "Not yours to do", f"Token {holder.name!r} has role 'read'; needed: 'admin'")
    return holder.name


def reader(request: Request, credentials: Credentials) -> None:
    """Lets pass who may read."""
    if not request.app.state.open_reads:
        holder(request, credentials, "read")


def admin(request: Request, credentials: Credentials) -> str:
    """The name of who steers. 401 and 403 for everybody else."""
    return holder(request, credentials, "admin")


AdminOf = Annotated[str, Depends(admin)]


def pool_loop(pool: str, known: SupervisorOf) -> PoolLoop:
    """The loop of the pool named in the path. 404 when there is none."""
    loop = known.pools.get(pool)
    if loop is None:
        names = ", ".join(repr(name) for name in sorted(known.pools)) or "none yet"
        raise ProblemError(404, "No such pool", f"There is no pool {pool!r}; known pools: {names}")
    return loop


LoopOf = Annotated[PoolLoop, Depends(pool_loop)]


def pool_view(loop: LoopOf) -> PoolView:
    """What is known of the pool. 503 while another replica leads it or nothing has been read yet."""
    view = loop.view
    if view is None:
        raise ProblemError(503, "Nothing to show yet", f"{loop.explain()}", {"Retry-After": "2"})
    return view


ViewOf = Annotated[PoolView, Depends(pool_view)]
