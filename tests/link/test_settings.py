"""Settings: precedence of their sources, and errors that a person can act on."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from engine.link.messages import POOL_NAMES
from engine.link.settings import LinkSettings, SettingsError, load, masked


class Inner(msgspec.Struct, frozen=True):
    rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    names: list[str] = []


class Outer(msgspec.Struct, frozen=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8080
    mode: Literal["fast", "safe"] = "safe"
    log: bool = False
    folder: Path | None = None
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.mode == "fast" and self.log:
            raise ValueError("log is true with mode 'fast'; allowed only with 'safe'")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "akc.toml"
    path.write_text('port = 1\nmode = "fast"\n[inner]\nrate = 0.25\n')
    return path


def test_flags_beat_environment_beats_file_beats_defaults(file: Path) -> None:
    assert load(Outer, env={}) == Outer()
    assert load(Outer, file=file, env={}) == Outer(1, "fast", inner=Inner(0.25))
    env = {"AKC_PORT": "2", "AKC_INNER__RATE": "0.75", "AKC_INNER__NAMES": "a, b"}
    assert load(Outer, file=file, env=env) == Outer(2, "fast", inner=Inner(0.75, ["a", "b"]))
    flags = {"port": 3, "mode": None, "inner.rate": 1.0}
    assert load(Outer, file=file, env=env, flags=flags) == Outer(3, "fast", inner=Inner(1.0, ["a", "b"]))


def test_text_from_the_environment_becomes_the_field_s_type(tmp_path: Path) -> None:
    settings = load(Outer, env={"X_LOG": "true", "X_FOLDER": str(tmp_path)}, prefix="X_")
    assert settings == Outer(log=True, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": {"AKC_PORT": "0"}}, "port is '0' (variable AKC_PORT); allowed: whole number from 1 to 65535"),
        ({"env": {"AKC_LOG": "perhaps"}}, "log is 'perhaps' (variable AKC_LOG); allowed: true or false"),
        ({"flags": {"mode": "slow"}}, "mode is 'slow' (argument); allowed: 'fast' or 'safe'"),
        ({"flags": {"inner.rate": 2}}, "inner.rate is 2 (argument); allowed: number above 0, at most 1"),
        ({"flags": {"inner": 2}}, "inner is 2 (argument); allowed: a table of settings"),
        ({"flags": {"prot": 2}}, "prot is not a setting (argument); did you mean port?"),
        ({"flags": {"mode": "fast", "log": True}}, "Outer: log is true with mode 'fast'; allowed only with 'safe'"),
    ],
)
def test_errors_name_key_value_source_and_what_is_allowed(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(Outer, **{"env": {}, **arguments})  # type: ignore[arg-type]  # one table for three parameters
    assert str(error.value) == message


def test_unknown_keys_in_the_file_are_errors_with_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[inner]\nrates = 0.1\n")
    with pytest.raises(SettingsError, match=r"inner\.rates is not a setting .*did you mean inner\.rate\?"):
        load(Outer, file=path, env={})
    path.write_text("colour = 1\n")
    with pytest.raises(SettingsError, match=r"colour is not a setting .*allowed: port, mode, log, folder, inner"):
        load(Outer, file=path, env={})


def test_a_file_that_is_missing_or_not_toml_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'.*none\.toml' cannot be read: No such file"):
        load(Outer, file=tmp_path / "none.toml", env={})
    bad = tmp_path / "bad.toml"
    bad.write_text("port = \n")
    with pytest.raises(SettingsError, match=r"is not valid TOML: .*line 1"):
        load(Outer, file=bad, env={})


def test_the_usual_name_of_the_redis_variable_works_and_ours_beats_it() -> None:
    env = {"REDIS_URL": "redis://a:1/0"}
    assert load(LinkSettings, env=env).redis_url == "redis://a:1/0"
    assert load(LinkSettings, env={**env, "AKC_REDIS_URL": "redis://b:2/0"}).redis_url == "redis://b:2/0"


def test_a_password_never_reaches_an_error_message() -> None:
    with pytest.raises(SettingsError) as error:
        load(LinkSettings, env={"AKC_REDIS_URL": "http://me:secret@host/0"})
    assert "secret" not in str(error.value)
    assert "me:***@host" in str(error.value)
    assert masked("redis://:secret@host:1") == "redis://:***@host:1"
    assert masked("redis://host:1") == "redis://host:1"
    for query in (
        "sentinel_password=secret&service=a",
        "service=a&sentinel_password=secret",
        "username=u&PASSWORD=secret",
    ):
        told = masked(f"rediss+sentinel://me:secret@a:1,b:2/0?{query}")
        assert "secret" not in told
        assert told.startswith("rediss+sentinel://me:***@a:1,b:2/0?")
        assert "password=***" in told.lower()


def test_k_without_a_draft_is_zero() -> None:
    assert LinkSettings(static_k=5).static.k == 0
    assert LinkSettings(static_draft="ngram", static_k=5).static.k == 5


def test_an_engine_has_an_id_even_where_none_is_set() -> None:
    assert LinkSettings(engine="gpu-7").engine_id == "gpu-7"
    assert 1 <= len(LinkSettings().engine_id) <= 64


@pytest.mark.parametrize("name", ["my pool", "a/b", "-a", "a" * 65, "a\n", "p{x}"])
def test_an_engine_s_pool_has_a_name_that_controllers_serve(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(LinkSettings, env={"AKC_POOL": name})
    told = f"pool is {name!r} (variable AKC_POOL); allowed: {POOL_NAMES}"
    assert str(error.value) == told
