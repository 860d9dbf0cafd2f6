"""The HTTP application and the process around it."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version

import uvicorn
from fastapi import FastAPI

from controller.api import decisions, domains, engines, health, policies, pools, problems, router
from controller.dashboard import status
from controller.metrics import registry
from controller.settings import ControllerSettings
from controller.supervisor import Supervisor

log = logging.getLogger("controller")


def create_app(settings: ControllerSettings) -> FastAPI:
    """The application; while it is up, its supervisor serves the pools. `app.state.supervisor` is made at its start."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervisor = Supervisor(settings)
        app.state.supervisor = supervisor
        app.state.registry = registry(supervisor)
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
        docs_url=None,  # its page loads scripts from another host; /openapi.json has the same content
        redoc_url=None,
    )
    problems.install(app)
    for module in (health, pools, policies, domains, decisions, engines, router, status):
        app.include_router(module.router)
    return app


def run(settings: ControllerSettings) -> None:
    """Serve until SIGINT or SIGTERM, then write the last checkpoints, release the leases and return."""
    level = settings.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.host not in ("127.0.0.1", "localhost", "::1"):
        log.warning("listening on %s: everybody who reaches this address can read; nobody can write", settings.host)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=False,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    _Server(config).run()


class _Server(uvicorn.Server):
    """Ends with exit code 0 when asked to; uvicorn itself would die of the signal after its work is done."""

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
