"""An engine without processes that delays, repeats and loses replies, for tests of the scheduler and the collector."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from zoo.cluster.messages import Lost, Reply, Request

RUN = 'run'
T = 4
B = 2  # a reply has T * B = 8 env steps


class FaultyEngine:
    """Delays, repeats and loses replies as `choose` says. An episode is a token, new at each reset, and its rollouts so far."""

    def __init__(self, n_runner: int, choose: Any = lambda n: 0, n_fault: int = 0) -> None:
        self.choose, self.n_fault, self.now = choose, n_fault, 0.0
        self.queues: list[deque[Request]] = [deque() for _ in range(n_runner)]
        self.token, self.length = [-1] * n_runner, [0] * n_runner
        self.is_hung = [False] * n_runner
        self.weights: list[int] = []
        self.held: list[Reply] = []  # not yet delivered
        self.sent: list[Reply] = []  # already delivered
        self.asked: list[Request] = []
        self.news: list[Reply | Lost] = []
        self.n_arrived = self.n_token = self.n_lost = 0

    def publish(self, weights: Any, version: int) -> None:
        self.weights.append(version)

    def ask(self, request: Request) -> None:
        self.asked.append(request)
        self.queues[request.group].append(request)

    def kill(self, group: int, cause: str) -> None:
        self.lose(group, cause)

    def wait(self, timeout: float) -> list[Reply | Lost]:
        self.fault()
        ready = [group for group, queue in enumerate(self.queues) if queue and not self.is_hung[group]]
        if ready:
            self.held.append(self.collect(ready[self.choose(len(ready))]))
        if self.held and (timeout or self.choose(2)):
            found = self.held.pop(self.choose(len(self.held)))  # replies may overtake each other
            self.arrive(found)
        if not self.news:
            self.now += timeout
        news, self.news = self.news, []
        return news

    def arrive(self, reply: Reply) -> None:
        self.news.append(reply)
        self.sent.append(reply)
        self.n_arrived += T * B

    def fault(self) -> None:
        if not self.n_fault or self.choose(3):
            return
        self.n_fault -= 1
        group, kind = self.choose(len(self.queues)), self.choose(5)
        if kind == 0:
            self.lose(group, 'its process was ended by signal 9')
        elif kind == 1 and self.sent:
            self.arrive(self.sent[self.choose(len(self.sent))])  # a second time
        elif kind == 2 and self.sent:
            self.arrive(self.sent[-1]._replace(run_id='another'))
        elif kind == 3:
            self.is_hung[group] = True
        elif kind == 4 and self.held:
            i = self.choose(len(self.held))
            if self.asked[0].version is None:  # as if it had acted with older weights
                self.held[i] = self.held[i]._replace(version=self.held[i].version - 2)

    def lose(self, group: int, cause: str) -> None:
        self.queues[group].clear()
        self.token[group], self.is_hung[group] = -1, False
        self.n_lost += 1
        self.news.append(Lost(group, cause))

    def collect(self, group: int) -> Reply:
        request = self.queues[group].popleft()
        if request.reset_seed is not None:
            self.n_token += 1
            self.token[group], self.length[group] = self.n_token, 0
        self.length[group] += 1
        version = self.weights[-1] if request.version is None else request.version
        trace = {'token': float(self.token[group]), 'length': float(self.length[group])}
        blocks = {'steps.reward': np.zeros((T, B), np.float32)}
        key = request.run_id, group, request.collect_iter, version
        return Reply(*key, blocks, [], [(0, trace)], {}, request.attempt)
