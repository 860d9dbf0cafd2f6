"""Known acceptance and known prices in a real vLLM, for tests that must know the best K. Runs where vLLM is.

`Acceptance` is vLLM's `rejection_sample_method: "synthetic"` (draft token i is kept where a uniform number lies below
the rate of its position) with rates by domain that may change while it runs. vLLM's CPU kernel lacks the method, so its
greedy kernel is replaced by the same rule here; everything around it is vLLM's own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from vllm.v1.sample import rejection_sampler


def conditional(survival: Sequence[float]) -> list[float]:
    """Acceptance by position, given that all before were kept, from the chance that a position and all before are."""
    return [survival[0], *(after / before if before else 0.0 for before, after in pairwise(survival))]


class Acceptance:
    """Survival by domain and position; `default` before any request is there."""

    def __init__(self, default: Sequence[float]) -> None:
        self.survival: dict[str, list[float]] = {}
        self._default = list(default)
        self._runner: Any = None
        # What vLLM calls, and what it asks of it before.
        kernel = rejection_sampler._rejection_greedy_sample
        self.register_warmup = kernel.register_warmup
        rejection_sampler._rejection_greedy_sample = self

    def attach(self, runner: Any) -> None:
        """Rows are those of this model runner's batch from now on."""
        self._runner = runner

    def set(self, survival: Mapping[str, Sequence[float]]) -> None:
        """From the next step on."""
        self.survival = {domain: list(values) for domain, values in survival.items()}

    def _rates(self, row: int) -> list[float]:
        if self._runner is None:
            return conditional(self._default)
        request = self._runner.requests[self._runner.input_batch.req_ids[row]]
        return conditional(self.survival[request.sampling_params.extra_args["domain"]])

    def __call__(
        self, out: torch.Tensor, ends: torch.Tensor, drafts: torch.Tensor, argmax: torch.Tensor, bonus: torch.Tensor,
        is_greedy: torch.Tensor | None, longest: int, uniform: torch.Tensor, rates: torch.Tensor,
    ) -> None:  # fmt: skip
        """The greedy kernel, in its place: fills rows of `out` with kept drafts and the target's token behind them."""
        start = 0
        for row, end in enumerate(ends.tolist()):
            chances, kept = self._rates(row), 0
            while start + kept < end and drafts[start + kept] >= 0 and uniform[start + kept] < chances[kept]:
                out[row, kept] = drafts[start + kept]
                kept += 1
            out[row, kept] = bonus[row, 0] if start + kept == end else argmax[start + kept]
            start = end


def priced(runner: Any, seconds: Callable[[int, int], float]) -> None:
    """Make every step of a model runner take `seconds(K of the drafter, tokens verified)` of its thread's CPU time, or
    longer where it works longer.

    CPU time, and spinning rather than sleeping: what a shared machine takes away is no part of the price then.
    """
    execute, finish = runner.execute_model, runner.sample_tokens
    due = [0.0, 0.0]  # end of the last step; price of this one

    def began(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        due[1] = seconds(scheduled.num_spec_tokens_to_schedule, scheduled.total_num_scheduled_tokens)
        return execute(scheduled, *args, **kwargs)

    def ended(*args: Any, **kwargs: Any) -> Any:
        result = finish(*args, **kwargs)
        while time.thread_time() < due[0] + due[1]:
            pass
        due[0] = time.thread_time()
        return result

    runner.execute_model, runner.sample_tokens = began, ended
