"""Exit codes, the same words for the reference (docs/reference/cli.md) and for whoever changes a command."""

from collections.abc import Mapping

_STOPPED = "ended when asked to (Ctrl-C, SIGTERM)"
_SERVING = {0: _STOPPED, 1: "it failed; its log says how", 2: "", 3: "it cannot listen at its address"}
_AWAY = {5: "Redis does not answer, or refuses"}
_ASKING = {
    0: "done",
    1: "the controller cannot be reached, or could not do it now",
    2: "no such pool, domain, draft or arm",
    3: "no token, an unknown one, or one without the role `admin`",
}

# Code 2 means for all: an option, argument or setting is not allowed, or a package is missing. Here: what else.
EXITS: Mapping[str, Mapping[int, str]] = {
    "controller": _SERVING,
    "engine": _SERVING,
    "traffic": {0: "all requests were answered", 1: "some were not", 2: ""},
    "demo": {0: "done, or stopped by Ctrl-C", 1: "a part did not start, or ended; its log is named", 2: ""},
    "models fetch": {0: "done", 1: "the package index cannot be reached, or has another file", 2: ""},
    "status": {**_ASKING, 4: "some pool has a problem or is stale"},
    "watch": {**_ASKING, 0: "stopped by Ctrl-C, or after `--updates`"},
    **dict.fromkeys(("explain", "what-if", "mode", "pin", "unpin", "reset", "draft", "measure"), _ASKING),
    "route": {0: "told", 1: "no live pool offers it", 2: "", **_AWAY},
    "state dump": {0: "written", 1: "the pool has learned nothing yet, or the file cannot be written", 2: "", **_AWAY},
    "state load": {0: "the pool goes on from it", 1: "it cannot: the message says why", 2: "", **_AWAY},
    "simulate": {0: "done", 2: "the scenario cannot be played"},
    "replay": {0: "done", 2: "the trace cannot be read"},
    "vet": {
        0: "the draft fits as it is",
        2: "a folder cannot be read",
        3: "it fits with a change",
        4: "it fits poorly",
        5: "it does not fit",
    },
}
