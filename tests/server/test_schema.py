"""Request bodies: what is accepted, what is refused and in which words."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.errors import ApiError, from_msgspec
from engine.server.schema import ChatRequest, CompletionRequest


def chat(**fields: object) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest)


def refusal(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields).check()
    return caught.value


def test_an_ordinary_request_passes() -> None:
    body = chat(temperature=0.5, stop=["a", "b"], max_tokens=5, n=1, logprobs=False, presence_penalty=0, tools=[])
    body.check()
    assert body.stops == ("a", "b")
    assert body.limit == 5


def test_the_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).limit == 7


def test_parts_of_text_are_joined_and_only_the_users_words_are_classified() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "system", "content": "no"}, {"role": "user", "content": parts}])
    assert body.user_text == "ab"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", 2, "one answer"),
        ("best_of", 3, "one answer"),
        ("logprobs", True, "not supported"),
        ("logprobs", 0, "not supported"),
        ("top_logprobs", 5, "not supported"),
        ("tools", [{}], "not supported"),
        ("logit_bias", {"1": 2.0}, "not supported"),
        ("frequency_penalty", 0.5, "supports 0 only"),
        ("response_format", {"type": "json_object"}, "not supported"),
        ("stream_options", {"include_usage": True}, "only allowed when stream"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(field: str, value: object, words: str) -> None:
    error = refusal(**{field: value})
    assert error.status == 400
    assert error.param == field
    assert words in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"vllm_xargs": {"akc_k": 99}}, "vllm_xargs"),
    ],
)
def test_bad_values_name_their_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        chat(**fields)
    error = from_msgspec(caught.value)
    assert error.param == param
    assert error.message.startswith(param)


def test_broken_json_is_called_that() -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(b'{"messages": ', type=ChatRequest)
    assert from_msgspec(caught.value).code == "invalid_json"


def test_label_comes_from_metadata_before_vllm_xargs() -> None:
    assert chat(metadata={"domain": "a"}, vllm_xargs={"domain": "b"}).label == "a"
    assert chat(vllm_xargs={"domain": "b"}).label == "b"
    assert chat(metadata={"user": "me"}).label is None
    with pytest.raises(ApiError, match=r"metadata\.domain is of type int"):
        _ = chat(metadata={"domain": 3}).label


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a", None)),
        (["a"], ("a", None)),
        ([1, 2], (None, [1, 2])),
        ([[1, 2]], (None, [1, 2])),
        ([7], (None, [7])),
    ],
)
def test_one_prompt_as_text_or_ids(prompt: object, expected: tuple[str | None, list[int] | None]) -> None:
    body = msgspec.json.decode(msgspec.json.encode({"prompt": prompt}), type=CompletionRequest)
    assert body.one_prompt() == expected


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [], [1, "a"]])
def test_several_prompts_or_none_are_refused(prompt: object) -> None:
    body = msgspec.json.decode(msgspec.json.encode({"prompt": prompt}), type=CompletionRequest)
    with pytest.raises(ApiError, match="one per request"):
        body.one_prompt()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3)))
def test_any_json_in_any_field_is_decoded_or_refused(value: object) -> None:
    for name in ChatRequest.__struct_fields__:
        with contextlib.suppress(ApiError):
            try:
                body = chat(**{name: value})
            except msgspec.ValidationError as error:
                raise from_msgspec(error) from error
            body.check()
            _ = (body.stops, body.label, body.limit, body.user_text)
