"""Pairs of target and draft, in folders with real (tiny) tokenizers; old command lines; padded copies."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import CliRunner

from controller.cli.commands import app
from engine.vet import FolderError, read_folder, vet
from engine.vet.flags import FlagsError, translate
from engine.vet.padding import pad_to
from engine.vet.sizes import parameters, read_bytes

WORDS = ["[UNK]", "def", "total", "=", "return", "A", "train", "at", "Thanks", "for"]
GUIDE = (
    "python3 -m vllm.entrypoints.openai.api_server --model /models/Qwen2.5-72B-Instruct-AWQ "
    "--speculative-model /models/Qwen2.5-0.5B-Instruct --num-speculative-tokens 5 --speculative-max-model-len 4096 "
    "--gpu-memory-utilization 0.94 --port 8000"
)


def folder(path: Path, words: list[str], rows: int, layers: int, weights: bool = False) -> Path:
    path.mkdir()
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "vocab_size": rows, "hidden_size": 8, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 16,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    if weights:
        rng = np.random.default_rng(0)
        tensors = {
            "model.embed_tokens.weight": rng.normal(size=(rows, 8)).astype(np.float16),
            "lm_head.weight": rng.normal(size=(rows, 8)).astype(np.float16),
            "model.norm.weight": np.ones(8, dtype=np.float16),
        }
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def pair(tmp_path: Path, words: list[str], rows: int, layers: int = 1) -> tuple[Path, Path]:
    return folder(tmp_path / "target", WORDS, 16, 10), folder(tmp_path / "draft", words, rows, layers)


def test_one_tokenizer_and_as_many_rows_fits_as_it_is(tmp_path: Path) -> None:
    found = vet(*map(read_folder, pair(tmp_path, WORDS, 16)), k=3)
    assert (found.kind, found.exit, found.shared, found.covered) == ("same", 0, 1.0, 1.0)
    assert found.config == {"method": "draft_model", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3}
    # A layer: 2 * 8 * 4 * (2 + 1) + 3 * 8 * 16 = 576 numbers of 2 bytes; the output 16 * 8 of them.
    assert found.ratio == pytest.approx((2 * 576 + 2 * 128) / (2 * 5760 + 2 * 128))


def test_one_tokenizer_padded_to_two_sizes_wants_a_change(tmp_path: Path) -> None:
    found = vet(*map(read_folder, pair(tmp_path, WORDS, 12)))
    assert (found.kind, found.exit) == ("padded", 3)
    assert "padded to 16 and 12 rows" in found.sentence
    assert found.config is not None
    assert found.config["use_heterogeneous_vocab"] is True


def test_other_tokens_are_counted_in_the_vocabulary_and_in_text(tmp_path: Path) -> None:
    found = vet(*map(read_folder, pair(tmp_path, [*WORDS[:5], "x", "y"], 7)))
    assert (found.kind, found.exit, found.shared) == ("different", 4, 0.5)
    # The sample text has words outside the target's ten, all [UNK]: known; of the five unknown here some occur in it.
    assert 0.5 < found.covered < 1.0


def test_as_many_rows_do_not_make_the_same_vocabulary(tmp_path: Path) -> None:
    found = vet(*map(read_folder, pair(tmp_path, [*WORDS[:8], "for", "Thanks"], 16)))
    assert (found.kind, found.exit, found.shared) == ("renumbered", 4, 1.0)
    assert "2 ids mean other strings" in found.sentence


@pytest.mark.parametrize(
    ("target", "draft", "told"), [(64, 32, True), (64, 64, False), (32, 64, False), (None, 32, False)]
)
def test_a_draft_that_reads_shorter_texts_is_told_of(
    tmp_path: Path, target: int | None, draft: int, told: bool
) -> None:
    paths = pair(tmp_path, WORDS, 16)
    for path, length in zip(paths, (target, draft), strict=True):
        if length is not None:
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": length}))
    found = vet(*map(read_folder, paths))
    assert found.kind == "same"
    assert (found.context is not None) is told
    assert not told or "32 tokens, the target's 64" in str(found.context)
    printed = CliRunner().invoke(app, ["vet", *map(str, paths)]).stdout
    assert ("drafts for nobody" in printed) is told


@pytest.mark.parametrize(("words", "layers", "why"), [(WORDS, 10, "1.00 times"), (["p", "q"], 1, "no token in common")])
def test_pairs_that_cannot_work(tmp_path: Path, words: list[str], layers: int, why: str) -> None:
    found = vet(*map(read_folder, pair(tmp_path, words, 16, layers)))
    assert (found.kind, found.exit, found.config) == ("unusable", 5, None)
    assert why in found.sentence


def test_sizes_of_known_models() -> None:
    """Qwen2.5-72B has 72.7e9 parameters, its AWQ copy reads 4 bits of the layers' and 16 of the output's; Mixtral 8x7B
    has 46.7e9, of which a token takes 12.9e9."""
    qwen = {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 29568, "vocab_size": 152064,
    }  # fmt: skip
    assert parameters(qwen) == pytest.approx(72.7e9, rel=0.002)
    output = 152064 * 8192
    awq = read_bytes({**qwen, "quantization_config": {"quant_method": "awq", "bits": 4}})
    assert awq == pytest.approx((72.7e9 - 2 * output) / 2 + 2 * output, rel=0.002)
    mixtral = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    assert parameters(mixtral) == pytest.approx(46.7e9, rel=0.002)
    assert read_bytes(mixtral) == pytest.approx(2 * (12.9e9 - 32000 * 4096), rel=0.005)


def test_a_padded_copy_has_the_target_s_rows_and_the_draft_s_numbers(tmp_path: Path) -> None:
    draft = folder(tmp_path / "draft", WORDS, 12, 1, weights=True)
    assert sorted(pad_to(draft, tmp_path / "padded", 16)) == ["lm_head.weight", "model.embed_tokens.weight"]
    before, after = (load_file(path / "model.safetensors") for path in (draft, tmp_path / "padded"))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert after[name].shape == (16, 8)
        np.testing.assert_array_equal(after[name][:12], before[name])
        assert not after[name][12:].any()
    np.testing.assert_array_equal(after["model.norm.weight"], before["model.norm.weight"])
    assert read_folder(tmp_path / "padded").size == 16
    assert (tmp_path / "padded" / "tokenizer.json").read_bytes() == (draft / "tokenizer.json").read_bytes()
    with pytest.raises(FolderError, match="exists"):
        pad_to(draft, tmp_path / "padded", 16)
    with pytest.raises(FolderError, match="12 rows; the target has only 10"):
        pad_to(draft, tmp_path / "other", 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "padded"]


def test_the_guides_command_in_todays_form() -> None:
    found = translate(GUIDE)
    assert found.command == (
        "vllm serve /models/Qwen2.5-72B-Instruct-AWQ --gpu-memory-utilization 0.94 --port 8000 --speculative-config "
        '\'{"method": "draft_model", "model": "/models/Qwen2.5-0.5B-Instruct", "num_speculative_tokens": 5, '
        '"max_model_len": 4096}\''
    )
    assert (found.target, found.draft) == ("/models/Qwen2.5-72B-Instruct-AWQ", "/models/Qwen2.5-0.5B-Instruct")
    (remark,) = found.remarks
    assert remark.startswith("max_model_len 4096 is kept: ")


def test_lookup_in_the_prompt_and_flags_with_an_equals_sign() -> None:
    found = translate("vllm serve T --speculative_model=[ngram] --num-speculative-tokens=4 --ngram-prompt-lookup-max 3")
    assert found.command.endswith('\'{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}\'')
    assert found.draft is None


@pytest.mark.parametrize(
    "server", ["python3 -m vllm.entrypoints.openai.api_server --model T", "/usr/bin/python3.11 -u -m "
               "vllm.entrypoints.openai.api_server --model=T", "vllm serve T"],
)  # fmt: skip
def test_what_stands_before_the_server_s_command_stays(server: str) -> None:
    line = f"CUDA_VISIBLE_DEVICES=0,1 NOTE='a b' nohup {server} --speculative-model D --num-speculative-tokens 3"
    found = translate(line)
    assert found.command.startswith("CUDA_VISIBLE_DEVICES=0,1 NOTE='a b' nohup vllm serve T --speculative-config ")
    assert (found.target, found.draft, found.remarks) == ("T", "D", [])


def test_flags_that_are_gone_are_left_out_with_a_remark() -> None:
    found = translate(
        "vllm serve T --use-v2-block-manager --speculative-model D --num_speculative_tokens 3 "
        "--spec-decoding-acceptance-method typical_acceptance_sampler "
        "--typical_acceptance_sampler_posterior_alpha=0.3 --port 1"
    )
    assert found.command.startswith("vllm serve T --port 1 --speculative-config ")
    assert [remark.split(" is gone")[0] for remark in found.remarks] == [
        "--use-v2-block-manager", "--spec-decoding-acceptance-method typical_acceptance_sampler",
        "--typical-acceptance-sampler-posterior-alpha 0.3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("vllm serve T", "no removed flag"),
        ("vllm serve T --num-speculative-tokens 4", "no draft"),
        ("vllm serve T --speculative-model", "has no value"),
        ("vllm serve 'T", "cannot be read"),
    ],
)
def test_command_lines_that_cannot_be_translated(line: str, why: str) -> None:
    with pytest.raises(FlagsError, match=why):
        translate(line)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "config.json").unlink(), "config.json is not there"),
        (lambda path: (path / "config.json").write_text("{"), "not valid JSON"),
        (lambda path: (path / "config.json").write_text('{"vocab_size": "many"}'), "vocab_size is 'many'"),
        (lambda path: (path / "config.json").write_text('{"vocab_size": 4}'), "token 9 is beyond vocab_size 4"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "has no vocabulary"),
        (lambda path: (path / "tokenizer.json").write_text("[]"), "holds a list"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path: Path, spoil: "object", why: str) -> None:
    path = folder(tmp_path / "target", WORDS, 16, 10)
    spoil(path)  # type: ignore[operator]  # a function of the folder
    with pytest.raises(FolderError, match=why):
        read_folder(path)


def test_the_command(tmp_path: Path) -> None:
    target, draft = folder(tmp_path / "target", WORDS, 16, 10), folder(tmp_path / "draft", WORDS, 12, 1, weights=True)
    run = CliRunner()
    found = run.invoke(app, ["vet", str(target), str(draft)])
    assert found.exit_code == 3
    assert found.stdout.startswith("padded: same tokenizer")
    padded = run.invoke(app, ["vet", str(target), str(draft), "--pad-to", str(tmp_path / "new"), "--json"])
    assert padded.exit_code == 0
    assert json.loads(padded.stdout)["kind"] == "same"
    line = f"vllm serve {target} --speculative-model {draft} --num-speculative-tokens 3"
    translated = run.invoke(app, ["vet", "--from-flags", line])
    assert translated.exit_code == 3
    assert '"use_heterogeneous_vocab": true' in translated.stdout.splitlines()[0]
    assert run.invoke(app, ["vet", "--from-flags", GUIDE]).exit_code == 0
    for bad in (["vet", str(target)], ["vet", str(target), str(tmp_path / "nowhere")]):
        assert run.invoke(app, bad).exit_code == 2
