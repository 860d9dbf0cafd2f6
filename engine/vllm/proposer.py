"""Several drafters in vLLM's worker: a subclass of its draft model proposer that owns more of them and shares out rows.

The scheduler's `Plan` says who drafts for which request. Each draft model runs over the rows of its own requests and
over no other, with its own K, also at K = 0 (one pass, so that it stays in step); no row, no pass. Lookup reads the
text on the host. What fails here proposes nothing from then on and is logged once: drafts are guesses, and the target
decides without them as well.
"""

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.compilation.backends import set_model_tag
from vllm.config import SpeculativeConfig, VllmConfig
from vllm.model_executor.model_loader import get_model
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from engine.vet import FolderError, read_folder
from engine.vllm.drafter import drafter_of, further
from engine.vllm.lookup import continuation
from engine.vllm.plan import Plan
from engine.vllm.settings import DrafterSettings, settings_of
from engine.vllm.several import obstacle, prefix

_log = logging.getLogger("vllm.adaptive_k")


class _Prefixed(DraftModelProposer):
    """A draft model whose layers have names of their own, by its place."""

    place = 0

    def _get_model(self) -> Any:
        name = prefix(self.place)
        with set_model_tag(name):  # compiled code is kept by this name
            return get_model(vllm_config=self._create_draft_vllm_config(), prefix=name)


class FurtherModel(_Prefixed):
    """A draft model beside the configured one."""

    def __init__(self, config: VllmConfig, device: torch.device, place: int, one: DrafterSettings, most: int) -> None:
        self.place = place
        base = config.speculative_config
        own = copy.copy(config)
        own.speculative_config = SpeculativeConfig(
            method="draft_model", model=one.model, num_speculative_tokens=most,
            target_model_config=base.target_model_config, target_parallel_config=base.target_parallel_config,
            draft_tensor_parallel_size=base.draft_tensor_parallel_size, enforce_eager=base.enforce_eager,
        )  # fmt: skip
        if own.speculative_config.method != "draft_model":
            raise ValueError(f"vLLM takes it for method {own.speculative_config.method}; needed: a draft model")
        _same_vocabulary(config.model_config.tokenizer, str(one.model))
        super().__init__(own, device)

    def attend(self, kv_cache_config: Any, kernel_block_sizes: list[int] | None, group: int) -> None:
        """Find its layers in the KV cache, in the group whose blocks the metadata of a batch are about."""
        self.initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        if self.kv_cache_gid != group:
            raise ValueError("its layers are in another KV cache group than those of the configured draft model")


def _same_vocabulary(target: str, draft: str) -> None:
    """Refuse a draft whose ids mean other strings. vLLM compares sizes only; folders without a fast tokenizer pass."""
    try:
        ours, theirs = (read_folder(Path(folder)) for folder in (target, draft))
    except FolderError as error:
        _log.debug("adaptive_k: vocabularies not compared: %s", error)
        return
    moved = sum(theirs.vocabulary.get(token) != at for token, at in ours.vocabulary.items())
    if moved:
        raise ValueError(
            f"{moved} of the target's {len(ours.vocabulary)} tokens have other ids in the draft's vocabulary"
        )


class _Sampled(NamedTuple):
    """What the target has just sampled: the batch by row, tokens [rows, n] with -1 behind the last, rows without."""

    batch: Any
    tokens: torch.Tensor
    discarded: torch.Tensor


class _Team:
    """The drafters by place, the configured one at 0."""

    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        settings = settings_of(config.additional_config, os.environ)
        speculative = config.speculative_config
        main = drafter_of("draft_model", speculative.model, speculative.num_speculative_tokens, settings.draft)
        self.names = {0: main.name}
        self.models: dict[int, FurtherModel] = {}
        self.lookups: dict[int, tuple[int, int]] = {}
        self.failed: set[int] = set()
        self.broken = False  # sharing out itself has failed
        self.sampled: _Sampled | None = None
        if settings.off or not settings.drafters:
            return
        why = obstacle(config)
        if why is not None:
            raise ValueError(why)
        for place, (one, described) in enumerate(zip(settings.drafters, further(settings, main), strict=True), start=1):
            self.names[place] = described.name
            if described.cached:
                self.guard(place, self._add, config, device, place, one, described.most)
            else:
                self.lookups[place] = one.ngrams

    def _add(self, config: VllmConfig, device: torch.device, place: int, one: DrafterSettings, most: int) -> None:
        self.models[place] = FurtherModel(config, device, place, one, most)

    def guard(self, place: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it for the drafter at that place; what fails leaves it without proposals for good. None then."""
        if place in self.failed:
            return None
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self.failed.add(place)
            self.models.pop(place, None)
            _log.error(
                "adaptive_k: drafter %s is out of service until this engine restarts: %s", self.names[place], error,
                exc_info=error,
            )  # fmt: skip
            return None

    def each(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of all further models."""
        for place, model in list(self.models.items()):
            self.guard(place, getattr(model, method), *args, **kwargs)


class SeveralDrafters(_Prefixed):
    """Takes the place of vLLM's `DraftModelProposer`; without `drafters` in the settings it is one."""

    akc = True

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        self._team: _Team | None = None
        self.draft_attn_groups: list[Any]  # vLLM's
        self._own_groups: list[Any] = []
        try:
            team = _Team(vllm_config, device)
            if len(team.names) > 1:
                self._team = team
                self._max_len = vllm_config.model_config.max_model_len
                self._asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
        except Exception as error:
            _log.error("adaptive_k: the configured drafter only: %s", error)

    def _get_model(self) -> Any:
        return DraftModelProposer._get_model(self) if self._team is None else super()._get_model()

    def load_model(self, target_model: Any) -> None:
        """Load the configured model, then the others; one that cannot be loaded leaves no layers behind."""
        super().load_model(target_model)
        if self._team is None:
            return
        layers = self.vllm_config.compilation_config.static_forward_context
        for place, model in list(self._team.models.items()):
            before = set(layers)
            self._team.guard(place, model.load_model, target_model)
            if place in self._team.failed:
                for name in set(layers) - before:
                    del layers[name]

    def initialize_attn_backend(self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None) -> None:
        """Find everybody's layers in the KV cache."""
        super().initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        self._own_groups = self.draft_attn_groups
        if self._team is not None:
            self._team.each("attend", kv_cache_config, kernel_block_sizes, self.kv_cache_gid)
            # vLLM binds the cache of all layers that it finds in here.
            others = [group for model in self._team.models.values() for group in model.draft_attn_groups]
            self.draft_attn_groups = [*self._own_groups, *others]

    def build_per_group_and_layer_attn_metadata(self, common_attn_metadata: Any, draft_index: int = 0) -> Any:
        """For the layers of the configured model only."""
        everybody, self.draft_attn_groups = self.draft_attn_groups, self._own_groups
        try:
            return super().build_per_group_and_layer_attn_metadata(common_attn_metadata, draft_index)
        finally:
            self.draft_attn_groups = everybody

    def initialize_cudagraph_keys(self, cudagraph_mode: Any) -> None:
        """For every model."""
        super().initialize_cudagraph_keys(cudagraph_mode)
        if self._team is not None:
            self._team.each("initialize_cudagraph_keys", cudagraph_mode)

    def set_eplb_state(self, eplb_state: Any) -> None:
        """For every model."""
        super().set_eplb_state(eplb_state)
        if self._team is not None:
            self._team.each("set_eplb_state", eplb_state)

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """For every model: vLLM measures memory and captures graphs with it."""
        super().dummy_run(*args, **kwargs)
        if self._team is not None:
            self._team.each("dummy_run", *args, **kwargs)

    def prepare_next_token_ids_padded(
        self, sampled_token_ids: torch.Tensor, requests: Mapping[str, Any], gpu_input_batch: Any,
        discard_request_mask: torch.Tensor,
    ) -> Any:  # fmt: skip
        """Remember who stands in which row: vLLM calls this right before `propose`, which is not told."""
        if self._team is not None:
            self._team.sampled = _Sampled(gpu_input_batch, sampled_token_ids, discard_request_mask)
        return super().prepare_next_token_ids_padded(sampled_token_ids, requests, gpu_input_batch, discard_request_mask)

    def propose(self, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Drafts of all rows: a tensor [rows, K], or a list of lists where lookup has drafted."""
        team = self._team
        if team is None or not isinstance(num_speculative_tokens, Plan):
            return super().propose(num_speculative_tokens, *args, **kwargs)
        rows = kwargs["common_attn_metadata"].batch_size()
        if not team.broken:
            try:
                return self._shared(num_speculative_tokens, team, rows, kwargs)
            except Exception as error:
                team.broken = True
                _log.error(
                    "adaptive_k: no drafts until this engine restarts, since they could not be shared out: %r. Please "
                    "report this.", error, exc_info=error,
                )  # fmt: skip
        return self._cut(self._zeros(rows, num_speculative_tokens), {}, [0] * rows)

    def _zeros(self, rows: int, k: int) -> torch.Tensor:
        return torch.zeros(rows, int(k), dtype=torch.int64, device=self.device)

    def _cut(
        self, drafts: torch.Tensor, looked_up: Mapping[int, list[int]], lengths: Sequence[int]
    ) -> torch.Tensor | list[list[int]]:
        """Rows of their lengths, as lists. Under asynchronous scheduling the target verifies what the scheduler has
        left room for: there, zeros fill it up.
        """
        if self._asynchronous:
            return drafts
        return [looked_up.get(row, tokens[: lengths[row]]) for row, tokens in enumerate(drafts.tolist())]

    def _shared(self, plan: Plan, team: _Team, batch: int, kwargs: dict[str, Any]) -> torch.Tensor | list[list[int]]:
        sampled, team.sampled = team.sampled, None
        if sampled is None or sampled.batch.num_reqs != batch:
            raise LookupError(f"a batch of {batch} rows was not prepared before it came to be drafted for")
        requests = list(sampled.batch.req_ids[:batch])
        drafts, lengths = self._zeros(batch, plan), [0] * batch
        looked_up: dict[int, list[int]] = {}
        lacking = False
        for place, rows in plan.rows(requests).items():
            ks = [plan.ks.get(requests[row], 0) for row in rows]
            k = max(ks)
            if place in team.lookups:
                if k:
                    looked_up |= team.guard(place, self._look_up, place, rows, ks, sampled) or {}
                continue
            proposed = team.guard(place, self._run, place, k, rows, batch, kwargs)
            lacking |= proposed is None
            if proposed is not None and k:
                drafts[torch.tensor(rows, device=drafts.device), :k] = proposed.to(drafts.dtype)
                for row in rows:
                    lengths[row] = k
        return self._cut(drafts, looked_up, lengths) if looked_up or lacking else drafts

    def _run(self, place: int, k: int, rows: list[int], batch: int, kwargs: dict[str, Any]) -> torch.Tensor:
        """Let a model draft k tokens for those rows, [rows, k]."""
        own = subset(kwargs, rows) if len(rows) < batch else whole(kwargs)
        assert self._team is not None
        run = super().propose if place == 0 else self._team.models[place].propose
        drafted: torch.Tensor = run(k, **own)
        return drafted

    def _look_up(self, place: int, rows: list[int], ks: list[int], sampled: _Sampled) -> dict[int, list[int]]:
        """What lookup finds for those rows; nothing where the target sampled nothing, as in the middle of a prompt."""
        assert self._team is not None
        least, most = self._team.lookups[place]
        at = torch.tensor(rows, device=sampled.tokens.device)
        tokens, discarded = sampled.tokens[at].tolist(), sampled.discarded[at].tolist()
        found = {}
        for row, k, new, skip in zip(rows, ks, tokens, discarded, strict=True):
            kept = [] if skip else [token for token in new if token >= 0]
            known = int(sampled.batch.num_tokens_no_spec[row])
            text = np.concatenate([sampled.batch.token_ids_cpu[row, :known], np.array(kept, dtype=np.int32)])
            found[row] = continuation(text, min(k, self._max_len - len(text)), least, most) if kept else []
        return found


def whole(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `propose` for all rows. `propose` writes into the lengths, which the next drafter needs as well."""
    meta = kwargs["common_attn_metadata"]
    upper = meta.seq_lens_cpu_upper_bound
    own = meta.replace(
        seq_lens=meta.seq_lens.clone(), seq_lens_cpu_upper_bound=None if upper is None else upper.clone()
    )
    return {**kwargs, "common_attn_metadata": own}


def subset(kwargs: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Arguments of `propose` for some rows, in ascending order; nothing is read back from the device for it."""
    meta = kwargs["common_attn_metadata"]
    device = meta.seq_lens.device
    starts = meta.query_start_loc_cpu.numpy()
    lengths = np.array([starts[row + 1] - starts[row] for row in rows])
    ends = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    flat = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
    host, own_starts = torch.tensor(rows, dtype=torch.int64), torch.from_numpy(ends)
    at, tokens = host.to(device, non_blocking=True), torch.from_numpy(flat.astype(np.int64)).to(device)

    def of_rows(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[host if tensor.device.type == "cpu" else at]

    own = meta.replace(
        query_start_loc=own_starts.to(device, non_blocking=True), query_start_loc_cpu=own_starts,
        seq_lens=of_rows(meta.seq_lens), seq_lens_cpu_upper_bound=of_rows(meta.seq_lens_cpu_upper_bound),
        num_reqs=len(rows), num_actual_tokens=len(flat), max_query_len=int(lengths.max()),
        block_table_tensor=of_rows(meta.block_table_tensor), slot_mapping=meta.slot_mapping[tokens],
        is_prefilling=of_rows(meta.is_prefilling), positions=None if meta.positions is None else meta.positions[tokens],
        req_idx=None if meta.req_idx is None else meta.req_idx[np.array(rows)],
        _num_computed_tokens_cache=None, _token_to_req_indices_cache=None,
    )  # fmt: skip
    return {
        **kwargs,
        "target_token_ids": kwargs["target_token_ids"][tokens],
        "target_positions": kwargs["target_positions"][tokens],
        "next_token_ids": kwargs["next_token_ids"][at],
        "token_indices_to_sample": None,
        "num_rejected_tokens_gpu": of_rows(kwargs.get("num_rejected_tokens_gpu")),
        "common_attn_metadata": own,
    }
