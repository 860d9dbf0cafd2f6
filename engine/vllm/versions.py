"""Which versions of vLLM the plug-in fits, checked against the installed one before anything is hooked.

The scheduler is no public interface of vLLM. So its version must be one of those that the contract tests have run with,
and what we override must still be there with the arguments we pass on.
"""

import inspect
import re
from typing import Any

TESTED = ("0.31", "0.32")  # minor versions; docs/reference/vllm.md says what was run with each

# Method of the scheduler -> parameters that it must have, in order.
TOUCHED: dict[str, tuple[str, ...]] = {
    "add_request": ("self", "request"),
    "_update_after_schedule": ("self", "scheduler_output"),
    "update_draft_token_ids": ("self", "draft_token_ids"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "_free_request": ("self", "request"),
    "shutdown": ("self",),
}


def minor(version: str) -> str:
    """The minor version.

    >>> minor("0.32.0+cpu"), minor("0.9.2rc1")
    ('0.32', '0.9')
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{found[1]}.{found[2]}" if found else version


def problem(version: str, scheduler: type[Any]) -> str | None:
    """Why the plug-in must not hook into that scheduler class, None where it may.

    >>> class Scheduler:
    ...     def add_request(self, request): ...
    >>> problem("0.30.0", Scheduler)
    'vLLM 0.30.0 is not among the versions it was tested with (0.31, 0.32)'
    >>> problem("0.32.0", Scheduler)
    'Scheduler._update_after_schedule of vLLM 0.32.0 is not there'
    """
    if minor(version) not in TESTED:
        return f"vLLM {version} is not among the versions it was tested with ({', '.join(TESTED)})"
    for name, wanted in TOUCHED.items():
        method = getattr(scheduler, name, None)
        if method is None:
            return f"{scheduler.__name__}.{name} of vLLM {version} is not there"
        there = tuple(inspect.signature(method).parameters)
        if there[: len(wanted)] != wanted:
            return f"{scheduler.__name__}.{name} of vLLM {version} takes {there}; needed: {wanted}"
    return None
