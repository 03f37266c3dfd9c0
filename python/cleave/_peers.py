"""The processes of a pipeline: they agree before the first step, tell each other what is needed once, and notice when
one of them is gone.

All of it goes through the store of torch.distributed, as text. A thread writes a beat and reads those of the others; a
process that fails leaves a note. A beat counts twice: that the process is there, and that it did something: computed,
or waited for a peer itself. What waits for a peer while a step is under way raises when either count stands still: a
wait for gloo happens on a thread of its own, which can be left; one for nccl ends when the process group is aborted.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .errors import PipelineError, first_line

AT_WORK = 0.02  # of the time between two beats: a process that uses the CPU for less does nothing
LAST_TAG = (1 << 31) - 1  # of a message that is never sent

_made: dict[tuple[int, ...], int] = {}  # pipelines that this process has made so far, per set of ranks


def _default_store() -> Any:
    get = getattr(c10d, "_get_default_store", None)
    if get is None:
        raise PipelineError("this torch.distributed does not give its store; Cleave knows torch 2.11 to 2.13")
    return get()


class BrokenConnection(Exception):
    """A message did not go through; which rank is the cause is not known yet."""

    def __init__(self, doing: str, peer: int, text: str) -> None:
        super().__init__(text)
        self.doing, self.peer = doing, peer


class Parcel(NamedTuple):
    """A message, the rank that it goes to or comes from, and a number for it."""

    message: torch.Tensor
    peer: int
    tag: int


class Wait:
    """A wait for a message (of or to `peer`), on another thread."""

    def __init__(self, work: dist.Work | None, doing: str, peer: int) -> None:
        self.work = work
        self.doing, self.peer = doing, peer
        self.done = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        assert self.work is not None
        try:
            self.work.wait()
        except Exception as e:
            self.error = e
        self.work = None  # and with it the message
        self.done.set()


class Peers:
    """The processes that run one pipeline, seen from one of them."""

    def __init__(self, group: dist.ProcessGroup, timeout: float, longest_wait: float) -> None:
        self.group, self.timeout, self.longest_wait = group, timeout, longest_wait
        self.stages_of: Sequence[Sequence[int]] = ()  # by rank, once they are placed
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        _made[ranks] = count = _made.get(ranks, 0) + 1
        prefix = f"cleave/pipeline/{'.'.join(map(str, ranks))}/{count}"
        store: Any = c10d.PrefixStore(prefix, _default_store())
        self._store = store
        self._beats = store.clone()  # a connection of its own: the main one may be waiting
        self._heard = dict.fromkeys(range(self.size), time.monotonic())  # when the last beat of each rank came
        self._worked = dict(self._heard)  # when each rank last reported work
        self._seen: dict[int, bytes] = {}
        self._left: dict[int, float] = {}  # ranks that have left, and when
        self.lost: str | None = None  # why no step can run any more
        self.again = False  # unless all connect anew: a guard ended the step, and nothing is wrong with any rank
        self.meeting = False  # all connect anew: notes are of what has ended
        self._noted = False  # the others can read why
        self.busy = False  # a step is under way
        self.unseen = False  # torch waits for messages itself, so idle time of this process cannot be seen
        self._waits = self._work = 0  # waits that are under way, beats at which it did something
        self._cpu = self._cpu_at = 0.0  # CPU time of the process, and when that was read
        self._pause = min(0.5, timeout / 8)
        self._receives, self._sends = Waiter(), Waiter()
        stop = threading.Event()
        watch = threading.Thread(target=_watch, args=(weakref.ref(self), stop), daemon=True)
        watch.start()
        beat = (store, f"beat/{self.rank}")
        self._close = weakref.finalize(self, _close, stop, watch, (self._receives, self._sends), group, beat)

    # ---- texts --------------------------------------------------------------------------------------------------

    def name(self, rank: int) -> str:
        if not self.stages_of:
            return f"rank {rank}"
        stages = ", ".join(map(str, self.stages_of[rank]))
        return f"rank {rank} (stage{'s' if len(self.stages_of[rank]) > 1 else ''} {stages})"

    # ---- what is published once --------------------------------------------------------------------------------------

    def tell(self, key: str, what: Any) -> None:
        try:
            self._store.set(key, json.dumps(what))
        except dist.DistError as e:
            raise PipelineError(f"{self._store_gone(e)} while {self.name(self.rank)} was running") from e

    def ask(self, key: str, doing: str, peer: int) -> Any:
        """What `peer` published under `key`; waits for it as long as no rank is lost."""
        pause, since = 5e-5, time.monotonic()
        try:
            with self._waiting():
                while not self._store.check([key]):  # the store's own waiting ends in warnings, and has no other end
                    self._check(doing, peer, since)
                    if time.monotonic() - since > self.longest_wait:
                        raise PipelineError(f"{self.name(self.rank)} was {doing} for {self.longest_wait:g} s")
                    time.sleep(pause)
                    pause = min(2 * pause, 0.01)
            return json.loads(self._store.get(key))
        except dist.DistError as e:
            raise PipelineError(f"{self._store_gone(e)} while {self.name(self.rank)} was {doing}") from e

    def receive(self, message: torch.Tensor, sender: int, tag: int, doing: str) -> Wait:
        """Receives into `message`, which is there after `take`."""
        try:
            work = dist.irecv(message, group=self.group, group_src=sender, tag=tag)
        except RuntimeError as e:
            raise BrokenConnection(doing, sender, first_line(e)) from e
        return Wait(work, doing, sender)

    def send(self, message: torch.Tensor, to: int, tag: int) -> Wait:
        doing = f"waiting for {self.name(to)} to take its message"
        try:
            work = dist.isend(message, group=self.group, group_dst=to, tag=tag)
        except RuntimeError as e:
            raise BrokenConnection(doing, to, first_line(e)) from e
        wait = Wait(work, doing, to)
        self._sends.put(wait)
        return wait

    def take(self, wait: Wait) -> None:
        """Waits for a message that is received."""
        self._receives.put(wait)  # only now: one that comes later must not stand in the way of one that comes earlier
        self.finish(wait)

    def finish(self, wait: Wait) -> None:
        """Waits as long as no rank is lost."""
        since = time.monotonic()
        with self._waiting():
            while not wait.done.wait(self._pause):
                self._check(wait.doing, wait.peer, since)
        if wait.error is not None:
            raise BrokenConnection(wait.doing, wait.peer, first_line(wait.error)) from wait.error

    def exchange(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel], doing: str) -> None:
        """Sends and receives messages, all at once. Every rank among them calls it, with tags in the same order."""
        if not outgoing and not incoming:
            return
        if (*outgoing, *incoming)[0].message.device.type != "cpu":
            kinds = [*[(dist.isend, p) for p in outgoing], *[(dist.irecv, p) for p in incoming]]
            ops = [dist.P2POp(op, p.message, group=self.group, group_peer=p.peer, tag=p.tag) for op, p in kinds]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            return
        receives = [self.receive(*p, doing) for p in incoming]
        sends = [self.send(*p) for p in outgoing]
        for wait in receives:
            self.take(wait)
        for wait in sends:
            self.finish(wait)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around a wait for a peer: this process is idle meanwhile, for a good reason."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def _check(self, doing: str, peer: int, since: float) -> None:
        """Raises when a wait has no end. since: when it began."""
        why, now = self.lost, time.monotonic()
        if not why and now - self._left.get(peer, float("inf")) > 4 * self._pause:
            why = f"{self.name(peer)} has left the pipeline"  # some time ago: what it sent before has arrived
        beats = now - self._heard[peer] < 4 * self._pause  # or else it is gone, which `_beat` sees
        if not why and peer != self.rank and beats and now - max(since, self._worked[peer]) > self.timeout:
            why = self.lost = f"{self.name(peer)} did nothing for {self.timeout:g} s (timeout)"
        if why:
            raise PipelineError(f"{why} while {self.name(self.rank)} was {doing}")

    def forget(self, key: str) -> None:
        with suppress(dist.DistError):  # no rank waits for it
            self._store.delete_key(key)

    def agree(self, facts: Mapping[str, Any], more: Any) -> list[Any]:
        """Checks that all processes have the same facts; returns what else each published, by rank."""
        self.tell(f"setup/{self.rank}", {"facts": facts, "more": more})
        mine = json.loads(json.dumps(facts))
        others = []
        for r in range(self.size):
            told = self.ask(f"setup/{r}", f"setting up, waiting for rank {r}", r)
            for key, own in mine.items():
                if told["facts"].get(key) != own:
                    self.fail(f"the ranks do not agree on the {key}")
                    raise PipelineError(
                        f"the ranks do not agree on the {key}: rank {self.rank} has {own}, rank {r} has "
                        f"{told['facts'].get(key)}; every rank must build the same partition (same model, inputs, "
                        "options and seed)"
                    )
            others.append(told["more"])
        return others

    # ---- loss of a peer -----------------------------------------------------------------------------------------

    def fail(self, why: str, again: bool = False) -> None:
        """Leaves a note for the others. again: the pipeline may go on after it."""
        if self.lost is None:
            self.lost, self.again = why, again
        if self._noted:
            return
        self._noted = True
        try:
            if not self.again:
                self._store.set(f"again/{self.rank}", json.dumps([self.lost, False]))
            self._store.set(f"failed/{self.rank}", json.dumps([self.lost, self.again]))
        except dist.DistError:
            return  # the process that holds the store is gone, and the others see that themselves
        if self.rank == 0 and not self.again:
            time.sleep(2 * self._pause)  # the store may end with this process: let the others read the note first

    def lost_rank(self, peer: int | None) -> str | None:
        """Which rank caused a broken connection (to `peer`), by note or silence; None: all ranks are alive."""
        until = time.monotonic() + self.timeout
        try:
            while not self.lost and time.monotonic() < until:
                self._look(self._store)  # the thread that looks may be late
                if self.lost:
                    break
                silence = {r: time.monotonic() - t for r, t in self._heard.items() if r != self.rank}
                silent = [r for r, s in silence.items() if s > 4 * self._pause]
                if peer in self._left:
                    return f"{self.name(peer)} has left the pipeline"
                if silent:
                    r = peer if peer in silent else max(silent, key=lambda r: silence[r])
                    return f"{self.name(r)} has ended or hangs: no answer for {silence[r]:.0f} s"
                time.sleep(self._pause / 4)
        except dist.DistError as e:
            return self.lost or self._store_gone(e)
        return self.lost

    def _store_gone(self, e: Exception) -> str:
        return f"the process that holds the store (rank 0 or torchrun) has ended ({first_line(e)})"

    def _look(self, store: Any) -> None:
        """One look at the others: notes that they left when they failed, beats."""
        for r in range(self.size):
            if r != self.rank and not self.meeting and store.check([f"failed/{r}"]):
                self._lose(*json.loads(store.get(f"failed/{r}")))
        for r in range(self.size):
            if r == self.rank or not store.check([f"beat/{r}"]):
                continue
            beat, now = store.get(f"beat/{r}"), time.monotonic()
            before = self._seen.get(r, b"")
            if beat != before or beat == b"end":
                self._seen[r], self._heard[r] = beat, now
            if beat == b"end":
                self._left.setdefault(r, now)
            elif beat.partition(b" ")[2] != before.partition(b" ")[2]:
                self._worked[r] = now

    def _beat(self, n: int) -> None:
        self._beats.set(f"beat/{self.rank}", f"{n} {self._worked_so_far()}")
        self._look(self._beats)
        now = time.monotonic()
        silent = [r for r, t in self._heard.items() if r != self.rank and now - t > self.timeout]
        if silent:
            self._lose(f"{self.name(silent[0])} did not answer for {self.timeout:g} s")

    def _worked_so_far(self) -> int:
        """How often this process was found at work: it waits for a peer, or it computes."""
        now, cpu = time.monotonic(), time.process_time() - time.thread_time()  # of all threads but this one
        if self._waits or self.unseen or cpu - self._cpu >= AT_WORK * (now - self._cpu_at):
            self._work += 1
        self._cpu, self._cpu_at = cpu, now
        return self._work

    def _lose(self, why: str, again: bool = False) -> None:
        if self.lost is None:
            self.lost, self.again = why, again
        if self.busy and "nccl" in dist.get_backend_config(self.group):
            self.group.abort()

    def meet(self, step: int) -> None:
        """Waits until every rank has done a step."""
        self.tell(f"done/{step}/{self.rank}", True)
        for r in range(self.size):
            self.ask(f"done/{step}/{r}", f"at the end of step {step}, waiting for rank {r}", r)
        self.forget(f"done/{step - 2}/{self.rank}")  # nobody waits for it: all have been in the step after

    def reconnected(self, step: int) -> Peers:
        """The same processes with other connections, once all of them are here. Raises where one of them failed in
        another way, or in another step."""
        why, self.lost, self.meeting = self.lost, None, True
        try:
            self.tell(f"again/{self.rank}", [why, self.again and step])
            for r in range(self.size):
                theirs, failed = self.ask(f"again/{r}", f"connecting again, waiting for rank {r}", r)
                if failed != step:
                    raise PipelineError(f"{theirs} while {self.name(self.rank)} was connecting again")
        except PipelineError:
            self.lost, self.again = self.lost or why, False
            raise
        finally:
            self.meeting = False
        ranks, wait = dist.get_process_group_ranks(self.group), timedelta(seconds=self.longest_wait)
        group = dist.new_group(ranks, timeout=wait, use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        found = Peers(group, self.timeout, self.longest_wait)
        found.stages_of = self.stages_of
        self.close()
        return found

    def close(self) -> None:
        """Leaves the pipeline, so that the others do not take the silence for a crash. Also happens at exit."""
        self._close()


def _watch(ref: weakref.ref[Peers], stop: threading.Event) -> None:
    n, pause = 0, 0.0
    while not stop.wait(pause):
        peers = ref()
        if peers is None:
            return
        n, pause = n + 1, peers._pause
        try:
            peers._beat(n)
        except dist.DistError as e:
            if not stop.is_set():
                peers._lose(peers._store_gone(e))
            return
        del peers


class Waiter:
    """A thread that waits for messages, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Wait | None] = queue.SimpleQueue()
        self._last: Wait | None = None
        self._thread = threading.Thread(target=_wait, args=(self._queue,), daemon=True)
        self._thread.start()

    def put(self, wait: Wait) -> None:
        self._last = wait
        self._queue.put(wait)

    def end(self, group: dist.ProcessGroup) -> None:
        """Ends the thread, and with it a wait that a failure has left."""
        self._queue.put(None)
        last = self._last
        if last is not None and not last.done.is_set():
            # A gloo group ends all its waits when one of them times out: wait for a message that is never sent.
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], last.peer, LAST_TAG).wait(timedelta(milliseconds=1))
        if self._thread is not threading.current_thread():
            self._thread.join(1)


def _wait(waits: queue.SimpleQueue[Wait | None]) -> None:
    while (wait := waits.get()) is not None:
        wait.run()
        del wait


def _close(
    stop: threading.Event,
    watch: threading.Thread,
    waiters: Sequence[Waiter],
    group: dist.ProcessGroup,
    beat: tuple[Any, str],
) -> None:
    """Leaves no thread inside torch: one that returns from there while Python shuts down crashes the process."""
    stop.set()
    for waiter in waiters:
        waiter.end(group)
    if watch is not threading.current_thread():
        watch.join(1)
    store, key = beat
    with suppress(dist.DistError):  # without a store no rank could read it
        store.set(key, "end")
