"""A tiny random Llama with a tokenizer of its own, in a Hugging Face folder: its greedy text is varied and repeats
itself, so that half of what n-gram drafts propose is right. Without its last layer it is a draft that is right at three
tokens in four. Runs where vLLM is: `python model.py FOLDER [DRAFT [LORA]]`.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write(folder: Path, layers: int = 4, seed: int = 0) -> None:
    """Write it. Heads of 64 numbers: vLLM's CPU attention takes no smaller ones. Weights are float32: in bfloat16 the
    two best tokens are often equal, and then the text depends on the order of a sum.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<unk>", "<s>", "</s>", *letters]
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # the library's
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=512
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        initializer_range=0.06,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    last = model.model.layers[-1]
    with torch.no_grad():
        for weight in (last.self_attn.o_proj.weight, last.mlp.down_proj.weight):
            weight.mul_(0.3)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


def write_draft(folder: Path, target: Path, layers: int = 3) -> None:
    """Write the first layers of the target as a model of their own."""
    whole = LlamaForCausalLM.from_pretrained(target)
    config = LlamaConfig.from_pretrained(target)
    config.num_hidden_layers = layers
    cut = LlamaForCausalLM(config)
    cut.load_state_dict({name: whole.state_dict()[name] for name in cut.state_dict()})
    cut.save_pretrained(folder)
    AutoTokenizer.from_pretrained(target).save_pretrained(folder)


def write_lora(folder: Path, target: Path, rank: int = 8) -> None:
    """Write a random adapter of the target's query projections, large enough to change its greedy text."""
    config = LlamaConfig.from_pretrained(target)
    torch.manual_seed(7)
    width = config.hidden_size
    tensors = {}
    for layer in range(config.num_hidden_layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, width)
        tensors[f"{name}.lora_B.weight"] = torch.randn(width, rank)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))


if __name__ == "__main__":
    made = [Path(name) for name in sys.argv[1:]]
    write(made[0])
    for further, writer in zip(made[1:], (write_draft, write_lora), strict=False):
        writer(further, made[0])
