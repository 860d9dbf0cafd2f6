"""From settings to an engine: what is loaded, how it describes itself, and settings that make no sense."""

from pathlib import Path

import pytest

from engine.link.settings import SettingsError
from engine.server import EngineSettings, run
from engine.server.serve import EAGLE, hardware, processor, sources
from tests.server.conftest import Served


def test_smollm2_brings_its_own_drafts(monkeypatch: pytest.MonkeyPatch, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("engine.server.serve.EAGLE", tmp_path)
    monkeypatch.setattr("engine.server.serve.fetch_smollm2", lambda: model_folder)
    target, drafts = sources(EngineSettings())
    assert target == model_folder
    assert drafts["ngram"] == "ngram"
    assert drafts["eagle"] == str(tmp_path)


def test_settings_that_do_not_fit_together_are_named(model_folder: Path) -> None:
    folder = str(model_folder)
    with pytest.raises(SettingsError, match="'a' twice"):
        sources(EngineSettings(target=folder, drafts=("a=x", "a=y")))
    with pytest.raises(SettingsError, match="folder that exists"):
        sources(EngineSettings(target="/nowhere/at/all"))
    with pytest.raises(SettingsError, match="static_draft is 'eagle'; allowed: none, ngram"):
        sources(EngineSettings(target=folder, static_draft="eagle"))
    assert sources(EngineSettings(target=folder, drafts=("small=/x", "ngram")))[1] == {"small": "/x", "ngram": "ngram"}
    assert sources(EngineSettings(target=folder, drafts=("/models/tiny",)))[1] == {"tiny": "/models/tiny"}


def test_hardware_names_processor_threads_and_number_format(served: Served) -> None:
    text = hardware(served.host._engine)
    assert processor() in text
    assert text.endswith("float32")
    assert EAGLE.name == "smollm2-eagle"


def test_a_target_that_cannot_be_loaded_ends_the_process_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(EngineSettings(target=str(tmp_path), offline=True))
    assert str(ended.value.code).startswith("akc engine: ")
