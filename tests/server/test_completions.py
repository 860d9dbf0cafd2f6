"""Completions over real HTTP with the official client: text, streams, limits, stops, labels, and what is refused."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import Served
from tests.server.tiny import MAX_LEN

CODE = "def add(a, b):\n    return"


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as made:
        yield made


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": CODE, "temperature": 0, **fields}
    answer = http.post("/v1/completions", json=body, headers={"X-AKC-Explain": "1"})
    assert answer.status_code == 200, answer.text
    data: dict[str, Any] = answer.json()
    return data


def refused(http: httpx.Client, body: Any, status: int = 400, path: str = "/v1/completions") -> dict[str, Any]:
    answer = http.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_a_chat_answer_has_the_official_shape(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.host.model, messages=[{"role": "user", "content": "Tell me a story"}], max_completion_tokens=12
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert not hasattr(answer, "akc")


def test_a_stream_spells_the_same_text_as_the_whole_answer(client: openai.OpenAI, served: Served) -> None:
    for prompt in ("Tell me a story", CODE, "今日は"):
        wanted: dict[str, Any] = {
            "model": served.host.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 60,
            "temperature": 0,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**wanted)
        chunks = list(client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
        assert pieces[0].delta.role == "assistant"
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == whole.choices[0].finish_reason == "length"
        assert chunks[-1].usage == whole.usage
        assert len({chunk.id for chunk in chunks}) == 1


def test_a_text_stream_ends_with_done_and_carries_the_account_when_asked(http: httpx.Client) -> None:
    whole = complete(http, max_tokens=20, ignore_eos=True)
    body = {"prompt": CODE, "temperature": 0, "max_tokens": 20, "ignore_eos": True, "stream": True}
    answer = http.post("/v1/completions", json=body, headers={"X-AKC-Explain": "1"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert "usage" not in chunks[0]
    assert chunks[-1]["akc"]["steps"] == whole["akc"]["steps"]


def test_drafts_change_the_steps_but_not_the_greedy_text(http: httpx.Client) -> None:
    plain = complete(http, max_tokens=60, ignore_eos=True, vllm_xargs={"akc_draft": "none", "akc_k": 0})
    for k in (1, 2, 5):
        pinned = complete(http, max_tokens=60, ignore_eos=True, vllm_xargs={"akc_draft": "ngram", "akc_k": k})
        assert pinned["choices"] == plain["choices"]
        assert pinned["akc"]["draft"] == "ngram"
        assert pinned["akc"]["origin"] == "pin"
        assert pinned["akc"]["drafted"] <= k * pinned["akc"]["steps"]
    assert plain["akc"]["drafted"] == 0
    # The first token comes with the prompt's pass, each other one with a step of its own.
    assert plain["akc"]["steps"] == plain["akc"]["tokens"] == 59


def test_tokens_of_the_account_are_those_of_steps_with_k_plus_one_at_most(http: httpx.Client) -> None:
    akc = complete(http, max_tokens=60, ignore_eos=True)["akc"]
    assert akc["draft"] == "ngram"
    assert akc["origin"] == "policy"
    assert akc["tokens"] == 59 == akc["steps"] + akc["accepted"]
    assert akc["row_seconds"] > 0


def test_a_stop_string_ends_the_text_before_it_wherever_it_falls(http: httpx.Client) -> None:
    text = complete(http, max_tokens=60, ignore_eos=True)["choices"][0]["text"]
    for start, size in ((5, 1), (9, 3), (20, 2), (31, 5)):
        stop = text[start : start + size]
        choice = complete(http, max_tokens=60, ignore_eos=True, stop=["never", stop])["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_the_models_own_end_is_a_stop(http: httpx.Client) -> None:
    # Random weights meet the end token somewhere: the first prompt that does, within a few of them, will do.
    rows = (complete(http, prompt=[i, 5, 6, 7], max_tokens=120) for i in range(10, 60))
    ended = next(row for row in rows if row["choices"][0]["finish_reason"] == "stop")
    assert ended["usage"]["completion_tokens"] < 120
    ignored = complete(http, prompt=CODE, max_tokens=120, ignore_eos=True)
    assert ignored["usage"]["completion_tokens"] == 120


def test_the_same_seed_repeats_and_another_differs(http: httpx.Client) -> None:
    def sampled(seed: int) -> str:
        fixed = {"akc_draft": "none", "akc_k": 0}
        row = complete(http, temperature=1.0, top_k=50, top_p=0.95, seed=seed, max_tokens=30, vllm_xargs=fixed)
        return str(row["choices"][0]["text"])

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_unset_max_tokens_is_the_operators_and_fits_the_context(http: httpx.Client) -> None:
    assert complete(http, ignore_eos=True)["usage"]["completion_tokens"] == 16
    long = complete(http, prompt=[5] * (MAX_LEN - 3), ignore_eos=True)
    assert long["usage"]["completion_tokens"] == 3


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(http: httpx.Client) -> None:
    error = refused(http, {"prompt": [5] * 250, "max_tokens": 50})
    assert error["code"] == "context_length_exceeded"
    assert "250 tokens and max_tokens is 50, 300 together" in error["message"]
    assert str(MAX_LEN) in error["message"]
    error = refused(http, {"prompt": [5] * 400})
    assert "400 tokens" in error["message"]
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x", "n": 2}, "n", "one answer"),
        ({"prompt": "x", "logprobs": 5}, "logprobs", "not supported"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens", "int"),
        ({"prompt": ["a", "b"]}, "prompt", "one per request"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [99999999]}, "prompt", "99999999"),
        ({"prompt": "x", "metadata": {"domain": 7}}, "metadata.domain", "string"),
        ({"prompt": "x", "metadata": {"domain": "a\nb"}}, "metadata.domain", "U+000A"),
        ({"prompt": "x", "vllm_xargs": {"domain": "x" * 65}}, "metadata.domain", "65"),
        ({"prompt": "x", "vllm_xargs": {"akc_draft": "eagle", "akc_k": 1}}, "vllm_xargs", "none, ngram"),
        ({"prompt": "x", "vllm_xargs": {"akc_k": 1}}, "vllm_xargs", "go together"),
        (b"{", None, "not valid JSON"),
        (b"\xff\xfe", None, "not valid JSON"),
        (b"[" * 100_000, None, ""),
        ([1, 2], None, "object"),
    ],
)
def test_bad_requests_say_what_is_wrong(http: httpx.Client, body: Any, param: str | None, words: str) -> None:
    error = refused(http, body)
    assert error["param"] == param
    assert words in error["message"]


def test_other_models_and_paths_are_not_found(http: httpx.Client, client: openai.OpenAI) -> None:
    assert "tiny" in refused(http, {"prompt": "x", "model": "gpt-9"}, 404)["message"]
    with pytest.raises(openai.NotFoundError, match="this engine serves 'tiny'"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    refused(http, {}, 404, "/v1/embeddings")
    assert http.get("/v1/completions").status_code == 405


def test_a_huge_body_is_refused_before_it_is_read_whole(http: httpx.Client) -> None:
    assert "8388608" in refused(http, b'"' + b"x" * 9_000_000, 413)["message"]


def test_labels_reach_the_ticket_from_body_and_header_and_the_classifier_fills_in(http: httpx.Client) -> None:
    def fact(headers: dict[str, str], **fields: Any) -> tuple[str, str]:
        body = {"prompt": CODE, "max_tokens": 3, **fields}
        akc = http.post("/v1/completions", json=body, headers={"X-AKC-Explain": "1", **headers}).json()["akc"]
        return akc["domain"], akc["source"]

    assert fact({}, metadata={"domain": " Legal "}) == ("legal", "body")
    assert fact({"X-AKC-Domain": "math"}, vllm_xargs={"domain": "sql"}) == ("sql", "body")
    assert fact({"X-AKC-Domain": "math"}) == ("math", "header")
    assert fact({}) == ("code", "classifier")
    assert fact({}, prompt=[10, 11, 12])[1] == "classifier"
    text = http.get("/metrics").text
    assert 'akc_engine_emitted_tokens_total{domain="legal",draft="ngram"}' in text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(label=st.binary(min_size=1, max_size=70))
def test_random_bytes_as_a_label_never_crash_the_server(http: httpx.Client, label: bytes) -> None:
    body = {"prompt": "x", "max_tokens": 1, "metadata": {"domain": label.decode("latin-1")}}
    assert http.post("/v1/completions", content=json.dumps(body)).status_code in {200, 400}
    header = bytes(b for b in label if b >= 0x20 and b != 0x7F).strip()  # the client sends no others
    answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={b"X-AKC-Domain": header})
    assert answer.status_code in {200, 400}


def test_more_requests_than_rows_queue_and_all_are_answered(http: httpx.Client) -> None:
    with ThreadPoolExecutor(12) as pool:
        rows = list(pool.map(lambda i: complete(http, prompt=[10 + i, 11], max_tokens=20, ignore_eos=True), range(12)))
    assert [row["usage"]["completion_tokens"] for row in rows] == [20] * 12
    alone = complete(http, prompt=[13, 11], max_tokens=20, ignore_eos=True)
    assert rows[3]["choices"] == alone["choices"]


def test_models_health_metrics_and_status(http: httpx.Client, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert http.get("/health").json() == {"status": "ok", "model": "tiny"}
    complete(http, max_tokens=8)
    text = http.get("/metrics").text
    for name in ("akc_engine_step_seconds_bucket", "akc_engine_running_requests", "akc_engine_position_seen_total"):
        assert name in text
    status = http.get("/debug/status").json()
    assert status["max_len"] == MAX_LEN
    assert status["drafts"][0]["kind"] == "ngram"
    assert status["link"]["mode"] == "static"
    assert status["link_errors"] == 0
    assert http.get("/openapi.json").status_code == 200
