"""The real model: greedy output in float32 is that of plain decoding and of `transformers`, whatever drafts do."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.core import Engine, SamplingParams
from engine.core.model import Decoder
from engine.link import StaticLink
from engine.models import fetch_smollm2, load_prompts
from tests.engine.test_model import logits

pytestmark = pytest.mark.model

EAGLE = Path(__file__).parents[2] / "engine" / "data" / "smollm2-eagle"
DRAFTS = ("none", "ngram", "first", "eagle")
PARAMS = SamplingParams(max_tokens=32)


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_smollm2(progress=False)


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


@pytest.mark.parametrize("turn", range(4))
def test_any_mix_of_drafts_and_k_equals_plain_decoding(
    engine: Engine, prompts: list[list[int]], plain: list[list[int]], turn: int
) -> None:
    """Over the turns every draft decodes every prompt, beside other drafts."""
    rng = random.Random(turn)
    table = {name: (name, 4) for name in DRAFTS}
    engine.link = StaticLink(table=table, choose=lambda ticket, batch: rng.randint(0, 5))
    requests = [engine.submit(p, PARAMS, DRAFTS[(i + turn) % 4]) for i, p in enumerate(prompts)]
    while engine.step():
        pass
    assert [r.output for r in requests] == plain


def test_logits_of_real_prompts_equal_those_of_transformers(folder: Path, prompts: list[list[int]]) -> None:
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = Decoder(folder, dtype=torch.float32, device=torch.device("cpu"), max_len=512)
    rows = prompts[::2]  # one a domain; read whole, in pieces, and as one long and one single-token piece
    found = logits(model, rows, [[len(rows[0])], [7, 1, len(rows[1]) - 8], [len(rows[2]) - 1, 1]])
    for row, own in zip(rows, found, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([row])).logits[0]
        # Logits reach 20 to 30; thirty layers of float32 sums in another order leave a few units in the fifth digit.
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=2e-3)


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
