"""All pools of one controller process: finds them, runs a loop for each, stops them together."""

import asyncio
import logging
import re

from redis.asyncio import Redis

from controller.loop import PoolLoop
from controller.settings import ControllerSettings
from controller.store import UNAVAILABLE, PoolStore, connect, pools
from engine.link.messages import POOL_NAME, POOL_NAMES
from engine.link.transport import complaint

log = logging.getLogger("controller")

DISCOVERY_SECONDS = 2.0
STOP_SECONDS = 20.0


class Supervisor:
    """`pools`: the loops by pool name. `problem`: why the registry of pools cannot be read, or None."""

    def __init__(self, settings: ControllerSettings, client: "Redis | None" = None) -> None:
        self.settings = settings
        self.client = client or connect(
            settings.redis_url, timeout=settings.redis_timeout, ca_file=settings.redis_ca_file
        )
        self.pools: dict[str, PoolLoop] = {}
        self.problem: str | None = "not connected to Redis yet"
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._refused: set[str] = set()
        self._away = False  # the log knows that Redis is

    async def run(self) -> None:
        """Serve all pools until `stop`; ends when every loop has written its last checkpoint."""
        while not self._stopping.is_set():
            try:
                for pool in self.settings.pools or await pools(self.client):
                    self._serve(pool)
                await self.client.ping()
                if self._away:
                    log.info("Redis answers again")
                self._away, self.problem = False, None
            except UNAVAILABLE as error:
                problem = f"Redis {complaint(error)}"
                if not self._away:  # once, however long it lasts
                    log.warning("%s; trying again", problem)
                self._away, self.problem = True, problem
            try:
                await asyncio.wait_for(self._stopping.wait(), DISCOVERY_SECONDS)
            except TimeoutError:
                continue
        await self._end()

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stopping.set()

    def _serve(self, pool: str) -> None:
        if pool in self.pools or pool in self._refused:
            return
        if not re.fullmatch(POOL_NAME, pool):
            self._refused.add(pool)
            log.error("pool %r is not served: its name is not %s", pool, POOL_NAMES, extra={"pool": pool})
            return
        if len(self.pools) >= self.settings.max_pools:
            self._refused.add(pool)
            most = self.settings.max_pools
            log.error("pool %s is not served: max_pools is %d", pool, most, extra={"pool": pool})
            return
        store = PoolStore(self.client, pool, lease_seconds=self.settings.lease_seconds)
        self.pools[pool] = PoolLoop(store, self.settings)
        self._tasks[pool] = asyncio.create_task(self.pools[pool].run(), name=f"pool {pool}")

    async def _end(self) -> None:
        for loop in self.pools.values():
            loop.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS)
            for task in late:
                log.error("%s did not end within %.0f s", task.get_name(), STOP_SECONDS)
                task.cancel()
        await self.client.aclose()
