import grain.python as grain
import numpy as np

from rankless_sampler import EpochOrder


class SeededIndexSampler:
    """What grain.DataLoader wants: the k-th record of the whole run, a pure function of k."""

    def __init__(self, num_records: int, seed: int, num_epochs: int) -> None:
        self.num_records, self.seed, self.num_epochs = num_records, seed, num_epochs
        self.orders = [EpochOrder(num_records, seed=seed, epoch=epoch) for epoch in range(num_epochs)]

    def __len__(self) -> int:
        return self.num_records * self.num_epochs

    def __getitem__(self, k: int) -> grain.RecordMetadata:
        epoch, position = divmod(k, self.num_records)
        rng = np.random.Generator(np.random.Philox(key=[self.seed, k]))  # for your random transformations
        return grain.RecordMetadata(index=k, record_key=self.orders[epoch][position], rng=rng)

    def __repr__(self) -> str:  # grain compares it on resume
        return f"SeededIndexSampler({self.num_records}, seed={self.seed}, num_epochs={self.num_epochs})"
