from dataclasses import replace

from nestlab.pipeline import Edge, Schedule, Stage
from nestlab.pipeline.builders import plain
from nestlab.pipeline.ordering import list_order


def read_ahead(shape):
    """The plain loop, but the next batch is read while this one is trained."""
    reference = plain(shape)
    entries = tuple(replace(e, ahead=1) if e.stage is Stage.LOAD else e for e in reference.entries)
    kept = [e for e in reference.edges if e.required or Stage.LOAD not in (e.source, e.target)]
    one_more = Edge(Stage.UPDATE, Stage.LOAD, delta=-2, required=False, reason="one batch ahead, no more")
    edges = (*kept, one_more)
    return Schedule("read ahead", list_order(entries, edges), edges)
