#!/bin/sh
# Resolves the lock files: lock.txt (all extras, for contributors and the demo), then the images' subsets, held to the same versions.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
resolve() {
  "$uv" pip compile --universal --generate-hashes --python-version 3.11 --override requirements/override.in \
    --no-annotate --no-header --quiet --no-emit-index-url --no-emit-find-links "$@"
}
resolve pyproject.toml requirements/build.in requirements/build-tools.in requirements/torch.in --all-extras -o requirements/lock.txt
resolve requirements/build-tools.in -c requirements/lock.txt -o requirements/build.txt
resolve pyproject.toml --extra controller -c requirements/lock.txt -o requirements/controller.txt
# vLLM brings msgspec, in the version that it was built with.
resolve pyproject.toml --no-emit-package msgspec -c requirements/lock.txt -o requirements/vllm.txt
resolve pyproject.toml requirements/torch.in --extra engine -c requirements/lock.txt -o requirements/engine.txt
