"""Addresses of Redis: one server, or the Sentinels that know which server is the primary now."""

from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

SENTINEL = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", "unix", *SENTINEL)
PATTERN = rf"^({'|'.join(scheme.replace('+', chr(92) + '+') for scheme in SCHEMES)})://"
_PORT = 26379
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # files; redis-py's names, which `rediss://` takes as well
_ASKED = ("service", "sentinel_username", "sentinel_password", *_TLS)


class Sentinels(NamedTuple):
    """Where a primary is found: the Sentinels' (host, port), the name they know it by, and what both want to be told.

    `sentinel` and `server` are keyword arguments of redis-py's connections.
    """

    nodes: list[tuple[str, int]]
    service: str
    sentinel: dict[str, Any]
    server: dict[str, Any]


def sentinels(url: str) -> Sentinels | None:
    """What `redis+sentinel://[USER:PASSWORD@]HOST[:26379],HOST.../[DB]?service=NAME` says; None for another scheme.

    User and password are the server's; `sentinel_username` and `sentinel_password` in the query are the Sentinels' own.
    `rediss+sentinel://` speaks TLS to both, checked against `ssl_ca_certs=FILE` if that is there, and shows them the
    certificate of `ssl_certfile=FILE` with `ssl_keyfile=FILE`. Raises ValueError.

    >>> found = sentinels("redis+sentinel://akc:pw@a,b:26380/1?service=mymaster")
    >>> found.nodes, found.service, found.server
    ([('a', 26379), ('b', 26380)], 'mymaster', {'username': 'akc', 'password': 'pw', 'db': 1})
    """
    if not url.startswith(SENTINEL):
        return None
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = sorted(query.keys() - set(_ASKED))
    if unknown or "service" not in query:
        wrong = f"has {unknown[0]!r} in its query" if unknown else "names no service"
        raise ValueError(f"the address {wrong}; allowed: ?service=NAME, and {', '.join(_ASKED[1:])}")
    login, _, hosts = parts.netloc.rpartition("@")
    nodes = [_node(host) for host in hosts.split(",")]
    user, _, password = login.partition(":")
    db = parts.path.strip("/") or "0"
    if not db.isdecimal():
        raise ValueError(f"the database is {db!r}; allowed: a whole number")
    tls: dict[str, Any] = {}
    if parts.scheme.startswith("rediss"):
        tls = {"ssl": True, **{name: query[name] for name in _TLS if name in query}}
    elif asked := sorted(query.keys() & set(_TLS)):
        raise ValueError(f"the address has {asked[0]!r}, and TLS is only spoken to rediss+sentinel://")
    server = {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(db), **tls}
    own = {"username": query.get("sentinel_username"), "password": query.get("sentinel_password"), **tls}
    return Sentinels(nodes, query["service"], _given(own), _given(server))


def _node(host: str) -> tuple[str, int]:
    """Host and port.

    >>> _node("[::1]:26380"), _node("[::1]"), _node("a")
    (('::1', 26380), ('::1', 26379), ('a', 26379))
    """
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(_PORT)
    if name.startswith("[") and name.endswith("]"):  # IPv6: the brackets are the address bar's, not the resolver's
        name = name[1:-1]
    if not name or not port.isdecimal():
        raise ValueError(f"{host!r} is no Sentinel; allowed: HOST or HOST:PORT, by commas")
    return name, int(port)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
