"""One pool's loop: take the lease, read frames, learn, decide, commit; and stand by while another replica leads.

Everything that computes runs in one worker thread at a time (`Tuner` is not shared), so that the API answers while a
decision is being made. Redis being away is a normal state: nothing is dropped, and the loop goes on where it was.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, ParamSpec, TypeVar

import msgspec

from controller.audit import Act
from controller.feed import Feed
from controller.history import SPARSE, History, Sample, sample
from controller.learner.schema import CheckpointError
from controller.settings import ControllerSettings
from controller.steering import Orders
from controller.store import UNAVAILABLE, Commit, LeaseLostError, PoolStore
from controller.tuner import Decided, Tuner
from controller.view import PoolView
from engine.link.logs import Told
from engine.link.messages import Version
from engine.link.transport import complaint, words

log = logging.getLogger("controller")

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
Role = Literal["starting", "standby", "leading", "stopped"]

READ_COUNT = 256  # frames of one read
BLOCK_SECONDS = 0.5  # longest wait for a frame, and so for a stop
CATCH_UP_SECONDS = 5.0  # while behind, decide at least this often
SLOWEST_RETRY = 5.0
STALE_SECONDS = 15.0
ANSWER_SECONDS = 10.0


def _settle(answer: "asyncio.Future[A]", computed: Callable[[], A]) -> None:
    if answer.done():
        return  # whoever asked has gone
    try:
        answer.set_result(computed())
    except Exception as error:
        answer.set_exception(error)


def _samples(stored: Iterable[bytes]) -> Iterator[Sample]:
    for data in stored:
        with contextlib.suppress(msgspec.MsgspecError):  # of another version: charts begin later
            yield msgspec.json.decode(data, type=Sample)


class PoolLoop:
    """Serves one pool until `stop`. `role`, `problem`, `complaint` and `view` are for the API to read at any time."""

    def __init__(
        self, store: PoolStore, settings: ControllerSettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.settings = settings
        self.role: Role = "starting"
        self.problem: str | None = None  # why it does not work right now, in a sentence
        self.catching_up = False
        self.tuner: Tuner | None = None
        self._clock = clock
        self._stopping = asyncio.Event()
        self._orders: bytes | None = None  # as last read
        self._obeyed: Orders | None = None  # the same, where they can be read
        self.history = History()
        self.feed = Feed()
        self._questions: deque[Callable[[Tuner], None]] = deque()
        self._committed: Version = (0, 0)  # of the newest commit known to be written
        self._n = 0
        self._number = 0
        self._renewed = 0.0
        self._log = Told(log, pool=store.pool, policy_version=lambda: self._committed if self._committed[1] else None)
        self._decided = 0.0
        self._issued = 0.0

    @property
    def view(self) -> PoolView | None:
        """What the last commit showed; None where another replica leads, or before the first commit."""
        return self.tuner.view if self.tuner is not None and self.role != "standby" else None

    @property
    def complaint(self) -> str | None:
        """What is wrong, in a sentence: why the pool is not served right now, else which of its engines are unlike."""
        view = self.view
        return self.problem or (view.disagreement if view is not None else None)

    def stale(self) -> bool:
        """Whether what can be seen is old: no frame for a while, or the policy has run out."""
        view, now = self.view, self._clock()
        if view is None or view.last_frame is None or now - view.last_frame > STALE_SECONDS:
            return True
        return view.expires is not None and now > view.expires

    def explain(self) -> str:
        """What the loop is doing, and what is wrong if anything is, for people."""
        view = self.view
        by_role = {
            "standby": "another replica leads this pool; this one stands by",
            "starting": "taking over: reading the checkpoint",
            "stopped": "stopped",
        }
        if self.problem is not None or self.role in by_role:
            return self.problem or by_role[self.role]
        if view is None or view.last_frame is None:
            return "no frame has been read yet"
        if self.catching_up:
            return f"catching up: reading frames of {view.frames.lag_seconds:.0f} s ago"
        if self.stale():
            return f"stale: the last frame came {self._clock() - view.last_frame:.0f} s ago"
        return view.disagreement or "up to date"

    def stop(self) -> None:
        """Ask the loop to write a last checkpoint, release the lease and end."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve the pool until `stop`."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if self.store.epoch is None and not await self._take_over():
                    self.role, self.problem, failures = "standby", None, 0
                    await self._pause(self.settings.lease_seconds / 4)
                    continue
                await self._renew()
                self.role, self.problem, failures = "leading", None, 0
                await self._lead()
            except LeaseLostError as error:
                self.role = "standby"
                self._log.warning("%s", error)
                self.feed.put("state", b"")  # who listens here must not take what they saw for the present
            except UNAVAILABLE as error:
                failures += 1
                self.problem = f"Redis {complaint(error)}"
                if failures == 1:  # once, however long it lasts
                    self._log.warning("pool %s: %s; trying again", self.store.pool, self.problem)
                await self._pause(min(SLOWEST_RETRY, 0.1 * 2**failures) * random.uniform(0.5, 1.0))
            except CheckpointError as error:
                self.problem = str(error)
                self._log.error("pool %s: %s", self.store.pool, error)
                await self._give_up()
            except Exception:
                # Whatever is half done in memory is dropped; the checkpoint is whole.
                self.problem = "an internal error; the log has it. Starting over from the checkpoint"
                self._log.exception("pool %s", self.store.pool)
                self.tuner = None
                await self._give_up()
        await self._leave()
        self.role = "stopped"

    async def _take_over(self) -> bool:
        """Try for the lease; with it, go on from whichever is newer: the checkpoint, or what is still in memory."""
        epoch = await self.store.acquire(now=self._clock(), floor=self._committed[0])
        if epoch is None:
            return False
        checkpoint = await self.store.load()
        # Redis may have lost its last writes; memory that nobody has overtaken since is then the better state.
        if self.tuner is None or (checkpoint is not None and checkpoint.version > self._committed):
            tuner = await self._work(Tuner.restore, self.store.pool, self.settings, checkpoint)
            if tuner.unread and checkpoint is not None:
                await self.store.set_aside(checkpoint.state)
            tuner.remember(await self.store.changes(tuner.history))
            self.tuner = tuner
            self._committed = checkpoint.version if checkpoint is not None else (0, 0)
        self.tuner.last_id = await self.store.resume_id(self.tuner.last_id)
        await self.store.announce()
        self._n, self._decided, self._issued, self._orders, self._obeyed = 0, 0.0, 0.0, None, None
        self.history = History(_samples(await self.store.history(SPARSE)))
        self.feed.begin(epoch)
        self._log.info("pool %s: leading with epoch %d, reading after %s", self.store.pool, epoch, self.tuner.last_id)
        return True

    async def _lead(self) -> None:
        """Read, learn, decide, commit, until `stop` or an error."""
        tuner = self.tuner
        assert tuner is not None  # `_take_over` came before
        while not self._stopping.is_set():
            entries = await self.store.read(tuner.last_id, count=READ_COUNT, block=self._patience(tuner))
            self.catching_up = len(entries) == READ_COUNT
            if entries:
                await self._work(tuner.consume, entries, self._clock())
            await self._renew_when_due()
            await self._outrank(tuner)
            await self._reply(tuner)
            steered = await self._obey(tuner)
            await self._unpin()
            if steered or self._due(tuner):
                await self._publish(tuner)

    async def ask(self, question: Callable[[Tuner], A]) -> A:
        """Have something computed from the pool's state, between two of the loop's own works. Raises what it raises,
        and `TimeoutError` when the loop does not get to it in time."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def put(tuner: Tuner) -> None:
            try:
                result = question(tuner)
            except Exception as error:
                failed = error

                def computed() -> A:
                    raise failed
            else:

                def computed() -> A:
                    return result

            answer.get_loop().call_soon_threadsafe(_settle, answer, computed)

        self._questions.append(put)
        return await asyncio.wait_for(answer, ANSWER_SECONDS)

    async def _reply(self, tuner: Tuner) -> None:
        while self._questions:
            await self._work(self._questions.popleft(), tuner)

    async def _obey(self, tuner: Tuner) -> bool:
        """Take over operators' orders that are new; whether there were any, and there is something to decide."""
        written = await self.store.orders()
        if written == self._orders:
            return False
        self._orders = written
        try:
            orders = Orders() if written is None else msgspec.json.decode(written, type=Orders)
        except msgspec.MsgspecError as error:
            # Somebody else's writing: what was in force stays.
            self._obeyed = None
            self._log.error("pool %s: orders in %s cannot be read: %s", self.store.pool, self.store.keys.orders, error)
            return False
        self._obeyed = orders
        await self._work(tuner.steer, orders, self._clock())
        self.feed.put("order", msgspec.json.encode({"revision": orders.revision}))
        return tuner.ready

    async def _unpin(self) -> None:
        """Take pins whose time has run out from the orders, with an audit entry. They are no longer in force anyway; if
        somebody steers at this moment, the next look does it."""
        orders, now = self._obeyed, self._clock()
        if orders is None or len(orders.standing(now)) == len(orders.pins):
            return
        over = [pin for pin in orders.pins if pin not in orders.standing(now)]
        what = "; ".join(f"{pin.told} ran out" for pin in over)
        why = "ordered by " + ", ".join(sorted({pin.by for pin in over}))
        left = msgspec.structs.replace(orders, pins=orders.standing(now), revision=orders.revision + 1)
        act = Act(now, "controller", what, why, left.revision)
        self._obeyed = None
        if await self.store.steer(orders.revision, left.revision, msgspec.json.encode(left), act.encode()):
            self._log.info("pool %s: %s", self.store.pool, what)
        else:
            self._orders = None  # read them anew

    def _due(self, tuner: Tuner) -> bool:
        since = time.monotonic() - self._decided
        if self.catching_up:
            return since >= CATCH_UP_SECONDS
        if tuner.ready and (self._n == 0 or self._clock() - self._issued >= self.settings.policy_seconds / 3):
            return since >= self.settings.decide_seconds
        return tuner.pending >= self.settings.decide_frames or (tuner.pending > 0 and since >= tuner.decide_seconds)

    def _patience(self, tuner: Tuner) -> float:
        """How long a read may wait without making a decision late."""
        left = self._decided + tuner.decide_seconds - time.monotonic()
        return min(BLOCK_SECONDS, left) if left > 0 else BLOCK_SECONDS

    async def _publish(self, tuner: Tuner) -> None:
        """Decide and commit: checkpoint, policy, what switched and refused frames, at once or not at all."""
        version = (self._epoch(), self._n + 1)
        now = self._clock()
        decided = await self._work(tuner.decide, version, now)
        self._decided = time.monotonic()
        await self._commit(tuner, version if decided.policy is not None else (version[0], self._n), now, decided)
        if decided.policy is not None:
            self._n, self._issued = version[1], now

    async def _commit(self, tuner: Tuner, version: Version, now: float, decided: Decided) -> None:
        self._number += 1
        commit = Commit(
            state=decided.state,
            last_id=tuner.last_id,
            version=version,
            number=self._number,
            saved=now,
            policy=decided.policy,
            audit=decided.audit,
            dead=tuple(tuner.dead),
            offer=decided.offer,
            offer_seconds=decided.offer_seconds,
        )
        await self.store.commit(commit)
        self._committed = version
        tuner.committed(decided)
        await self._tell(tuner, decided)

    async def _tell(self, tuner: Tuner, decided: Decided) -> None:
        """Keep a sample of what was committed, and let listeners know."""
        if decided.view is None:
            return
        new = sample(decided.view)
        if self.history.add(new):
            await self.store.keep(msgspec.json.encode(new), SPARSE)
        if decided.audit is not None:
            self.feed.put("decision", decided.audit)
        self.feed.put("state", b"")

    async def _outrank(self, tuner: Tuner) -> None:
        """An engine applies a version above ours that we did not issue: Redis lost writes. Move above it."""
        if tuner.applied is None or tuner.applied <= (self._epoch(), self._n):
            return
        epoch = max(tuner.applied[0] + 1, int(self._clock() * 1000))
        self._log.warning("pool %s: an engine applies %s; moving to epoch %d", self.store.pool, tuner.applied, epoch)
        await self.store.raise_epoch(epoch)
        self._n, self._decided = 0, 0.0

    async def _work(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` in a thread, renewing the lease meanwhile. Returns or raises only when the thread is done."""
        work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=self.settings.lease_seconds / 3)
                await self._renew_when_due()
        finally:
            await asyncio.wait({work})
        return work.result()

    async def _renew_when_due(self) -> None:
        if time.monotonic() - self._renewed >= self.settings.lease_seconds / 3:
            await self._renew()

    async def _renew(self) -> None:
        await self.store.renew()
        self._renewed = time.monotonic()

    def _epoch(self) -> int:
        if self.store.epoch is None:
            raise LeaseLostError(f"pool {self.store.pool!r} is not ours")
        return self.store.epoch

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _give_up(self) -> None:
        """Let another replica try, and wait before trying again."""
        with contextlib.suppress(*UNAVAILABLE):
            await self.store.release()
        await self._pause(SLOWEST_RETRY)

    async def _leave(self) -> None:
        """Write what was learned since the last commit and let go of the pool."""
        try:
            if self.store.epoch is not None and self.tuner is not None:
                saved = Decided(policy=None, audit=None, state=self.tuner.dump(), view=self.tuner.view)
                await self._commit(self.tuner, (self.store.epoch, self._n), self._clock(), saved)
            await self.store.release()
        except (LeaseLostError, *UNAVAILABLE) as error:
            # Frames since the last commit are still in the stream; the next leader reads them.
            self._log.warning("pool %s: left without a last checkpoint: %s", self.store.pool, words(error))
