"""The emulated link: text form, times from below (a busy machine can only make them longer), one queue, counters."""

from __future__ import annotations

import threading
import time

import pytest

from nestlab.errors import UserError
from nestlab.exchange import Link, LinkModel

pytestmark = pytest.mark.core
MODEL = LinkModel(latency_us=2000, gbit_s=1.0)  # 1 MB takes 8 ms on the wire


@pytest.mark.parametrize(
    ("text", "latency_us", "gbit_s"),
    [
        ("100us,16gbit", 100, 16),
        ("16gbit,100us", 100, 16),
        (" 1.5 ms , 500 Mbit/s ", 1500, 0.5),
        ("0us,1tbit", 0, 1000),
        ("2e1µs,8e2kbit", 20, 8e-4),
    ],
)
def test_text_form(text, latency_us, gbit_s):
    model = LinkModel.parse(text)
    for read in (model, LinkModel.parse(str(model))):
        assert (read.latency_us, read.gbit_s) == (pytest.approx(latency_us), pytest.approx(gbit_s))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no latency and no bandwidth; write it as"),
        ("100us", "'100us' gives no bandwidth"),
        ("16gbit", "'16gbit' gives no latency"),
        ("100us,200us", "gives its latency twice"),
        ("100us,16gbyte", "'16gbyte' in '100us,16gbyte' is no latency"),
        ("100us,1.2.3gbit", "'1.2.3gbit' in"),
        ("-5us,16gbit", "'-5us' in"),
        ("5us,0gbit", "bandwidth 0.0 gbit/s: it must be above 0"),
        ("5us,16gbit,1us", "gives its latency twice"),
    ],
)
def test_text_without_a_meaning_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=r"^link: ") as refused:
        LinkModel.parse(text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("figures", [(-1, 1), (float("nan"), 1), (0, -1), (0, float("inf"))])
def test_figures_out_of_range(figures):
    with pytest.raises(UserError, match="link: "):
        LinkModel(*figures)


def test_a_transfer_takes_latency_and_bytes_over_bandwidth():
    link = Link(MODEL)
    begin = time.perf_counter()
    for nbytes in (1_000_000, 0):
        with link.transfer(nbytes):
            pass
    assert time.perf_counter() - begin >= 0.002 + 0.008 + 0.002
    assert (link.counters.transfers, link.counters.nbytes) == (2, 1_000_000)
    assert link.counters.seconds >= 0.012


def test_a_copy_that_takes_longer_is_not_delayed_further():
    """The body's time counts: 30 ms of copying on a link of 10 ms, far below the 40 ms of one after the other.

    Broken on purpose: the end computed after the body makes it 40 ms.
    """
    link, took = Link(MODEL), []
    for _ in range(5):  # the best of five: a busy machine delays, it never hurries
        begin = time.perf_counter()
        with link.transfer(1_000_000):
            time.sleep(0.03)
        took.append(time.perf_counter() - begin)
    assert 0.03 <= min(took) < 0.04


def test_concurrent_transfers_share_one_queue():
    """Four threads with 8 ms of wire each: 32 ms and one latency at least.

    Broken on purpose: with a queue a thread they are through after 10 ms.
    """
    link, ends = Link(MODEL), []

    def send():
        with link.transfer(1_000_000):
            pass
        ends.append(time.perf_counter())

    threads = [threading.Thread(target=send) for _ in range(4)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(ends) - begin >= 4 * 0.008 + 0.002
    assert min(ends) - begin >= 0.008 + 0.002
    assert (link.counters.transfers, link.counters.nbytes) == (4, 4_000_000)


def test_latencies_overlap():
    """Eight transfers of next to nothing at once: one latency, not eight."""
    link, took = Link(LinkModel(latency_us=50_000, gbit_s=100)), []
    threads = [threading.Thread(target=lambda: _timed(link, took)) for _ in range(8)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(took) >= 0.05 and time.perf_counter() - begin < 8 * 0.05


def _timed(link: Link, took: list[float]) -> None:
    begin = time.perf_counter()
    with link.transfer(8):
        pass
    took.append(time.perf_counter() - begin)


def test_waiting_leaves_the_cpu_free():
    link = Link(LinkModel(latency_us=200_000, gbit_s=1))
    before = time.thread_time()
    with link.transfer(0):
        pass
    assert time.thread_time() - before < 0.05


def test_an_error_in_the_copy_is_raised_at_once():
    link = Link(LinkModel(latency_us=3_000_000, gbit_s=1))
    begin = time.perf_counter()
    with pytest.raises(OSError, match="gone"), link.transfer(1):
        raise OSError("gone")
    assert time.perf_counter() - begin < 1.5
    assert link.counters.transfers == 0


def test_without_a_model_a_link_only_counts():
    link = Link()
    with link.transfer(10**12):
        pass
    assert link.counters.nbytes == 10**12
    with pytest.raises(ValueError, match="-1 bytes"), link.transfer(-1):
        pass
