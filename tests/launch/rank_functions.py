"""What ranks run in the tests of `launch`: functions in a module, as ranks need them."""

from __future__ import annotations

import os
import signal
import time

import torch

from nestlab.errors import UserError
from nestlab.exchange import Channel
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
