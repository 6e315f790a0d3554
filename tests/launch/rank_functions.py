"""What ranks run in the tests of `launch`: functions in a module, as ranks need them."""

from __future__ import annotations

import os
import signal
import time
from unittest import mock

import torch

from nestlab.errors import UserError
from nestlab.exchange import Channel, collective
from nestlab.exchange.collective import CollectiveTransport


def summed(first, *, second):
    """Every rank's sum over the ranks, its threads and its pid."""
    transport = CollectiveTransport.connect(timeout_s=20)
    try:
        print(f"rank {transport.mesh.rank} says hello")
        os.write(2, b"from below Python\n")
        total = transport.all_reduce(Channel.DENSE, torch.tensor([first + transport.mesh.rank * second]))
        return transport.mesh.rank, int(total), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.getpid()
    finally:
        transport.close()


def one_raises():
    transport = CollectiveTransport.connect(timeout_s=20)
    try:
        if transport.mesh.rank == 1:
            print("about to fail", flush=True)
            raise ValueError("no such row")
        transport.all_reduce(Channel.DENSE, torch.ones(1))
    except BaseException as error:
        transport.fail("FORWARD(7)", error)
        raise
    finally:
        transport.close()


def user_error():
    raise UserError("the bed is too short; take a longer one")


def ends(how):
    if os.environ["RANK"] == "1" and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    time.sleep(60)


def sleeps(pid_folder):
    open(os.path.join(pid_folder, f"{os.getpid()}.pid"), "w").close()
    time.sleep(60)


def meets_again(port):
    """Meetings one after the other, among them some that fail: how each ended, and its seconds.

    `port`: of a store that rank 0 serves, None: the launcher's.
    """
    rank = int(os.environ["RANK"])
    env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = dict(os.environ) if port is None else env
    found = [_meeting(env, 20)]
    time.sleep(0.5 * rank)
    found.append(_meeting(env, 20))
    for alone in (0, 1):
        if rank == alone:
            found.append(_meeting(env, 0.5))
        else:
            time.sleep(1.0)
        found.append(_meeting(env, 20))
    if rank == 1:
        with mock.patch.object(collective, "make_groups", side_effect=OSError("no memory")):
            found.append(_meeting(env, 1))
    else:
        found.append(_meeting(env, 1))
    found.append(_meeting(env, 20))
    return found


def _meeting(env, timeout_s):
    begin = time.monotonic()
    try:
        transport = CollectiveTransport.connect(timeout_s=timeout_s, env=env)
        total = int(transport.all_reduce(Channel.DENSE, torch.tensor([1 + transport.mesh.rank])))
        transport.close()
    except BaseException as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return total, time.monotonic() - begin
