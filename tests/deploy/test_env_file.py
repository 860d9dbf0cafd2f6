"""`.env` names every knob of the compose file, with the default that the file has anyway."""

import re

from tests.deploy.composed import ROOT, services


def test_every_variable_of_the_compose_file_is_there_with_its_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    # A default may hold a variable of its own: the innermost come first, then those around them.
    defaults: dict[str, str] = {}
    while found := re.findall(r"\$\{(\w+):-([^${}]*)\}", text):
        for name, default in found:
            assert defaults.setdefault(name, default) == default, name
            text = text.replace(f"${{{name}:-{default}}}", default)
    lines = [line for line in (ROOT / ".env").read_text().splitlines() if line and not line.startswith("#")]
    given = dict(line.split("=", 1) for line in lines)
    assert given.keys() == defaults.keys()
    for name, value in given.items():
        assert value == defaults[name], name


def test_secrets_of_others_are_not_asked_for_in_a_tracked_file() -> None:
    assert "HF_TOKEN=" not in (ROOT / ".env").read_text()
    assert services()["vllm"]["environment"]["HF_TOKEN"] is None  # whatever the shell has
