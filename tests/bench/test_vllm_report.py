"""The tables of the vLLM benchmark, from runs made by hand."""

import json

import pytest

from tests.bench.vllm_report import ADAPTIVE, MIXED, PLAIN, Report, Run, Step, fixed, held, priced, read


def run(round_: int, server: str, tokens: int, traffic: str = MIXED, seconds: float = 1.0) -> Run:
    return Run(round_, server, traffic, 4, tokens, seconds, 0.010, 0.020, 0)


SPEEDS = {PLAIN: 100, fixed(2): 120, fixed(8): 80, held(2): 118, ADAPTIVE: 126}
ROUNDS = [run(n, server, tokens) for n in range(1, 7) for server, tokens in SPEEDS.items()]


def test_the_best_stock_server_is_the_measure_and_ours_is_none_of_them() -> None:
    report = Report(ROUNDS)
    assert report.servers == [PLAIN, "K=2", "K=8", "ours, K=2", ADAPTIVE]
    assert report.stock() == [PLAIN, "K=2", "K=8"]
    assert report.best(MIXED, 4) == "K=2"
    ratio = report.ratio(ADAPTIVE, "K=2", MIXED, 4)
    assert (round(ratio.value, 6), round(ratio.low, 6), round(ratio.high, 6)) == (1.05, 1.05, 1.05)


def test_goodput_is_a_ratio_of_sums_over_rounds() -> None:
    # 10 tokens in 1 s and 10 in 4 s: 20 in 5, not the mean of 10 and 2.5.
    slow = [run(1, PLAIN, 10), run(2, PLAIN, 10, seconds=4.0), run(1, ADAPTIVE, 8), run(2, ADAPTIVE, 8)]
    assert Report(slow).ratio(ADAPTIVE, PLAIN, MIXED, 4).value == 2.0


def test_a_domain_alone_is_not_mixed_traffic() -> None:
    both = [*ROUNDS, *(run(1, server, 10 * tokens, "code") for server, tokens in SPEEDS.items())]
    assert [b.tokens for b in Report(both).blocks(PLAIN, MIXED, 4)] == [100] * 6
    assert [b.tokens for b in Report(both).blocks(PLAIN, None, 4)] == [1000]


def test_an_oracle_plays_the_best_stock_server_of_every_domain() -> None:
    speeds = {"code": {PLAIN: 100, fixed(8): 200, ADAPTIVE: 150}, "math": {PLAIN: 100, fixed(8): 40, ADAPTIVE: 100}}
    alone = [run(n, *one, domain) for n in range(1, 7) for domain, of in speeds.items() for one in of.items()]
    ratio = Report(alone).oracle(4)
    assert ratio is not None
    assert ratio.value == pytest.approx(250 / 300)
    assert "of every domain, 4 clients: 0.83x" in str(Report(alone))
    assert Report(ROUNDS).oracle(4) is None


def test_text_has_the_tables_the_price_of_the_plug_in_and_of_the_warm_up() -> None:
    text = str(Report([run(-1, ADAPTIVE, 63), run(-2, ADAPTIVE, 126), *ROUNDS]))
    assert "| mixed | 4 | 100 | **120** | 80 | 118 | 126 | 1.05x (1.05-1.05) | 1.26x (1.26-1.26) |" in text
    assert "| mixed | 4 | 10.0 / 20.0 |" in text
    assert "(ours, K=2 / K=2), mixed: 0.98x (0.98-0.98) at 4" in text
    assert "4 clients 0.50, 1.00" in text
    assert "Failed requests: 0. Rounds: 6." in text


def test_steps_are_paid_by_one_price_list_whatever_they_took() -> None:
    """Plain takes 96 steps of 0.1 s, K = 2 takes 48 of 0.12 s; half of these ran while the machine was half as fast."""
    plain = [Step(1, 1, 0, 0.1)] * 96
    fast, slow = [Step(1, 3, 0, 0.12)] * 48, [Step(1, 3, 0, 0.24)] * 47
    reading = [Step(0, 0, tokens, 0.05 + 0.001 * tokens) for tokens in (50, 100)] + [Step(1, 1, 50, 0.2)]

    def steps(round_: int, server: str, of: list[Step]) -> Run:
        return run(round_, server, 96)._replace(steps=[*of, *reading])

    done = [steps(1, PLAIN, plain), steps(1, ADAPTIVE, fast), steps(2, PLAIN, plain), steps(2, ADAPTIVE, slow)]
    seconds = [one.seconds for one in priced([*done, steps(-1, ADAPTIVE, slow)])]
    prompts = (0.05 + 0.05) + (0.05 + 0.1) + 0.2
    assert seconds == pytest.approx([9.6 + prompts, 5.76 + prompts, 9.6 + prompts, 5.64 + prompts])


def test_a_run_is_read_as_it_was_written() -> None:
    one = run(1, PLAIN, 96)._replace(steps=[Step(1, 3, 0, 0.12)])
    assert read(json.dumps(one)) == one
