"""OpenAI-compatible HTTP over the torch engine: bodies and errors, jobs between two threads, metrics, the process.

`run(EngineSettings())` serves until told to stop; `build` and `create_app` are its parts, for those who embed it.
"""

from engine.server.app import create_app
from engine.server.host import Host
from engine.server.serve import build, run, server
from engine.server.settings import EngineSettings

__all__ = ["EngineSettings", "Host", "build", "create_app", "run", "server"]
