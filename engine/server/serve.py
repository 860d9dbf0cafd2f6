"""From settings to a served engine: load target and drafts, connect the link, listen until told to stop."""

import asyncio
import logging
import platform
import signal
import socket
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import uvicorn

from engine.core.config import ModelError
from engine.core.engine import Engine
from engine.link import EngineDescription, Link, SettingsError, StaticLink
from engine.link.logs import configure, uvicorn_log
from engine.link.messages import NO_DRAFT
from engine.link.trace import Traced, Tracer
from engine.models import FetchError, fetch_smollm2
from engine.server.app import create_app
from engine.server.host import Host
from engine.server.settings import SMOLLM2, EngineSettings

_log = logging.getLogger(__name__)

EAGLE = Path(__file__).parents[1] / "data" / "smollm2-eagle"


def sources(settings: EngineSettings) -> tuple[Path, dict[str, str]]:
    """The target's folder and the drafts by name. Raises `SettingsError` for drafts that clash or a missing folder."""
    drafts: dict[str, str] = {}
    for item in settings.drafts:
        name, named, folder = item.partition("=")
        if not named and "/" in item:
            name, folder = Path(item).expanduser().resolve().name, item
        if name in drafts:
            raise SettingsError(f"drafts names {name!r} twice; each draft needs a name of its own")
        drafts[name] = folder or name
    if settings.target == SMOLLM2:
        target = fetch_smollm2()
        drafts = drafts or {"ngram": "ngram", **({"eagle": str(EAGLE)} if (EAGLE / "config.json").is_file() else {})}
    else:
        target = Path(settings.target).expanduser()
        if not target.is_dir():
            raise SettingsError(
                f"target is {settings.target!r}; allowed: {SMOLLM2}, or a Hugging Face folder that exists"
            )
    drafts = drafts or {"ngram": "ngram"}
    if settings.static_draft not in (NO_DRAFT, *drafts):
        names = ", ".join((NO_DRAFT, *drafts))
        raise SettingsError(f"static_draft is {settings.static_draft!r}; allowed: {names}")
    return target, drafts


def processor() -> str:
    """The CPU's own name, or the architecture where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def hardware(engine: Engine) -> str:
    """What step times depend on besides the model: engines of a pool agree on it."""
    if engine.device.type == "cuda":
        name = torch.cuda.get_device_name(engine.device)
    else:
        name = f"{processor()}, {torch.get_num_threads()} threads"
    return f"{name}, {str(engine.dtype).removeprefix('torch.')}"


def release() -> str:
    """The installed version of this package."""
    try:
        return version("adaptive-k-controller")
    except PackageNotFoundError:
        return "from a source tree"


def describe(engine: Engine, settings: EngineSettings, model: str) -> EngineDescription:
    """How the engine presents itself to its controller."""
    return EngineDescription(
        software=f"adaptive-k torch engine {release()}",
        target=model,
        hardware=hardware(engine),
        drafts=engine.draft_infos(),
        k_values=sorted(set(settings.k_values) | {0}),
        static=settings.static,
        max_batch=settings.max_batch,
        switches=True,
    )


def build(settings: EngineSettings) -> Host:
    """Load everything. Raises `SettingsError`, `ModelError` or `FetchError`, each with a message for the operator."""
    target, drafts = sources(settings)
    engine = Engine(
        target,
        drafts,
        max_batch=settings.max_batch,
        max_len=settings.max_len,
        dtype=settings.dtype,
        threads=settings.threads or 0,
    )
    model = settings.served_name or (SMOLLM2 if settings.target == SMOLLM2 else target.resolve().name)
    description = describe(engine, settings, model)
    static = settings.static
    link = StaticLink(static.draft, static.k) if settings.offline else Link.connect(settings, description)
    _log.info("serving %s on %s with drafts %s", model, description.hardware, ", ".join(drafts))
    host = Host(engine, link, settings, model)
    if settings.offline and settings.trace_dir is not None:
        # Around the desk, so that pinned requests are traced too: without a controller they can mislead nobody.
        tracer = Tracer(settings.trace_dir, settings.engine_id, uuid.uuid4().hex, settings.trace_buffer)
        engine.link = Traced(host.desk, tracer)
    return host


class Server(uvicorn.Server):
    """uvicorn's server, which at the end of the time to drain gives up what still runs instead of cutting it off."""

    def __init__(self, config: uvicorn.Config, host: Host) -> None:
        super().__init__(config)
        self._host = host

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let answers finish for `drain` seconds, tell the clients of the rest."""
        timer = asyncio.get_running_loop().call_later(self._host.settings.drain, self._host.give_up)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def server(host: Host) -> Server:
    """The HTTP server over `host`; it stops by itself when the engine fails."""
    settings = host.settings
    config = uvicorn.Config(
        create_app(host),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=round(settings.drain) + 5,  # a last resort
        **uvicorn_log(settings.log_format),
    )
    made = Server(config, host)

    def stop() -> None:
        made.should_exit = True

    host.on_failure = stop
    return made


def run(settings: EngineSettings) -> None:
    """What `akc engine` does. Returns after SIGINT or SIGTERM, when running answers are out or `drain` has passed.

    Exits with status 1 and a message when the engine cannot be built or has failed, with 3 when it cannot listen.
    """
    known: dict[str, object] = {"engine": settings.engine_id}
    if not settings.offline:
        known["pool"] = settings.pool
    configure(settings.log_level, settings.log_format, known)
    try:
        host = build(settings)
    except (SettingsError, ModelError, FetchError) as error:
        sys.exit(f"akc engine: {error}")
    known["policy_version"] = lambda: host.desk.status().get("version")
    # uvicorn raises the signal that stopped it again when it is done; everything is closed by then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    made = server(host)
    made.run()
    if host.failure is not None:
        sys.exit(f"akc engine: the engine has stopped: {host.failure}")
