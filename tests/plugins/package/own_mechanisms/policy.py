import numpy as np

from nestlab.embedding.device.own_policy import VictimChooser


class Fifo(VictimChooser):
    """First in, first out: the row that came in longest ago leaves, however often it was used since."""

    def __init__(self, places, first_slot):
        super().__init__(places, first_slot)
        self._since = np.zeros(places.row_of.size, dtype=np.int64)  # a slot: the plan that filled it

    @property
    def nbytes(self):
        return self._since.nbytes

    def resize(self, places):
        super().resize(places)
        self._since = np.pad(self._since, (0, places.row_of.size - self._since.size))

    def choose(self, slots, count, plan):
        return slots[np.argsort(self._since[slots], kind="stable")[:count]]

    def filled(self, slots, plan):
        self._since[slots] = plan
