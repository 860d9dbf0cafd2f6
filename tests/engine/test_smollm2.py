"""The real model: greedy output in float32 is that of plain decoding and of `transformers`, whatever drafts do."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.core import Engine, SamplingParams
from engine.link import StaticLink
from engine.models import load_prompts

pytestmark = pytest.mark.model

EAGLE = Path(__file__).parents[2] / "engine" / "data" / "smollm2-eagle"
DRAFTS = ("none", "ngram", "first", "eagle")
PARAMS = SamplingParams(max_tokens=32)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = Path("~/.cache/adaptive-k/models/SmolLM2-135M-Instruct").expanduser()
    if not found.is_dir():
        pytest.skip("SmolLM2-135M-Instruct is not in the cache; `akc models fetch` brings it")
    return found


@pytest.fixture(scope="module")
def first_layers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of kind `model`: the target's first layer under its own head."""
    made = tmp_path_factory.mktemp("first")
    tensors = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.startswith("model.layers.") or k.startswith("model.layers.0.")}
    save_file(kept, made / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    (made / "config.json").write_text(json.dumps(config))
    (made / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return made


@pytest.fixture(scope="module")
def engine(folder: Path, first_layers: Path) -> Engine:
    drafts: dict[str, str | Path] = {"ngram": "ngram", "first": first_layers}
    if (EAGLE / "model.safetensors").is_file():
        drafts["eagle"] = EAGLE
    return Engine(folder, drafts, max_batch=4, max_len=512, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    """Two real ones of each domain, the shortest: prompts are read at full price here."""
    listed = [sorted((engine.encode(p.messages) for p in ps), key=len)[:2] for ps in load_prompts().values()]
    return [prompt for pair in listed for prompt in pair]


@pytest.fixture(scope="module")
def plain(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    engine.link = StaticLink()
    return [r.output for r in engine.generate(prompts, PARAMS)]


def test_any_mix_of_drafts_and_k_equals_plain_decoding(
    engine: Engine, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    rng = random.Random(0)
    table = {name: (name, 4) for name in DRAFTS}
    engine.link = StaticLink(table=table, choose=lambda ticket, batch: rng.randint(0, 5))
    requests = [engine.submit(p, PARAMS, DRAFTS[i % 4]) for i, p in enumerate(prompts)]
    while engine.step():
        pass
    assert [r.output for r in requests] == plain


def test_plain_decoding_equals_transformers(folder: Path, prompts: list[list[int]], plain: list[list[int]]) -> None:
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, own in list(zip(prompts, plain, strict=True))[::2]:
        ids = torch.tensor([prompt])
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert own[:24] == out[0, len(prompt) :].tolist()[:24]


def test_an_answer_makes_sense(engine: Engine) -> None:
    engine.link = StaticLink("ngram", 4)
    request = engine.generate([[{"role": "user", "content": "What is the capital of France?"}]])[0]
    assert (request.text, request.finish) == ("The capital of France is Paris.", "stop")
