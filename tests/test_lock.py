"""The registry's lock: re-entrant, and what finalizers leave is done by whoever lets go of it."""

from __future__ import annotations

import sys
import threading

from opwright.lock import Lock


def _in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_it_is_re_entrant():
    lock = Lock()
    with lock, lock:
        pass
    done = []
    _in_thread(lambda: lock.when_free(lambda: done.append(1)))
    assert done == [1]


def test_another_thread_waits():
    lock, order = Lock(), []
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with lock:
            inside.set()
            leave.wait(10)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    leave.set()
    with lock:
        order.append("second")
    thread.join(10)
    assert order == ["first", "second"]


def test_an_action_is_done_at_once_where_the_lock_is_free():
    lock, done = Lock(), []
    lock.when_free(lambda: done.append(1))
    assert done == [1]


def test_an_action_of_the_holder_is_done_when_it_lets_go():
    lock, done = Lock(), []
    with lock:
        with lock:
            lock.when_free(lambda: done.append(1))
        assert done == []
    assert done == [1]


def test_an_action_of_another_thread_never_waits():
    lock, done = Lock(), []
    with lock:
        _in_thread(lambda: lock.when_free(lambda: done.append(1)))
        assert done == []
    assert done == [1]


def test_actions_run_under_the_lock_in_order():
    lock, done = Lock(), []

    def first():
        lock.when_free(lambda: done.append("second"))  # the lock is held while an action runs
        done.append("first")

    lock.when_free(first)
    assert done == ["first", "second"]


def test_what_an_action_raises_is_reported_and_the_rest_is_done(monkeypatch):
    lock, done, reported = Lock(), [], []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: reported.append(error))
    error = ValueError("in a finalizer")

    def fail():
        raise error

    with lock:
        lock.when_free(fail)
        lock.when_free(lambda: done.append(1))
    assert done == [1]
    assert reported == [error]


def test_whoever_takes_the_lock_next_finds_everything_done():
    lock, done = Lock(), []
    lock._later.append(lambda: done.append(1))  # as if its holder had let go, and not yet looked
    with lock:
        assert done == [1]
