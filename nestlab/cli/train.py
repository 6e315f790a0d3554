"""`nestlab train`: one training run from the command line."""

from __future__ import annotations

import argparse
import os
from functools import partial

from nestlab.cli.parsing import positive
from nestlab.errors import UserError
from nestlab.launch.environment import tell_launcher

_NOT_OPTIONS = ("main", "command")
_DESCRIPTION = """One training run. On many ranks: start one process a rank, by torchrun or with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT set (and GLOO_SOCKET_IFNAME, where a host has several networks). Rank 0 writes."""


MODELS = ("dlrm", "dcnv2", "din", "multitask", "multitask_hstu", "hstu", "fuxi", "sasrec")
_DEFAULTS = """Each model has defaults of its own for what is not given; the run's parameters say what was used."""


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("train", help="one training run", description=_DESCRIPTION, epilog=_DEFAULTS)
    add = parser.add_argument
    number = partial(add, metavar="N", type=positive)
    add("--model", choices=MODELS, help="clicks, several actions, or the next item (hstu, fuxi, sasrec); default: dlrm")
    add("--dataset", metavar="NAME", help="default: criteo, or kuairand where the model reads histories of users")
    add("--data-root", metavar="DIR", default="datasets", help="where the data lies; default: datasets")
    add("--convention", metavar="NAME", help="Criteo: dlrm-log1p (default), dlrm, mlperf, x4_001 or criteo_x1")
    number("--rows", help="use the first N rows only; with more than there are: all")
    number("--batch-size", help="samples a step, over all ranks; ranks beyond N compute nothing")
    number("--steps", dest="max_steps", help="train N batches, over as many epochs as it takes")
    number("--epochs", help="passes over the training rows, where no --steps are given")
    add("--lr", metavar="RATE", type=float, help="of the tables")
    add("--dense-lr", metavar="RATE", type=float, help="of the dense part")
    add("--clip-norm", metavar="NORM", type=float, help="scale gradients down to this norm; default: never")
    add("--optimizer", metavar="NAME", help="of the tables: sgd, adagrad, rowwise_adagrad or lazy_adam")
    number("--dim", help="width of the embedding vectors")
    number("--history", help="events of a user before a sample, at most; not of dlrm and dcnv2")
    number("--negatives", help="items drawn against each window of events; of hstu, fuxi, sasrec")
    number("--blocks", help="layers of the encoder; of hstu, fuxi, sasrec")
    add("--seed", metavar="N", type=int, default=0)
    add("--shuffle", choices=("full", "window"), default="full", help="all rows, or near ones only; default: full")
    add("--reorder", metavar="MODE", default="", help="order ids for tensor-train tables: communities, frequency, none")
    add("--techniques", metavar="NAME=VALUE,…", default="", help="ablation flags; nestlab techniques lists them")
    add("--executor", choices=("auto", "inline", "lanes", "shuffled"), default="auto", help="default: auto")
    add("--link", metavar="LATENCY,RATE", default="", help="emulate a link between host and device, as 10us,100gbit")
    add("--network", metavar="LATENCY,RATE", default="", help="emulate a link between ranks, as 100us,1gbit")
    add("--timeout", metavar="SECONDS", type=float, help="how long a rank waits for another; default: 60")
    add("--device", metavar="NAME", default="auto")
    add("--checkpoint", metavar="DIR", help="save tables, weights and place there; a folder that all ranks see")
    number("--checkpoint-every", help="steps from save to save; the end is saved too; default: 100")
    number("--checkpoint-full-every", help="saves from one of all rows to the next; default: 10")
    add("--restart", action="store_true", help="go on from the checkpoint in DIR if there is one")
    add("--export", metavar="DIR", help="write the final tables and dense weights there, in canonical order")
    add("--results", metavar="DIR", help="default: results, here or in the project's folder")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """An error that every rank finds before the ranks have met is told by the first alone."""
    try:
        return _train(args)
    except UserError as error:
        tell_launcher(f"nestlab: error: {error}")
        if os.environ.get("RANK", "0") not in ("", "0"):
            return 2
        raise


def _train(args: argparse.Namespace) -> int:
    from nestlab.techniques import Techniques

    Techniques.parse(args.techniques)  # a slip in a flag is told before torch is loaded

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost rank is told in a line of ours
    from nestlab.experiments import training

    return training.train_from_options({key: value for key, value in vars(args).items() if key not in _NOT_OPTIONS})
