"""The wire types: what is written can be read, what breaks a rule is refused with the field's name."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.link.messages import (
    AcceptanceCell,
    AccountCell,
    CostCell,
    DraftChoice,
    DraftInfo,
    EngineDescription,
    Frame,
    MomentCell,
    Policy,
    PolicyCell,
    ProbePlan,
    StaticChoice,
    decode_frame,
    decode_policy,
    encode,
    histogram_bucket,
    histogram_seconds,
    load_bucket,
    load_buckets,
    passes_bucket,
    prefill_bucket,
)

labels = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=64)
counts = st.integers(0, 2**53)
count_lists = st.lists(counts, max_size=8)
numbers = st.floats(0, 1e12)


def of(cls: type[msgspec.Struct], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[msgspec.Struct]:
    return st.builds(cls, **fields)


regimes = st.sampled_from(["greedy", "sampled"])
frames = of(
    Frame,
    engine=labels,
    incarnation=labels,
    seq=counts,
    time=numbers,
    unix=numbers,
    full=st.booleans(),
    describe=st.none()
    | of(
        EngineDescription,
        software=labels,
        target=labels,
        hardware=labels,
        drafts=st.lists(of(DraftInfo, name=labels, kind=st.just("ngram"), max_k=st.integers(1, 32)), max_size=2),
        k_values=st.lists(st.integers(0, 32), max_size=4),
        static=of(StaticChoice, draft=labels, k=st.integers(0, 32)),
        max_batch=st.integers(1, 512),
    ),
    applied=st.none() | st.tuples(counts, counts),
    breaker=st.sampled_from(["open", "closed", "half-open"]),
    acceptance=st.lists(
        of(
            AcceptanceCell,
            domain=labels,
            regime=regimes,
            draft=labels,
            origin=st.sampled_from(["policy", "request", "limit", "probe"]),
            seen=count_lists,
            accepted=count_lists,
        ),
        max_size=3,
    ),
    moments=st.lists(
        of(
            MomentCell,
            **{"domain": labels, "regime": regimes, "draft": labels, "segments": counts},
            **dict.fromkeys(("s", "a", "ss", "sa", "aa"), count_lists),
            **dict.fromkeys(("total_s", "total_a", "total_ss", "total_sa", "total_aa"), counts),
        ),
        max_size=2,
    ),
    cost=st.lists(
        of(
            CostCell,
            drafts=st.lists(labels, max_size=2),
            **dict.fromkeys(("batch", "passes", "prefill", "count"), counts),
            **dict.fromkeys(("seconds", "seconds_sq"), numbers),
            **dict.fromkeys(("sx", "sxx", "sxy"), st.lists(numbers, max_size=3)),
            hist=st.dictionaries(st.integers(0, 255).map(str), counts, max_size=3),
        ),
        max_size=2,
    ),
    account=st.lists(
        of(
            AccountCell,
            domain=labels,
            regime=regimes,
            load=counts,
            variant=st.sampled_from(["static", "adaptive", "probe"]),
            row_steps=counts,
            tokens=counts,
            row_seconds=numbers,
        ),
        max_size=2,
    ),
)
policies = of(
    Policy,
    pool=labels,
    version=st.tuples(counts, counts),
    issued=numbers,
    expires=numbers,
    static=of(StaticChoice, draft=labels, k=st.integers(0, 32)),
    k_values=st.lists(st.integers(0, 32), max_size=4),
    cells=st.lists(
        of(
            PolicyCell,
            domain=labels,
            regime=regimes,
            load=counts,
            drafts=st.lists(
                of(
                    DraftChoice,
                    draft=labels,
                    p=st.floats(0, 1),
                    k=st.lists(st.tuples(st.integers(0, 32), st.floats(0, 1)), max_size=3),
                    alpha=st.lists(numbers, max_size=3),
                    beta=st.lists(numbers, max_size=3),
                    seconds=st.lists(st.tuples(st.integers(0, 32), numbers), max_size=3),
                ),
                max_size=2,
            ),
        ),
        max_size=3,
    ),
    mode=st.sampled_from(["off", "shadow", "shadow+probe", "canary", "on"]),
    probe=of(ProbePlan, every=counts, steps=counts),
)


@given(frames)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode_frame(encode(frame)) == frame


@given(policies)
def test_a_policy_survives_the_wire(policy: Policy) -> None:
    assert decode_policy(encode(policy)) == policy


def test_fields_of_a_newer_writer_are_ignored() -> None:
    frame = decode_frame(b'{"engine":"e","incarnation":"i","seq":1,"time":0,"unix":0,"colour":"red"}')
    assert frame == Frame("e", "i", 1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (b'"seq":-1', r"\$\.seq"),
        (b'"engine":"a\\u0000b"', r"\$\.engine"),
        (b'"breaker":"ajar"', r"\$\.breaker"),
        (b'"acceptance":[{"domain":"d","regime":"hot"}]', r"\$\.acceptance\[0\]\.regime"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_field_s_name(change: bytes, where: str) -> None:
    base = b'{"engine":"e","incarnation":"i","seq":1,"time":0,"unix":0,'
    with pytest.raises(msgspec.ValidationError, match=where):
        decode_frame(base + change + b"}")


@given(st.floats(1e-6, 4000))
def test_a_histogram_bucket_holds_its_seconds(seconds: float) -> None:
    bucket = histogram_bucket(seconds)
    assert histogram_seconds(bucket) <= seconds * (1 + 1e-9)
    assert seconds < histogram_seconds(bucket + 1) * (1 + 1e-9)


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_load_bucket_is_the_largest_of_those_up_to_any_larger_batch(n: int, more: int) -> None:
    buckets = load_buckets(n + more)
    assert load_bucket(n) == max(low for low in buckets if low <= n)
    assert load_bucket(n) in load_buckets(n)
    assert buckets[-1] == load_bucket(n + more)
    # Octaves up to 8, from 16 on alternately 3/2 and 4/3 of the one before.
    ratios = [(high, low) for low, high in pairwise(buckets)]
    for number, (high, low) in enumerate(ratios):
        assert high / low == (2 if number < 4 else 1.5 if number % 2 == 0 else 4 / 3)


def test_load_buckets_by_hand() -> None:
    assert load_buckets(0) == ()
    assert load_buckets(1) == (1,)
    assert load_buckets(15) == (1, 2, 4, 8)
    assert load_buckets(23) == (1, 2, 4, 8, 16)
    assert load_buckets(512) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@given(st.integers(1, 10_000))
def test_buckets_are_lower_bounds(n: int) -> None:
    assert load_bucket(n) <= n < 2 * load_bucket(n)
    assert prefill_bucket(n) <= n
    assert passes_bucket(n) <= n
    assert passes_bucket(passes_bucket(n)) == passes_bucket(n)


def test_a_negative_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="batch is -1"):
        load_bucket(-1)
