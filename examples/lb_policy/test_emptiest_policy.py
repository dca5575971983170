"""The contract that every policy keeps, and what this one promises beside it."""

from __future__ import annotations

from emptiest_policy import Emptiest

from lb.testing import PolicyContract, grant


class TestEmptiest(PolicyContract):
    policy = Emptiest
    is_least_loaded = True

    def test_pods_of_unequal_size_are_filled_evenly(self) -> None:
        table = self.make_table(0)
        small, large = self.add(table, 1, limit=4), self.add(table, 2, limit=100)
        for _ in range(52):
            assert grant(table) is not None
        assert (small.in_flight, large.in_flight) == (2, 50)
