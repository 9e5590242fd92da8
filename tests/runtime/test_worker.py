"""A thread for calls that may never return."""

import threading

from jaxrl.runtime.worker import Worker


def test_a_worker_makes_calls_in_order_and_ends():
    worker = Worker()
    threads = [worker.begin(threading.current_thread) for _ in range(2)]
    failing = worker.begin(lambda: 1 // 0)
    assert failing.done.wait(60)
    assert threads[0].value is threads[1].value is not threading.main_thread()
    assert isinstance(failing.error, ZeroDivisionError)
    thread = threads[0].value
    assert thread.daemon
    del worker
    thread.join(60)
    assert not thread.is_alive()
