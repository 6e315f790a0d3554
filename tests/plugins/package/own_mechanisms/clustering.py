import numpy as np


class ByHottestKey:
    """Samples sorted by the key of theirs that most samples of the batch have, most frequent first."""

    def order(self, samples, parts):
        frequency = np.bincount(samples.keys, minlength=samples.unique)
        hottest = np.full(samples.size, -1)
        for s in range(samples.size):
            own = samples.keys[samples.offsets[s] : samples.offsets[s + 1]]
            if own.size:
                hottest[s] = own[np.argmax(frequency[own])]
        rank = np.where(hottest >= 0, frequency[hottest], 0) if samples.unique else np.zeros(samples.size)
        return np.lexsort((hottest, -rank))
