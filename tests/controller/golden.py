"""`python -m tests.controller.golden FILE`: writes what `akc state dump` gives of a pool whose luck is seeded.

`state-1.akc` beside it was written so by version 0.1.0. It must always load: never write it anew; when a schema grows,
write another file and add a migration.
"""

import random
import sys
from pathlib import Path

import msgspec

from controller.backup import FORMAT, Backup
from controller.settings import ControllerSettings
from controller.steering import Orders, Pin, Reset
from controller.store import Entry
from controller.tuner import Tuner
from engine.link.messages import encode
from tests.controller.engines import CountingEngine

FILE = Path(__file__).parent / "state-1.akc"
POOL = "golden"
STARTED = 1_790_000_000.0  # Unix seconds
NOW = STARTED + 600
SETTINGS = ControllerSettings(draws=64, seed=1)
ORDERS = Orders(revision=3, mode="canary", pins=(Pin("chat", "ngram", 2),), resets=(Reset(1, "math"),), share=0.25)


def engine() -> CountingEngine:
    """The engine whose counts are in the file."""
    counting = CountingEngine(name="golden-0", incarnation="golden", started=STARTED)
    counting.run(300, random.Random(7), ("code", "chat", "math"))
    return counting


def tuner() -> Tuner:
    """What has learned from them, obeyed the orders and decided once."""
    learning = Tuner(POOL, SETTINGS)
    learning.consume([Entry(f"{int(NOW * 1000)}-0", encode(engine().frame(full=True)))], NOW)
    learning.steer(ORDERS, NOW)
    learning.committed(learning.decide((int(NOW * 1000), 1), NOW))
    return learning


def main() -> None:
    """Write the file."""
    backup = Backup(FORMAT, POOL, NOW, tuner().dump(), msgspec.json.encode(ORDERS), "0.1.0")
    Path(sys.argv[1]).write_bytes(msgspec.msgpack.encode(backup))


if __name__ == "__main__":
    main()
