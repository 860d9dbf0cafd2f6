"""The entry point `vllm.general_plugins`: vLLM calls `register` in every process of its own, long before a worker.

It puts our proposer in the place of vLLM's draft model proposer, in the one module that makes it. That module drags in
all of the worker, so it is not imported for this: it is changed when vLLM itself imports it, if it ever does. Without
`drafters` in the settings our proposer does what vLLM's does.
"""

import importlib.util
import logging
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from engine.vllm.versions import PROPOSER, TESTED, minor, missing

MODULE = "vllm.v1.worker.gpu_model_runner"
NAME = "DraftModelProposer"

_log = logging.getLogger("vllm.adaptive_k")


def register() -> None:
    """Put our proposer in place, now or when its module is imported. Calling it again changes nothing."""
    module = sys.modules.get(MODULE)
    if module is not None:
        replace(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def replace(module: ModuleType) -> None:
    """Replace the proposer in vLLM's module; leave it, and say so, where it is not as expected."""
    stock = getattr(module, NAME, None)
    if stock is not None and "akc" in vars(stock):
        return
    try:
        why = _misfit(stock)
        if why is None:
            from engine.vllm.proposer import SeveralDrafters

            setattr(module, NAME, SeveralDrafters)
            return
    except Exception as error:
        why = repr(error)
    # Whether anybody wanted several drafters is not known here: the scheduler says it louder where they did.
    _log.info("adaptive_k: one drafter only: %s", why)


def _misfit(stock: Any) -> str | None:
    from vllm.version import __version__

    if stock is None:
        return f"{MODULE}.{NAME} of vLLM {__version__} is not there"
    if minor(__version__) not in TESTED:
        return f"vLLM {__version__} is not among the versions it was tested with ({', '.join(TESTED)})"
    return missing(__version__, stock, PROPOSER)


class _Finder(MetaPathFinder):
    """Waits for one import, finds the module as everybody else would, and changes it once it has run."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            replace(module)

        loader.exec_module = exec_module
        return spec
