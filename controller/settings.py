"""Everything a controller process can be told, once, at its start: defaults < file < environment < flags.

Read by `engine.link.settings.load(ControllerSettings, ...)`: variables are named AKC_ and the field in capitals, and
`REDIS_URL` is understood as well.
"""

from typing import Annotated, Literal

import msgspec

from engine.link.address import PATTERN
from engine.link.logs import LogFormat
from engine.link.messages import Mode, PoolName
from engine.link.settings import SettingsError

RedisUrl = Annotated[str, msgspec.Meta(pattern=PATTERN, extra={"env": "REDIS_URL"})]


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One controller process. Times are seconds.

    `pools`: the pools to serve; empty means all that engines announce. `decide_seconds`, `decide_frames`: a
    decision is due after so long (sooner for young pools: `engine.link.pace`) or so many frames, whichever comes
    first. `policy_seconds`: how long engines may go on with a policy when the controller is silent; it is renewed
    after a third of that. `lease_seconds`: another replica takes over so long after this one died. `tokens_file`:
    who may read and steer (`controller.tokens`; made with a random admin token where it is not there); without one
    only this machine can reach the service, and everybody on it may steer. `open_reads`: reading needs no token.
    `request_seconds`: a request's head must have arrived so long after it began, and so must its body.
    `max_connections`, `max_listeners`: open at a time, and event streams among them; further ones get 503.
    `mode`: of pools whose operators have not ordered another; `off`: the operators' static choice, and learning
    goes on. `max_tpot_p95`: bound on the time per output token, seconds; 0: none. `draws`: Thompson draws of a
    decision. `seed`: of those draws; for tests.

    >>> ControllerSettings(policy_seconds=0.5)
    Traceback (most recent call last):
    engine.link.settings.SettingsError: policy_seconds is 0.5; allowed: 3 * decide_seconds (3.0) or more
    """

    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    redis_timeout: Annotated[float, msgspec.Meta(ge=1, le=60)] = 5.0
    redis_ca_file: str | None = None
    pools: tuple[PoolName, ...] = ()
    max_pools: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    tokens_file: str | None = None
    open_reads: bool = True
    request_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=600)] = 10.0
    max_connections: Annotated[int, msgspec.Meta(ge=2, le=65_536)] = 512
    max_listeners: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 128
    mode: Mode = "on"
    decide_seconds: Annotated[float, msgspec.Meta(ge=0.02, le=600)] = 1.0
    decide_frames: Annotated[int, msgspec.Meta(ge=1)] = 256
    policy_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 60.0
    lease_seconds: Annotated[float, msgspec.Meta(ge=1, le=600)] = 10.0
    max_tpot_p95: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    draws: Annotated[int, msgspec.Meta(ge=32, le=8192)] = 256
    seed: int | None = None
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        least = 3 * self.decide_seconds
        if self.policy_seconds < least:
            raise SettingsError(
                f"policy_seconds is {self.policy_seconds}; allowed: 3 * decide_seconds ({least}) or more"
            )
        if self.max_listeners >= self.max_connections:
            raise SettingsError(
                f"max_listeners is {self.max_listeners}; allowed: less than max_connections ({self.max_connections}), "
                "so that listeners leave room for others"
            )
