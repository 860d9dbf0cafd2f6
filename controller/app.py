"""The HTTP application and the process around it."""

import asyncio
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import Depends, FastAPI

from controller.api import (
    audit,
    decisions,
    document,
    domains,
    engines,
    events,
    health,
    limits,
    policies,
    pools,
    problems,
    router,
    steer,
    whatif,
    whoami,
)
from controller.api.access import LocalNames, is_loopback, reader
from controller.connections import timely
from controller.dashboard import pages, status
from controller.metrics import registry
from controller.settings import ControllerSettings
from controller.store import connect
from controller.supervisor import Supervisor
from controller.tokens import Tokens, create
from engine.link.logs import configure, uvicorn_log
from engine.link.settings import SettingsError, masked

log = logging.getLogger("controller")

KEEP_ALIVE_SECONDS = 5  # that a connection may be idle between two requests

# What holds no figures needs no token: the page asks for one.
FREE = (health.router, whoami.router, pages.router)
# In this order: a domain's path takes all that follows it.
_READ = (pools, router, events, policies, decisions, engines, audit, steer, whatif, domains, status)
ASKING = (health.measured, *(module.router for module in _READ))


def create_app(settings: ControllerSettings) -> FastAPI:
    """The application; while it is up, its supervisor serves the pools. `app.state.supervisor` is made at its start.

    Raises `TokenError` for a tokens file that cannot be used.
    """
    tokens = _tokens(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervisor = Supervisor(settings)
        app.state.supervisor = supervisor
        app.state.registry = registry(supervisor, _version())
        serving = asyncio.create_task(supervisor.run(), name="supervisor")
        try:
            yield
        finally:
            supervisor.stop()
            await serving

    app = FastAPI(
        title="Adaptive K controller",
        summary="Learns the best draft and K of speculative decoding per domain and load, while engines serve.",
        version=_version(),
        lifespan=lifespan,
        responses=problems.documented(422, 500),
        docs_url=None,  # FastAPI's loads scripts from another host; `pages` has one that does not
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.ending = False  # the process is to end: streams that would never end do
    app.state.listeners = 0  # of event streams
    app.state.tokens, app.state.open_reads = tokens, settings.open_reads or not tokens.configured
    problems.install(app, [*FREE, *ASKING])
    document.install(app, [*FREE, *ASKING])
    app.add_middleware(limits.BodyLimit, seconds=settings.request_seconds)
    if not tokens.configured:
        app.add_middleware(LocalNames)
    for one in FREE:
        app.include_router(one)
    for one in ASKING:
        app.include_router(one, dependencies=[Depends(reader)], responses=problems.documented(401, 403))
    return app


def _tokens(settings: ControllerSettings) -> Tokens:
    if settings.tokens_file is None:
        return Tokens(None)
    path = Path(settings.tokens_file)
    if not path.exists() and create(path):
        log.warning("%s made with a random token for 'admin'", path)
    return Tokens(path)


def run(settings: ControllerSettings) -> None:
    """Serve until SIGINT or SIGTERM, then write the last checkpoints, release the leases and return.

    Raises `SettingsError` and `TokenError` before it listens.
    """
    configure(settings.log_level, settings.log_format)
    _check(settings)
    host = _host(settings)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=host,
        port=settings.port,
        http=timely(settings.request_seconds),
        limit_concurrency=settings.max_connections + 1,  # uvicorn refuses from this one on
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_level=settings.log_level,
        access_log=False,
        timeout_graceful_shutdown=5,
        server_header=False,
        **uvicorn_log(settings.log_format),
    )
    _Server(config, app).run()


def _check(settings: ControllerSettings) -> None:
    """Raises `SettingsError` for an address or a file of authorities that no connection to Redis can be made with."""
    try:
        connect(settings.redis_url)
    except ValueError as error:
        raise SettingsError(f"redis_url is {masked(settings.redis_url)!r}: {error}") from None
    if settings.redis_ca_file is not None:
        try:
            ssl.create_default_context(cafile=settings.redis_ca_file)
        except OSError as error:  # an SSLError is one
            raise SettingsError(
                f"redis_ca_file is {settings.redis_ca_file!r}: {error}; allowed: a PEM file of certificates"
            ) from None


def _host(settings: ControllerSettings) -> str:
    """Where to listen: without tokens on loopback, whatever was asked for. The log says so."""
    if settings.tokens_file is not None:
        return settings.host
    asked = "" if is_loopback(settings.host) else f", not on {settings.host!r} as asked for"
    log.warning(
        "no tokens are configured: listening on loopback only%s, and everybody on this machine may steer; set "
        "AKC_TOKENS_FILE to say who may",
        asked,
    )
    return settings.host if is_loopback(settings.host) else "127.0.0.1"


class _Server(uvicorn.Server):
    """Ends with exit code 0 when asked to; uvicorn itself would die of the signal after its work is done."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        self._app.state.ending = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _version() -> str:
    try:
        return version("adaptive-k-controller")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
