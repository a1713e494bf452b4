"""The lock of what processes share: re-entrant, held over ``fork``, never waited for by a finalizer.

* The forking thread holds it, so that no child starts in the midst of another thread's commit.
* The garbage collector runs finalizers anywhere: in a thread that is committing, or that holds another lock
  that the committing thread waits for. What a finalizer undoes is therefore done at once where the lock is
  free, and else by its holder when it lets go.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Lock:
    """A re-entrant lock for ``with`` blocks, and a queue of what is done once it is free."""

    __slots__ = ("_depth", "_later", "_lock")

    def __init__(self) -> None:
        self._lock = RLock()
        self._depth = 0
        self._later: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._depth == 0 and self._later:
            self._run()  # a commit sees all that finalizers asked for before it
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()
        if self._later:
            self._drain()

    def when_free(self, action: Callable[[], None]) -> None:
        """Run ``action`` under the lock: now, or in the thread that holds it, when it lets go."""
        self._later.append(action)
        self._drain()

    def _drain(self) -> None:
        # An action that is added after the last look at the queue finds the lock free, and drains it itself.
        while self._later and self._lock.acquire(blocking=False):
            try:
                if self._depth:
                    return
                self._run()
            finally:
                self._lock.release()

    def _run(self) -> None:
        """Run what waits; the lock is held, and nobody is in the midst of a commit."""
        self._depth += 1
        try:
            while self._later:
                try:
                    self._later.popleft()()
                except Exception:  # noqa: BLE001  (this thread has nothing to do with what went wrong)
                    sys.excepthook(*sys.exc_info())
        finally:
            self._depth -= 1


def held_over_fork(lock: Lock) -> Lock:
    """Let the forking thread hold a lock over every fork: in the child it is free, what it guards whole."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.__enter__, after_in_parent=lock.__exit__, after_in_child=lock.__exit__
        )
    return lock
