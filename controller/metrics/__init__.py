"""Prometheus metrics, read from the pools' views at scrape time: nothing is counted twice or kept in two places.

Labels are bounded: pools, domains, drafts and engines have caps, and only the best-known curves are exported.
`docs/reference/metrics.md` lists every name.
"""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from controller.metrics.pools import PoolCollector
from controller.supervisor import Supervisor

__all__ = ["PoolCollector", "registry"]


def registry(supervisor: Supervisor, release: str) -> CollectorRegistry:
    """A registry of this process's metrics and of all its pools'. `release`: this version of the package."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(PoolCollector(supervisor, release))
    return registry
