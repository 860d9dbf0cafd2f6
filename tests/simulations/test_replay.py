"""Replay of recorded steps: walks against enumeration and against engines that really run, prices by hand."""

from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from controller.cli.replay import register
from engine.link.static import StaticLink
from engine.link.ticket import RowOutcome, StepOutcome
from engine.link.trace import Traced, Tracer
from simulations.recording import COLUMNS, Recording, RecordingError, from_folder, from_lines, read, write
from simulations.replay import Replay, expected_steps

SHIPPED = Path(__file__).parents[2] / "simulations" / "traces" / "smollm2.parquet"
SECONDS = {0: 0.100, 2: 0.120, 4: 0.180, 8: 0.250}  # of a step of one row


def runs(bits: list[int], k: int) -> list[tuple[int, int, int, int, bool]]:
    """Steps at K = k of an engine whose draft agrees with the text where `bits` says: (drafted, accepted, seen,
    emitted, limited), the K of the last steps clamped to the room that is left."""
    steps, t = [], 0
    while t < len(bits):
        drafted = min(k, len(bits) - t - 1)
        n = 0
        while n < drafted and bits[t + n]:
            n += 1
        steps.append((drafted, n, min(n + 1, drafted), n + 1, drafted < k))
        t += n + 1
    return steps


def record(path: Path, texts: dict[str, list[list[int]]], arms: list[tuple[str, int]], *, prefill: int = 0) -> Path:
    """One row at a time: every text of every domain at every (draft, K), traced by the engine's own code."""
    tracer = Tracer(path, "e", "i", 1024)
    for draft, k in arms:
        link = Traced(StaticLink(draft, k), tracer)
        link._steps = 1_000_000 * (1 + arms.index((draft, k)))  # numbers of steps go on from arm to arm
        for domain, some in texts.items():
            for bits in some:
                ticket = link.admit(domain, "greedy", 1)
                for drafted, accepted, seen, emitted, limited in runs(bits, k):
                    planned = link.plan([ticket], 1)
                    assert planned == [k]
                    row = RowOutcome(ticket, drafted, accepted, seen, emitted, limited)
                    price = np.interp(drafted, list(SECONDS), list(SECONDS.values()))
                    link.record(StepOutcome(float(price), [row], drafted + 1, prefill))
                link.finish(ticket)
    return path


def replayed(recording: Recording, draws: int = 200) -> Replay:
    return Replay(recording, np.random.default_rng(0), draws)


def test_expected_steps_agree_with_all_ways_in_which_the_unknown_tokens_can_fall() -> None:
    rng = np.random.default_rng(1)
    agreement = rng.choice([0.0, 1.0, 0.3, 0.7], size=(4, 7))
    length = np.array([7, 7, 5, 1])
    for k in range(5):
        by_hand = []
        for row, size in zip(agreement, length.tolist(), strict=True):
            total = 0.0
            for bits in product((0, 1), repeat=size):
                chance = float(np.prod([p if bit else 1 - p for p, bit in zip(row, bits, strict=False)]))
                total += chance * len(runs(list(bits), k))
            by_hand.append(total)
        assert expected_steps(agreement, length, k) == pytest.approx(by_hand, abs=1e-12)


def test_where_the_draft_follows_the_text_alone_a_walk_takes_the_steps_an_engine_would(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    texts = {}
    for domain, rate in (("code", 0.8), ("chat", 0.4)):
        bits = rng.random((12, 40)) < rate
        bits[:, ::7] = False  # no row of eight: at K = 8 every rejection is seen, and no token stays unknown
        texts[domain] = bits.astype(int).tolist()
    folder = record(tmp_path, texts, [("none", 0), ("draft", 8)])
    results = {(row.domain, row.k): row for row in replayed(from_folder(folder)).results()}
    for domain, some in texts.items():
        for k in range(9):
            steps = sum(len(runs(bits, k)) for bits in some)
            assert results[domain, k].tokens == pytest.approx(12 * 40 / steps, rel=1e-9)


def test_at_the_recorded_k_nothing_is_counterfactual(tmp_path: Path) -> None:
    bits = (np.random.default_rng(3).random((10, 50)) < 0.9).astype(int).tolist()
    recording = from_folder(record(tmp_path, {"code": bits}, [("none", 0), ("draft", 4)]))
    (row,) = [row for row in replayed(recording).results() if row.k == 4]
    assert row.real
    assert row.tokens == pytest.approx(500 / sum(len(runs(some, 4)) for some in bits), rel=1e-12)
    assert row.over_recorded == (1.0, 1.0, 1.0)


def test_prices_are_recorded_means_and_lie_on_a_line_between_recorded_k(tmp_path: Path) -> None:
    """All 60 tokens agree, 60 = 20 x 3 = 15 x 4 = 12 x 5. K = 3 costs (.120 + .180) / 2."""
    bits = [[1] * 60] * 3
    recording = from_folder(record(tmp_path, {"code": bits}, [("none", 0), ("draft", 2), ("draft", 4)]))
    rows = {row.k: row for row in replayed(recording).results()}
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert rows[0].goodput == pytest.approx(10.0)
    assert rows[2].goodput == pytest.approx(3 / 0.120)
    assert rows[3].goodput == pytest.approx(4 / 0.150)
    assert rows[4].goodput == pytest.approx(5 / 0.180)
    assert rows[4].over_plain.value == pytest.approx(5 / 0.180 / 10.0)


def test_steps_with_prompt_tokens_or_with_mixed_k_have_no_price(tmp_path: Path) -> None:
    recording = from_folder(record(tmp_path, {"code": [[1] * 30] * 3}, [("none", 0), ("draft", 4)], prefill=9))
    assert replayed(recording).results() == []
    clean = from_folder(record(tmp_path / "clean", {"code": [[1] * 30] * 3}, [("draft", 4), ("draft", 2)]))
    # All rows are made rows of one step: K = 4 beside K = 2.
    both = Recording(*(getattr(clean, name) for name in COLUMNS))
    both.step[:] = 0
    assert replayed(both).results() == []


def test_held_out_requests_at_smaller_k_are_predicted(tmp_path: Path) -> None:
    """Requests differ in how easy they are, and the draft follows the text alone: the method has no bias."""
    rng = np.random.default_rng(4)

    def texts(n: int) -> list[list[int]]:
        ease = rng.beta(4.0, 2.0, size=(n, 1))
        return [[int(bit) for bit in row] for row in rng.random((n, 64)) < ease]

    folder = record(tmp_path, {"code": texts(150)}, [("none", 0), ("draft", 8)])
    record(folder, {"code": texts(150)}, [("draft", 2)])
    recording = from_folder(folder)
    recording.step[:] = np.arange(len(recording))  # the two recordings number their steps alike
    (check,) = replayed(recording).checks()
    assert (check.k, check.requests) == (2, 150)
    assert check.tokens.low < 1.0 < check.tokens.high
    assert check.tokens.value == pytest.approx(1.0, abs=0.06)  # two standard errors of 150 such requests against 150
    assert check.goodput is not None
    assert check.goodput.low < check.goodput.value < check.goodput.high


def test_a_prompt_that_was_decoded_twice_is_drawn_as_one(tmp_path: Path) -> None:
    """The same texts at both K: the prediction is exact for each, so pairing leaves no width; unpaired it is wide."""
    rng = np.random.default_rng(5)
    bits = rng.random((40, 64)) < rng.beta(4.0, 2.0, size=(40, 1))
    bits[:, ::7] = False
    folder = record(tmp_path, {"code": bits.astype(int).tolist()}, [("none", 0), ("draft", 8), ("draft", 2)])
    (paired,) = replayed(from_folder(folder, paired=True)).checks()
    (apart,) = replayed(from_folder(folder)).checks()
    assert paired.tokens.value == pytest.approx(1.0, abs=1e-12)
    assert paired.tokens.high - paired.tokens.low < 1e-9
    assert apart.tokens.high - apart.tokens.low > 0.05


def test_a_recording_comes_back_from_parquet_as_it_was(tmp_path: Path) -> None:
    bits = [[1, 0, 1, 1, 0, 1]] * 2
    recording = from_folder(record(tmp_path, {"code": bits, "chat": bits}, [("draft", 2)]))
    write(recording, tmp_path / "steps.parquet")
    again = read(tmp_path / "steps.parquet")
    for name in COLUMNS:
        written, got = getattr(recording, name).tolist(), getattr(again, name).tolist()
        assert got == (pytest.approx(written, rel=1e-6) if name == "seconds" else written)
    # 101101 at K = 2: one kept and the rejected one; two kept and the next; a last token without room for a draft.
    first = recording.where(recording.request == 0)
    assert first.position.tolist() == [0, 2, 5]
    assert first.drafted.tolist() == [2, 2, 0]
    assert first.accepted.tolist() == [1, 2, 0]
    assert first.batch.tolist() == [1, 1, 1]


def test_what_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"holds no \*\.jsonl"):
        from_folder(tmp_path)
    with pytest.raises(RecordingError, match="the trace has no step"):
        from_lines([])
    (tmp_path / "x.jsonl").write_text('{"engine": 1}\n')
    with pytest.raises(RecordingError, match="line 1"):
        from_folder(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(RecordingError, match="cannot be read as parquet"):
        read(tmp_path / "x.parquet")
    folder = record(tmp_path / "plain", {"code": [[1] * 9]}, [("none", 0)])
    with pytest.raises(RecordingError, match="nothing can be replayed"):
        replayed(from_folder(folder))
    path = next(folder.iterdir())
    line = msgspec.json.decode(path.read_bytes())
    for batch in ([], [0] * 9):
        path.write_bytes(msgspec.json.encode({**line, "batch": batch}))
        with pytest.raises(RecordingError, match="batch sizes are missing"):
            from_folder(folder)


def test_on_the_shipped_recording_held_out_steps_are_predicted_within_two_percent() -> None:
    """The same twelve prompts at every K. Tokens only: seconds at a K that is held out depend on the line between."""
    checks = replayed(read(SHIPPED), 10).checks()
    assert {(check.draft, check.k) for check in checks} == {("ngram", 2), ("ngram", 4), ("eagle", 2), ("eagle", 4)}
    for check in checks:
        assert check.tokens.value == pytest.approx(1.0, abs=0.02)


def test_the_command_replays_the_shipped_recording(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    out = tmp_path / "out.json"
    result = CliRunner().invoke(app, [str(SHIPPED), "--draws", "50", "--json", str(out)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "over plain" in result.output
    both = msgspec.json.decode(out.read_bytes())
    assert {row["draft"] for row in both["replayed"]} == {"ngram", "eagle"}
    assert {row["domain"] for row in both["replayed"]} == {"code", "math", "chat", "all"}
    assert both["checks"]
    assert SHIPPED.stat().st_size < 1_000_000


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    result = CliRunner().invoke(app, [str(tmp_path / "absent.parquet")])
    assert result.exit_code == 2
    assert "cannot be read as parquet" in result.output


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    result = CliRunner().invoke(app, [str(SHIPPED), "--draws", "2", "--json", str(tmp_path / "no" / "x.json")])
    assert result.exit_code == 2
    assert "akc: [Errno 2] No such file or directory" in result.output
