"""Several drafters in one engine, without vLLM: settings, what is in force, plans, lookup, the bridge. By hand."""

import pickle
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.link import StaticLink, StepOutcome
from engine.link.settings import SettingsError
from engine.vllm import plugin
from engine.vllm.bridge import Bridge
from engine.vllm.drafter import describe, drafter_of, further
from engine.vllm.labels import Labels
from engine.vllm.lookup import continuation
from engine.vllm.plan import Plan
from engine.vllm.settings import DrafterSettings, VllmSettings, settings_of
from engine.vllm.several import in_force, obstacle

MAIN = drafter_of("draft_model", "/models/small", 4)
ABOUT: dict[str, Any] = {"software": "vllm", "target": "t", "hardware": "cpu", "max_batch": 8}


def told(*drafters: Any) -> VllmSettings:
    return settings_of({"adaptive_k": {"drafters": list(drafters)}}, {})


def test_drafters_come_from_the_table_or_from_json_in_the_environment() -> None:
    table = told({"name": "large", "model": "/models/l"}, {"method": "ngram", "prompt_lookup_max": 3})
    assert [(one.name, one.method) for one in table.drafters] == [("large", "draft_model"), (None, "ngram")]
    from_env = settings_of(None, {"AKC_DRAFTERS": '[{"name": "large", "model": "/models/l"}]'})
    assert from_env.drafters == table.drafters[:1]
    assert settings_of({}, {}).drafters == ()
    both = settings_of({"adaptive_k": {"drafters": [{"method": "ngram"}]}}, {"AKC_DRAFTERS": "[]"})
    assert len(both.drafters) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drafters": "ngram"}, "drafters is 'ngram', no JSON"),
        ({"drafters": {"method": "ngram"}}, "allowed: a list of tables, one a drafter"),
        ({"drafters": ["ngram"]}, r"drafters is \['ngram'\]; allowed: a list of tables"),
        ({"drafters": [{"method": "ngram"}, {"method": "eagle"}]}, r"drafters\[1\]: method is 'eagle' .*'draft_model'"),
        ({"drafters": [{"name": "x"}]}, r"drafters\[0\]: model is missing; method 'draft_model' needs a folder"),
        ({"drafters": [{"method": "ngram", "model": "/m"}]}, "model is '/m' with method 'ngram', which has none"),
        ({"drafters": [{"model": "/m", "prompt_lookup_max": 3}]}, "belong to method 'ngram'"),
        ({"drafters": [{"method": "ngram", "prompt_lookup_max": 0}]}, "prompt_lookup_max is 0 .* from 1 to 1024"),
        ({"drafters": [{"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}]}, "min is 3; .*2"),
        ({"drafters": [{"modl": "/m"}]}, "modl is not a setting .*; did you mean model?"),
        ({"drafters": [{"model": "/m", "num_speculative_tokens": 40}]}, "num_speculative_tokens is 40 .* from 1 to 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_with_what_can(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings_of({"adaptive_k": given}, {})


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (DrafterSettings(model="/m", num_speculative_tokens=5), "is 5; that of --speculative-config is 4"),
        (DrafterSettings(model="/m", name="none"), "called 'none', the name of not speculating"),
        (DrafterSettings(model="/m", name="small"), "called 'small', as another drafter is"),
    ],
)
def test_a_drafter_that_the_configured_one_leaves_no_room_for_is_refused(one: DrafterSettings, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        further(VllmSettings(drafters=(one,)), MAIN)


def test_all_drafts_are_announced_with_their_own_largest_k() -> None:
    others = further(told({"model": "/models/l", "num_speculative_tokens": 2}, {"method": "ngram"}), MAIN)
    made = describe(MAIN, VllmSettings(), others=others, **ABOUT)
    assert [(one.name, one.kind, one.max_k) for one in made.drafts] == [
        ("small", "model", 4), ("l", "model", 2), ("ngram", "ngram", 4),
    ]  # fmt: skip
    assert (made.k_values, made.static.draft, made.static.k) == ([0, 1, 2, 3, 4], "small", 4)
    # A static K of 0 must not keep a model in step for ever.
    off = describe(MAIN, VllmSettings(static_draft="small", static_k=0), others=others, **ABOUT)
    assert (off.static.draft, off.static.k) == ("none", 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"static_k": 3}, ("small", 3)),  # the draft is the configured one
        ({"static_draft": "ngram", "static_k": 3}, ("ngram", 3)),
        ({"static_draft": "l"}, ("small", 4)),  # in the settings, but not in force: as if it had not been named
        ({"static_draft": "l", "static_k": 3}, ("small", 3)),
    ],
)
def test_the_static_choice_is_what_the_settings_name(given: dict[str, Any], expected: tuple[str, int]) -> None:
    others = [drafter_of("ngram", None, 4)]
    made = describe(MAIN, VllmSettings(**given), others=others, absent=["l"], **ABOUT)
    assert (made.static.draft, made.static.k) == expected


@pytest.mark.parametrize(
    ("given", "main", "said"),
    [
        ({"static_draft": "ngrams", "static_k": 2}, MAIN, "static_draft is 'ngrams'; allowed: small, ngram, none"),
        ({"static_k": 20}, MAIN, "static_k is 20; allowed: 0 to 4, the largest K of small"),
        ({"static_draft": "ngram", "static_k": 3}, MAIN, "static_k is 3; allowed: 0 to 2, the largest K of ngram"),
        ({"static_k": 1}, None, "static_k is 1; vLLM has no --speculative-config"),
    ],
)
def test_a_static_choice_that_cannot_be_is_named_with_those_that_can(
    given: dict[str, Any], main: Any, said: str
) -> None:
    others = [drafter_of("ngram", None, 2)] if main else []
    with pytest.raises(SettingsError, match=said):
        describe(main, VllmSettings(**given), others=others, **ABOUT)


def test_what_the_worker_loaded_shows_in_the_layers_of_the_cache() -> None:
    others = further(told({"model": "/models/l"}, {"method": "ngram"}, {"model": "/models/m"}), MAIN)
    layers = ["model.layers.0.attn", "akc_draft_0.model.layers.0.attn", "akc_draft_3.model.layers.0.attn"]
    force = in_force(others, layers, None)
    assert ([one.name for one in force.others], force.places) == (["ngram", "m"], [2, 3])
    assert force.lines == ["not in force: l (the worker could not take it; its log says why)"]
    assert in_force(others, layers, "for a reason").lines[0] == "not in force: l (for a reason)"
    none = in_force(others, ["model.layers.0.attn", "draft_model.model.layers.0.attn"], None)
    assert none.others == []
    assert all("the worker has vLLM's own proposer" in line for line in none.lines)
    ahead = in_force(others, layers, None, asynchronous=True)
    assert [one.name for one in ahead.others] == ["m"]
    assert "--no-async-scheduling" in ahead.lines[1]


def configured(**changes: Any) -> Any:
    parallel = SimpleNamespace(data_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1)
    speculative = SimpleNamespace(method="draft_model", parallel_drafting=False, draft_sample_method="greedy")
    config = SimpleNamespace(
        parallel_config=parallel, speculative_config=speculative, use_v2_model_runner=False, kv_transfer_config=None,
        model_config=SimpleNamespace(is_multimodal_model=False),
    )  # fmt: skip
    for path, value in changes.items():
        at, _, name = path.rpartition("__")
        setattr(getattr(config, at) if at else config, name, value)
    return config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculative_config": None}, "method none"),
        ({"speculative_config__method": "eagle"}, "method eagle; several drafters need draft_model"),
        ({"use_v2_model_runner": True}, "set VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"parallel_config__data_parallel_size": 2}, "data_parallel_size is not 1"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size is not 1"),
        ({"speculative_config__parallel_drafting": True}, "parallel_drafting is on"),
        ({"speculative_config__draft_sample_method": "probabilistic"}, "needed: greedy"),
        ({"model_config__is_multimodal_model": True}, "multimodal"),
        ({"kv_transfer_config": object()}, "KV connector"),
    ],
)
def test_engines_that_can_have_one_only_are_told_why(changes: dict[str, Any], said: str) -> None:
    assert obstacle(configured()) is None
    why = obstacle(configured(**changes))
    assert why is not None
    assert said in why


def test_a_plan_travels_as_the_number_it_is() -> None:
    plan = pickle.loads(pickle.dumps(Plan(3, {"a": 0, "b": 2}, {"a": 3})))
    assert isinstance(plan, Plan)
    assert (plan, [-1] * plan, max(2, plan)) == (3, [-1, -1, -1], 3)
    assert (plan.drafts, plan.ks) == ({"a": 0, "b": 2}, {"a": 3})
    assert plan.rows(["b", "gone", "a"]) == {2: [0], 0: [2]}


def test_lookup_finds_what_comparing_every_place_finds() -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(300):
        text = rng.integers(0, 4, rng.integers(1, 25)).astype(np.int32)
        least, more, k = (int(n) for n in rng.integers(1, 4, 3))
        most = least + more - 1
        expected: list[int] = []
        for n in range(most, least - 1, -1):
            end = text[len(text) - n :].tolist()
            at = next((i for i in range(len(text) - n) if text[i : i + n].tolist() == end), None)
            if n < len(text) and at is not None:
                expected = text[at + n : at + n + k].tolist()
                break
        assert continuation(text, k, least, most) == expected
        found += bool(expected)
    assert 50 < found < 300
    assert continuation(np.zeros(0, dtype=np.int32), 3, 1, 2) == []
    assert continuation(np.array([1, 1]), 0, 1, 2) == []


class Watching(StaticLink):
    """Domains are called after their drafts; `ks` the K of every row of the next plans, in turn."""

    def __init__(self, *ks: int) -> None:
        names = ("small", "large", "ngram", "none")
        table = {name: (name, 0) for name in names}
        super().__init__("none", 0, table=table, choose=lambda ticket, batch: self._ks[0])
        self._ks = list(ks)
        self.steps: list[StepOutcome] = []
        self.over: list[str] = []

    def plan(self, tickets: Sequence[Any], batch: int) -> list[int]:
        planned = super().plan(tickets, batch)
        if len(self._ks) > 1:
            self._ks.pop(0)
        return planned

    def record(self, step: StepOutcome) -> None:
        self.steps.append(step)

    def finish(self, ticket: Any) -> None:
        self.over.append(ticket.draft)


class Engine:
    """vLLM's hooks around the bridge; prompts of 8 tokens."""

    def __init__(self, link: Watching) -> None:
        self.link = link
        labels = Labels(VllmSettings(classify=False), lambda: pytest.fail("nobody asked for a tokenizer"))
        others = [drafter_of("draft_model", "/models/large", 2), drafter_of("ngram", None, 4)]
        self.bridge = Bridge(link, labels, MAIN, others=others, places=[1, 3])
        self.salts: dict[str, str | None] = {}

    def come(self, name: str, draft: str | None, choose: bool = True, **params: Any) -> Any:
        extra = None if draft is None else {"domain": draft}
        sampling = SimpleNamespace(temperature=0.0, extra_args=extra, min_p=0.0, logit_bias=None)
        vars(sampling).update(params)
        request = SimpleNamespace(
            request_id=name, prompt_token_ids=[1] * 8, sampling_params=sampling, lora_request=None, cache_salt=None,
            num_computed_tokens=0, num_output_placeholders=0, num_output_tokens=0, is_prefill_chunk=True,
            spec_token_ids=[],
        )  # fmt: skip
        self.bridge.came(request)
        if choose:
            self.choose(request)
        return request

    def choose(self, *requests: Any) -> None:
        for request_id, salt in self.bridge.choose(requests, running=0).items():
            self.salts[request_id] = salt
            next(one for one in requests if one.request_id == request_id).cache_salt = salt

    def step(self, tokens: dict[Any, int]) -> tuple[Plan, dict[str, tuple[int, int]]]:
        """Schedule, and complete with one token a decoding row; the plan, and what was booked."""
        for name, n in tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += n
            request.is_prefill_chunk = request.num_computed_tokens < 8
        step = SimpleNamespace(
            num_scheduled_tokens=dict(tokens), scheduled_spec_decode_tokens={}, scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()), num_invalid_spec_tokens=None,
        )  # fmt: skip
        plan, _ = self.bridge.scheduled(step, waiting=0)
        booked = self.bridge._steps[-1].drafted
        assert isinstance(plan, Plan)
        before = self.bridge.outputs(step)
        for name in before:
            self.requests[name].num_output_tokens += 1
        self.bridge.completed(step, dict.fromkeys(before, 1), before, busy=True)
        return plan, booked

    @property
    def requests(self) -> dict[str, Any]:
        return {name: known.request for name, known in self.bridge._known.items()}


def test_each_draft_is_booked_with_its_own_tokens_and_passes() -> None:
    engine = Engine(Watching(3))
    for name, draft in (("a", "small"), ("b", "small"), ("c", "large"), ("d", "ngram"), ("e", "none")):
        engine.come(name, draft)
    plan, booked = engine.step(dict.fromkeys("abcde", 8))
    assert plan.drafts == {"a": 0, "b": 0, "c": 1, "d": 3}
    assert (plan, plan.ks) == (3, {"a": 3, "b": 3, "c": 2, "d": 3, "e": 0})  # `large` goes up to 2
    assert booked == {"small": (6, 3), "large": (2, 2), "ngram": (3, 3)}


def test_a_paused_model_costs_one_pass_and_lookup_and_none_cost_nothing() -> None:
    engine = Engine(Watching(0))
    engine.come("a", "small")
    engine.come("b", "ngram")
    engine.come("c", "none")
    plan, booked = engine.step({"a": 8, "b": 8, "c": 8})
    assert (int(plan), booked) == (0, {"small": (0, 1)})
    engine.bridge.ended("a")
    plan, booked = engine.step({"b": 1, "c": 1})
    assert (plan.drafts, booked) == ({"b": 3}, {})
    engine.step({"b": 1, "c": 1})
    assert [step.drafted for step in engine.link.steps] == [{}, {}]


def test_a_model_reads_the_prompts_of_its_requests_too() -> None:
    engine = Engine(Watching(2))
    engine.come("a", "small")
    engine.come("b", "large")
    engine.step({"a": 8})
    plan, booked = engine.step({"a": 1, "b": 4})
    assert plan.drafts == {"a": 0, "b": 1}
    assert booked == {"small": (2, 2), "large": (0, 1)}


def test_blocks_are_salted_by_the_model_that_reads_them() -> None:
    engine = Engine(Watching(2))
    for name, draft in (("a", "small"), ("b", "large"), ("c", "ngram"), ("d", "none")):
        engine.come(name, draft)
    assert engine.salts == {"a": "small/", "b": "large/"}
    own = engine.come("e", "small", choose=False)
    engine.bridge._known["e"].salt = own.cache_salt = "tenant"
    engine.choose(own)
    assert engine.salts["e"] == "small/tenant"
    engine.choose(own)
    assert own.cache_salt == "small/tenant"


def test_a_label_that_comes_while_the_request_waits_changes_its_draft() -> None:
    engine = Engine(Watching(2))
    request = engine.come("a", None)
    assert engine.bridge._known["a"].ticket is not None
    engine.bridge.labels._found["a"] = "large"
    engine.choose(request)
    plan, _ = engine.step({"a": 8})
    assert (plan.drafts, engine.salts, engine.link.over) == ({"a": 1}, {"a": "large/"}, ["none"])


@pytest.mark.parametrize(
    ("first", "label", "held"),
    [("small", "large", 0), ("small", "none", 0), ("none", "large", None), ("none", "ngram", 3)],
)
def test_a_label_that_comes_later_finds_the_prompt_read(first: str, label: str, held: int | None) -> None:
    """No model is taken up or put down any more; lookup is."""
    engine = Engine(Watching(2))
    engine.link._default = (first, 0)  # of domain `other`
    engine.come("a", None)
    engine.step({"a": 8})
    engine.bridge.labels._found["a"] = label
    plan, _ = engine.step({"a": 1})
    ticket = engine.bridge._known["a"].ticket
    assert ticket is not None
    assert ticket.domain == label
    assert plan.drafts == ({} if held is None else {"a": held})


def test_a_request_that_was_scheduled_before_its_choice_gets_no_model() -> None:
    engine = Engine(Watching(2))
    engine.come("a", "small", choose=False)
    engine.come("b", "ngram", choose=False)
    plan, booked = engine.step({"a": 8, "b": 8})
    assert plan.drafts == {"b": 3}
    assert booked == {"ngram": (2, 2)}


def test_requests_that_vllm_samples_wrongly_with_drafts_hold_none() -> None:
    engine = Engine(Watching(2))
    engine.come("a", "small", min_p=0.1)
    plan, booked = engine.step({"a": 8})
    assert (plan.drafts, plan.ks, booked, engine.salts) == ({}, {"a": 0}, {}, {})


def test_the_entry_point_is_declared_and_needs_neither_torch_nor_vllm() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"adaptive_k": "engine.vllm.plugin:register"}
    code = (
        "import sys; from engine.vllm.plugin import register, _Finder; register(); register(); "
        "print([n for n in ('torch', 'vllm', 'numpy') if n in sys.modules], "
        "sum(isinstance(f, _Finder) for f in sys.meta_path))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"


def test_the_module_is_changed_when_it_is_imported_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner_of_this_test.py").write_text("class DraftModelProposer: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugin, "MODULE", "runner_of_this_test")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    changed: list[str] = []
    monkeypatch.setattr(plugin, "replace", lambda module: changed.append(module.DraftModelProposer.__name__))
    plugin.register()
    assert changed == []
    __import__("runner_of_this_test")
    assert changed == ["DraftModelProposer"]
    assert not any(isinstance(finder, plugin._Finder) for finder in sys.meta_path)
    plugin.register()  # it is there now
    assert changed == ["DraftModelProposer"] * 2


def test_a_vllm_that_is_not_as_expected_keeps_its_own() -> None:
    class DraftModelProposer:
        """Of some other version."""

    module: Any = SimpleNamespace(DraftModelProposer=DraftModelProposer)
    plugin.replace(module)
    assert module.DraftModelProposer is DraftModelProposer
