"""Generation beside training, step by step and token by token: the plain truth on which fast playing is tested.

One update learns from an iteration's samples, each of one response; prefills have passes of their own, and
memory is no limit.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Response:
    version: int
    prompt: int
    left: int
    cached: int = 0
    ended_at: int = -1


@dataclass(eq=False)
class Worker:
    waiting: list = field(default_factory=list)
    running: list = field(default_factory=list)
    free_at: float = math.inf
    doing: str = ""  # what ends at free_at

    @property
    def held(self):
        return len(self.waiting) + len(self.running)


@dataclass
class System:
    """Play it.

    Attributes:
        prefill: Seconds of a pass over (sequences, mean tokens).
        decode: Seconds of a step over (sequences, mean cached tokens).
        learning: Seconds of an iteration's update, by the tokens of its samples.
    """

    lengths: Any
    workers: int
    slots: int
    prefill: Any
    decode: Any
    learnt: int
    learning: Any
    syncing: float
    staleness: float
    every: int
    in_flight: str

    def play(self, count):
        """Return when iterations end, and the ages of all samples."""
        self.lengths, self.fleet = iter(self.lengths), [Worker() for _ in range(self.workers)]
        self.alive, self.ready, self.ends, self.ages, self.collected = [], [], [], [], []
        self.begun = self.taken = self.version = self.number = 0
        self.order, self.now, self.trainer_free_at = itertools.count(), 0.0, math.inf
        self.state = "collecting"
        self.share_out()
        while len(self.ends) < count:
            self.now = min(*(worker.free_at for worker in self.fleet), self.trainer_free_at)
            if self.trainer_free_at == self.now:
                self.trainer_free_at = math.inf
                self.after_training()
            else:
                self.end_step(min(self.fleet, key=lambda worker: worker.free_at))
            if self.state == "stopping" and not any(worker.doing for worker in self.fleet):
                self.state, self.trainer_free_at = "syncing", self.now + self.syncing
            if self.state == "collecting" and self.collect():
                tokens = sum(each.cached + 1 for each in self.collected)
                self.state, self.trainer_free_at = "learning", self.now + self.learning(tokens)
                self.collected = []
        return self.ends, self.ages

    def after_training(self):
        if self.state == "learning":
            self.number += 1
            if self.number % self.every == 0:
                self.state = "stopping"
                return
        else:
            self.version = self.number
        self.ends.append(self.now)
        synced, self.state = self.state == "syncing", "collecting"
        if synced:
            if self.in_flight == "recompute":
                self.throw_out()
            self.share_out()

    def throw_out(self):
        for worker in self.fleet:
            worker.waiting[:0] = worker.running
            worker.running = []

    def share_out(self):
        while min(worker.held for worker in self.fleet) < self.slots:
            if not self.begin(min(self.fleet, key=lambda worker: worker.held)):
                break
        for worker in self.fleet:
            self.go_on(worker)

    def begin(self, worker):
        if self.begun >= math.floor((self.version + self.staleness + 1) * self.learnt):
            return False
        prompt, response = next(self.lengths)
        sample = Response(self.version, prompt, response)
        worker.waiting.append(sample)
        self.alive.append(sample)
        self.begun += 1
        return True

    def go_on(self, worker):
        """Let a worker do its next step, if it has one."""
        while self.state != "stopping" and worker.held < self.slots and self.begin(worker):
            pass
        room = self.slots - len(worker.running)
        if worker.waiting and room:
            new, worker.waiting = worker.waiting[:room], worker.waiting[room:]
            for each in new:
                each.cached = max(each.cached + 1, each.prompt)
                each.left -= 1
            mean = sum(each.cached for each in new) / len(new)
            worker.free_at = self.now + self.prefill(len(new), mean)
            worker.doing, worker.running = "prefill", worker.running + new
        elif worker.running:
            mean = sum(each.cached for each in worker.running) / len(worker.running)
            worker.free_at = self.now + self.decode(len(worker.running), mean)
            worker.doing = "decode"

    def end_step(self, worker):
        if worker.doing == "decode":
            for each in worker.running:
                each.cached += 1
                each.left -= 1
        for each in [each for each in worker.running if each.left <= 0]:
            worker.running.remove(each)
            each.ended_at = next(self.order)
            self.ready.append(each)
        worker.doing, worker.free_at = "", math.inf
        if self.state not in ("stopping", "syncing") or (
            self.state == "stopping" and self.in_flight == "drain"
        ):
            self.go_on(worker)

    def may_take(self, sample):
        """Tell whether all older samples still find room in the iterations left to them."""
        for bound in {each.version for each in self.alive if each.version < sample.version}:
            older = sum(each.version <= bound for each in self.alive)
            room = (math.ceil(bound + self.staleness) + 1) * self.learnt - self.taken - 1
            if older > room:
                return False
        return True

    def collect(self):
        while len(self.collected) < self.learnt:
            able = [each for each in self.ready if self.may_take(each)]
            if not able:
                return False
            sample = min(able, key=lambda each: each.ended_at)
            self.ready.remove(sample)
            self.alive.remove(sample)
            self.collected.append(sample)
            self.ages.append(self.number - sample.version)
            self.taken += 1
        return True
