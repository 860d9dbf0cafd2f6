"""`.env` names every knob of the compose file, with the default that the file has anyway."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
        # Empty here: what the file makes of the other knobs.
        assert value in (defaults[name], "") if name == "AKC_REDIS_URL" else value == defaults[name], name
