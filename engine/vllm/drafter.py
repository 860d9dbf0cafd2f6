"""What an engine's drafters are called on the wire, and the engine's description of itself."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from engine.link.messages import MAX_K, NO_DRAFT, DraftInfo, EngineDescription, StaticChoice
from engine.link.settings import SettingsError
from engine.vllm.settings import VllmSettings
from engine.vllm.versions import minor

Kind = Literal["ngram", "model", "eagle", "other"]

_KINDS: dict[str, Kind] = {
    "ngram": "ngram", "ngram_gpu": "ngram", "suffix": "ngram", "draft_model": "model",
    "eagle": "eagle", "eagle3": "eagle", "mtp": "eagle",
}  # fmt: skip
# Proposers that take another K at every step. Of the others some assert that it is the configured one (medusa,
# ngram_gpu, suffix, extract_hidden_states), some are not told (custom_class), and whoever comes new may do either.
_PLIABLE = frozenset(("ngram", "draft_model", "eagle", "eagle3", "mtp"))


class Drafter(NamedTuple):
    """A drafter: its name on the wire, kind, largest K, and whether its K may change from step to step.

    `passes_per_k`: drafting passes a drafted token takes, 0 where one pass proposes them all. `constant`: it makes all
    its passes in every step, whatever K it is given.

    >>> Drafter("d", "model", 5, constant=True).passes(2), Drafter("d", "model", 5).passes(2)
    (5, 2)
    """

    name: str
    kind: Kind
    most: int
    steady: bool = False  # its proposer insists on one K: rows are trimmed, and it always drafts `most`
    passes_per_k: int = 1
    constant: bool = False

    def passes(self, k: int) -> int:
        """Passes of a step in which the drafter proposes K tokens; none at K = 0, whose cost is taken as it is."""
        if not k or not self.passes_per_k:
            return min(k, 1)
        return self.most if self.steady or self.constant else k

    @property
    def cached(self) -> bool:
        """Whether it keeps a KV cache, which has holes after any step of the request that it did not run in."""
        return self.kind in ("model", "eagle")


def drafter_of(
    method: str, model: str | None, most: int, name: str | None = None, *, parallel: bool = False
) -> Drafter:
    """The drafter of vLLM's `method` with its `model` (a folder or a hub name) and up to `most` tokens.

    >>> drafter_of("draft_model", "/models/Qwen2.5-0.5B-Instruct", 5)
    Drafter(name='Qwen2.5-0.5B-Instruct', kind='model', most=5, steady=False, passes_per_k=1, constant=False)
    >>> drafter_of("ngram", None, 8).name, drafter_of("suffix", None, 8).steady
    ('ngram', True)
    """
    kind = _KINDS.get(method, "other")
    known = PurePath(model).name if model and kind in ("model", "eagle") else method
    many = kind in ("model", "eagle") and not parallel
    # Parallel drafting lays out its block for the configured K, and dies in between 0 and that.
    steady = parallel or method not in _PLIABLE
    return Drafter((name or known)[:64], kind, min(most, MAX_K), steady, int(many or kind == "ngram"))


def configured(config: Any, version: str, name: str | None = None) -> Drafter | None:
    """The drafter that this `VllmConfig` of that vLLM has, None where it has none."""
    speculative = config.speculative_config
    if speculative is None:
        return None
    parallel = bool(getattr(speculative, "parallel_drafting", False))
    method, most = str(speculative.method), speculative.num_speculative_tokens
    drafter = drafter_of(method, speculative.model, most, name, parallel=parallel)
    # Ranks that run together (experts) meet in every pass of a drafting model: another number of them would hang all.
    # Independent ranks are told that they are alone.
    together = config.parallel_config.data_parallel_size > 1 and drafter.kind != "ngram"
    return drafter._replace(steady=drafter.steady or together, constant=_all_passes(config, version))


def _all_passes(config: Any, version: str) -> bool:
    """Whether the worker drafts its largest K whatever the step asks for, and throws away what nobody asked for.

    Model runner V2 does, but for eagle and one-module MTP since 0.32 (`target_dependent_ar/speculator.py`). Rows are
    cut by the scheduler there as everywhere.
    """
    if not config.use_v2_model_runner:
        return False
    speculative = config.speculative_config
    if minor(version) == "0.31" or speculative.method not in ("eagle", "eagle3", "mtp"):
        return True
    return bool(speculative.use_multi_module_mtp() and not speculative.use_gemma4_mtp())


def reach(config: Any) -> int | None:
    """Tokens up to which the longest sequence of a step leaves drafts to anybody; None: it always does.

    Model runner V1 hands out zeros for drafts, to every row, once that sequence and K more do not fit the drafter
    (`_input_fits_in_drafter`). V2 looks at each row alone.
    """
    speculative = config.speculative_config
    if speculative is None or config.use_v2_model_runner:
        return None
    limit = getattr(speculative.draft_model_config, "max_model_len", None) or config.model_config.max_model_len
    return int(limit) - int(speculative.num_speculative_tokens) - int(speculative.method == "dflash")


def by_batch(table: Sequence[Sequence[int]]) -> Callable[[int], int]:
    """vLLM's `num_speculative_tokens_per_batch_size`, [first batch size, last, K] each: K at a batch size. Between the
    ranges and behind the last one the K before goes on, as in vLLM.

    >>> k = by_batch([[1, 4, 2], [8, 16, 1], [32, 512, 0]])
    >>> [k(batch) for batch in (1, 4, 5, 8, 20, 32, 600)]
    [2, 2, 2, 1, 1, 0, 0]
    """
    ordered = sorted(tuple(entry) for entry in table)
    starts = [entry[0] for entry in ordered]
    return lambda batch: int(ordered[max(bisect_right(starts, batch) - 1, 0)][2])


def further(settings: VllmSettings, configured: Drafter) -> list[Drafter]:
    """The drafters beside the configured one, in the order of the settings. Raises `SettingsError`.

    >>> from engine.vllm.settings import DrafterSettings
    >>> main = drafter_of("draft_model", "/models/small", 5)
    >>> [one.name for one in further(VllmSettings(drafters=(DrafterSettings(method="ngram"),)), main)]
    ['ngram']
    >>> further(VllmSettings(drafters=(DrafterSettings(model="/old/small"),)), main)
    Traceback (most recent call last):
    engine.link.settings.SettingsError: drafters[0] is called 'small', as another drafter is; give it a name of its own
    """
    taken, found = {configured.name, NO_DRAFT}, []
    for at, one in enumerate(settings.drafters):
        most = one.num_speculative_tokens or configured.most
        if most > configured.most:
            raise SettingsError(
                f"drafters[{at}].num_speculative_tokens is {most}; that of --speculative-config is {configured.most}, "
                "which is the most allowed"
            )
        drafter = drafter_of(one.method, one.model, most, one.name)
        if drafter.name in taken:
            why = "the name of not speculating" if drafter.name == NO_DRAFT else "as another drafter is"
            raise SettingsError(f"drafters[{at}] is called {drafter.name!r}, {why}; give it a name of its own")
        taken.add(drafter.name)
        found.append(drafter)
    return found


def describe(
    drafter: Drafter | None,
    settings: VllmSettings,
    *,
    software: str,
    target: str,
    hardware: str,
    max_batch: int,
    prepared: Sequence[int] | None = None,
    others: Sequence[Drafter] = (),
    absent: Sequence[str] = (),
) -> EngineDescription:
    """What the engine announces, `others` among its drafts; `prepared`: the K that vLLM was told to prepare; `absent`:
    drafters of the settings that are not in force. Raises `SettingsError` for a K that a drafter was not made for, and
    for a static draft that is none of them.

    >>> ngram = drafter_of("ngram", None, 4)
    >>> about = dict(software="vllm", target="t", hardware="cpu", max_batch=8)
    >>> made = describe(ngram, VllmSettings(), **about)
    >>> made.k_values, made.static.draft, made.static.k
    ([0, 1, 2, 3, 4], 'ngram', 4)
    >>> describe(ngram, VllmSettings(), prepared=[3, 1, 0], **about).k_values
    [0, 1, 3]
    >>> describe(ngram, VllmSettings(static_k=2), **about).static.draft
    'ngram'
    >>> describe(ngram, VllmSettings(k_values=[2, 6]), **about)
    Traceback (most recent call last):
    engine.link.settings.SettingsError: k_values has 6; num_speculative_tokens is 4, which is the largest K allowed
    """
    most = drafter.most if drafter else 0
    usual: Sequence[int] = range(most + 1) if prepared is None else [min(k, most) for k in prepared]
    ks = usual if settings.k_values is None else settings.k_values
    too_deep = [k for k in ks if k > most]
    if too_deep and drafter is not None:
        raise SettingsError(
            f"k_values has {too_deep[0]}; num_speculative_tokens is {most}, which is the largest K allowed"
        )
    static = _static(drafter, settings, {one.name: one for one in (drafter, *others) if one is not None}, absent)
    drafts = [DraftInfo(one.name, one.kind, one.most) for one in (drafter, *others) if one is not None]
    return EngineDescription(
        software, target[:64], hardware[:64], drafts, sorted({0, *(k for k in ks if k <= most)}), static, max_batch
    )


def _static(
    drafter: Drafter | None, settings: VllmSettings, team: dict[str, Drafter], absent: Sequence[str]
) -> StaticChoice:
    """Draft and K without a policy: the configured draft and its K where the settings name none."""
    name, k = settings.static_draft, settings.static_k
    if name in absent:
        name = NO_DRAFT  # which of them is in force is not the operator's fault
    if name != NO_DRAFT and name not in team:
        raise SettingsError(f"static_draft is {name!r}; allowed: {', '.join([*team, NO_DRAFT])}")
    chosen = team.get(name, drafter)
    if chosen is None:
        if k:
            raise SettingsError(f"static_k is {k}; vLLM has no --speculative-config, so that 0 is the only one allowed")
        return StaticChoice()
    if k > chosen.most:
        raise SettingsError(f"static_k is {k}; allowed: 0 to {chosen.most}, the largest K of {chosen.name}")
    if name == NO_DRAFT and not k:
        k = chosen.most
    # A draft that is never asked need not be kept in step beside others.
    return StaticChoice(chosen.name, k) if k or len(team) == 1 else StaticChoice()
