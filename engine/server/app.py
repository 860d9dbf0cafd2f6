"""The HTTP application: OpenAI-compatible completions over one engine, with health, metrics and a status.

Every request becomes a job on the engine's thread. What the client is told never depends on speculation: drafts change
how fast tokens come, not which.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.core.request import SamplingParams
from engine.domains import LabelError, domain_of
from engine.link.messages import NO_DRAFT
from engine.server.answers import ChatShape, Shape, TextShape, Writer
from engine.server.body import read_body
from engine.server.desk import Pin
from engine.server.errors import ApiError, invalid
from engine.server.host import Host
from engine.server.job import Job
from engine.server.metrics import EngineCollector
from engine.server.schema import ChatRequest, CompletionRequest, Sampling

EXPLAIN = "x-akc-explain"
CLIENT_GONE = 499  # as proxies log it; nobody receives it


def _documented(kind: type[Sampling]) -> dict[str, Any]:
    schemas, components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    schema = components.get(kind.__name__, schemas[0])
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {**schema, "$defs": {}}}}}}


class Requests:
    """From a checked body to a running job: label, room, place in the queue."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def room(self, prompt: int, asked: int | None) -> int:
        """Tokens to generate at most, after a prompt of `prompt` tokens. Raises a 400 that names both numbers."""
        limit = self._host.max_len
        if prompt < 1:
            raise invalid("the prompt is empty; at least one token is needed", "prompt")
        if prompt + (asked or 1) > limit:
            wanted = f"the prompt has {prompt} tokens" + (f" and max_tokens is {asked}" if asked else "")
            total = f", {prompt + asked} together" if asked else ""
            message = f"{wanted}{total}; this model's context is {limit} tokens, for prompt and answer"
            raise invalid(message, "max_tokens" if prompt < limit else "prompt", "context_length_exceeded")
        return asked or min(self._host.settings.max_tokens, limit - prompt)

    def check_queue(self) -> None:
        """Raise a 429 with Retry-After when the queue is full, a 503 when the engine does not run."""
        host = self._host
        if host.failure is not None:
            raise ApiError(503, f"the engine has stopped: {host.failure}", code="engine_stopped")
        _, waiting = host.load()
        if waiting >= max(1, host.settings.max_queue):  # a request on its way to a free row counts as waiting
            after = math.ceil(host.seconds_to_slot())
            raise ApiError(
                429,
                f"{waiting} requests wait already, as many as max_queue allows; try again in {after} s",
                code="queue_full",
                headers={"Retry-After": str(after)},
            )

    def pin(self, body: Sampling) -> Pin | None:
        """The draft and K that the client holds its request to."""
        extras = body.vllm_xargs
        if extras is None or (extras.akc_draft is None and extras.akc_k is None):
            return None
        if extras.akc_draft is None or extras.akc_k is None:
            raise invalid("akc_draft and akc_k go together; one of them is missing", "vllm_xargs")
        if not self._host.settings.pins:
            raise invalid("akc_draft and akc_k are switched off on this engine", "vllm_xargs")
        allowed = (NO_DRAFT, *self._host.drafts)
        if extras.akc_draft not in allowed:
            names = ", ".join(allowed)
            raise invalid(f"akc_draft is {extras.akc_draft!r}; this engine has {names}", "vllm_xargs")
        return Pin(extras.akc_draft, extras.akc_k)

    async def job(self, request: Request, body: Sampling, text: str | None, prompt: list[int] | None) -> Job:
        """Start the job of a request. `text` is what the classifier reads and, without `prompt`, what is completed."""
        host = self._host
        if body.model is not None and body.model != host.model:
            raise ApiError(404, f"no model {body.model!r} here; this engine serves {host.model!r}", param="model")
        try:
            domain, source = domain_of(body.label, request.headers, text or "")
        except LabelError as error:
            raise invalid(str(error), "metadata.domain", "invalid_domain") from None
        if prompt is None:
            if isinstance(body, ChatRequest):
                turns = [{"role": message.role, "content": message.text} for message in body.messages]
                prompt = await run_in_threadpool(host.encode_chat, turns)
            else:
                prompt = await run_in_threadpool(host.encode, text or "")
        limit = self.room(len(prompt), body.limit)
        pin = self.pin(body)
        self.check_queue()
        params = SamplingParams(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            seed=body.seed,
            stop=body.stops,
            max_tokens=limit,
            ignore_eos=bool(body.ignore_eos),
        )
        return host.submit(prompt, params, domain, source, pin)


async def _watch(request: Request, job: Job) -> None:
    # Nobody waits for an answer once the client has hung up, so the engine must not go on with it.
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.abort()


async def _respond(host: Host, request: Request, body: Sampling, job: Job, shape: Shape) -> Response:
    explain = request.headers.get(EXPLAIN, "0") not in ("", "0", "false")
    usage = body.stream_options is not None and body.stream_options.include_usage
    writer = Writer(shape, host.model, job, explain=explain, usage=usage)
    if body.stream:  # the response itself notices a client that leaves, and closes the events
        return StreamingResponse(writer.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    watch = asyncio.create_task(_watch(request, job))
    try:
        data = await writer.whole()
    finally:
        job.abort()
        watch.cancel()
    return Response(data, media_type="application/json", status_code=CLIENT_GONE if job.aborted else 200)


class CountAnswers:
    """ASGI middleware: answers by route and status. Routes, not paths: a client must not be able to invent labels."""

    def __init__(self, app: ASGIApp, answers: Counter[tuple[str, int]]) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through and look at the status."""

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "other")
                self._answers[path, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)


def create_app(host: Host) -> FastAPI:
    """The application over `host`, which it starts and stops."""
    requests = Requests(host)
    answers: Counter[tuple[str, int]] = Counter()
    registry = CollectorRegistry()
    registry.register(EngineCollector(host.desk.meter, host.load, host.desk.status, answers))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        host.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            await run_in_threadpool(host.stop)

    app = FastAPI(
        title="Adaptive K engine",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from another host; /openapi.json has the same content
        redoc_url=None,
    )
    app.add_middleware(CountAnswers, answers=answers)

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
        return ApiError(error.status_code, f"{error.detail}: {request.method} {request.url.path}").response()

    @app.exception_handler(Exception)
    async def _our_error(_: Request, __: Exception) -> JSONResponse:
        return ApiError(500, "an internal error; the engine's log has its traceback").response()

    @app.post("/v1/chat/completions", openapi_extra=_documented(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """One assistant turn, whole or streamed."""
        body = await read_body(request, ChatRequest)
        job = await requests.job(request, body, body.user_text, None)
        return await _respond(host, request, body, job, ChatShape())

    @app.post("/v1/completions", openapi_extra=_documented(CompletionRequest))
    async def completions(request: Request) -> Response:
        """The continuation of one prompt, whole or streamed."""
        body = await read_body(request, CompletionRequest)
        text, ids = body.one_prompt()
        if ids is not None:
            text = host.decode(ids)
        job = await requests.job(request, body, text, ids)
        return await _respond(host, request, body, job, TextShape())

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model served here."""
        row = {"id": host.model, "object": "model", "created": host.created, "owned_by": "adaptive-k"}
        return {"object": "list", "data": [{**row, "max_model_len": host.max_len}]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """That model by its name."""
        if name != host.model:
            raise ApiError(404, f"no model {name!r} here; this engine serves {host.model!r}", param="model")
        return {"id": host.model, "object": "model", "created": host.created, "owned_by": "adaptive-k"}

    @app.get("/health")
    async def health() -> Response:
        """200 while the engine decodes, 503 with the reason once it has stopped."""
        if host.failure is not None:
            return JSONResponse({"status": "stopped", "why": host.failure}, 503)
        return JSONResponse({"status": "ok", "model": host.model})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/debug/status")
    async def status() -> Response:
        """What the engine and its link know about themselves."""
        return Response(msgspec.json.encode(host.status(), enc_hook=str), media_type="application/json")

    return app
