"""The entry point `vllm.general_plugins`: vLLM calls `register` in every process of its own, long before a worker.

It puts our proposer in the place of vLLM's draft model proposer, in the one module that makes it. That module drags in
all of the worker, so it is not imported for this: it is changed when vLLM itself imports it, if it ever does. Without
`drafters` in the settings our proposer does what vLLM's does.
"""

import importlib.util
import inspect
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
    try:
        if stock is None:
            raise LookupError(f"{MODULE}.{NAME} is not there")
        if "akc" in vars(stock):
            return
        _fits(stock)
        from engine.vllm.proposer import SeveralDrafters

        setattr(module, NAME, SeveralDrafters)
    except Exception as error:
        # Whether anybody wanted several drafters is not known here; the scheduler says so where they did.
        _log.warning("adaptive_k: one drafter only: %s", error)


def _fits(stock: type[Any]) -> None:
    from vllm.version import __version__

    if minor(__version__) not in TESTED:
        raise LookupError(f"vLLM {__version__} is not among the versions it was tested with ({', '.join(TESTED)})")
    why = missing(__version__, stock, PROPOSER)
    if why is not None:
        raise LookupError(why)
    if "runner" not in inspect.signature(stock).parameters:
        raise LookupError(f"{NAME} of vLLM {__version__} takes no runner")


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
