"""The wire between engines and controller, and the engine's side of it: report, follow, choose, guard. No torch.

An engine needs `Link` (or `StaticLink`), `LinkSettings` and `EngineDescription`, and hands over a `StepOutcome` a step.
"""

from engine.link.link import Link
from engine.link.messages import DraftInfo, EngineDescription, StaticChoice
from engine.link.settings import LinkSettings, SettingsError, load
from engine.link.static import StaticLink
from engine.link.ticket import LinkLike, RowOutcome, StepOutcome, Ticket

__all__ = [
    "DraftInfo",
    "EngineDescription",
    "Link",
    "LinkLike",
    "LinkSettings",
    "RowOutcome",
    "SettingsError",
    "StaticChoice",
    "StaticLink",
    "StepOutcome",
    "Ticket",
    "load",
]
