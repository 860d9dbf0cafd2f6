"""A tiny random Llama in bfloat16, and its first layers as a draft, in Hugging Face folders. Runs where vLLM is:
`python pair.py TARGET DRAFT`."""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write(folder: Path, layers: int = 4, seed: int = 0, spread: float = 0.02) -> None:
    """Write it. Heads of 64 numbers: vLLM's CPU attention takes no smaller ones. `spread` of the weights: at 0.02 a
    text soon repeats one token, at 0.075 it wanders, and the first layers alone foretell a third of it.
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
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True,
        initializer_range=spread,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    fast.save_pretrained(folder)


def truncate(target: Path, folder: Path, layers: int) -> None:
    """Write the target's first layers as a model of their own: a draft that is right often and wrong often."""
    config = LlamaConfig.from_pretrained(target)
    config.num_hidden_layers = layers
    LlamaForCausalLM.from_pretrained(target, config=config, dtype=torch.bfloat16).save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(target).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]), spread=0.075)
    truncate(Path(sys.argv[1]), Path(sys.argv[2]), 3)
