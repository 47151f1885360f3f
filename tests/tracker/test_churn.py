"""A hundred donors come and go for ten simulated minutes: every expert keeps a route, little is moved."""

import pytest

from tracker.churn_bench import churn


@pytest.mark.parametrize("seed", range(2))
async def test_every_expert_keeps_a_route_and_little_is_moved(seed: int) -> None:
    found = await churn(donors=100, minutes=10, seed=seed)
    print(found)
    assert (found.without_route, found.not_found) == (0, 0)
    assert found.looks > 1000
    assert found.tracker_asked > 20
    assert found.joins > 150
    assert found.moved_share < 0.02
    assert found.most_replicas - found.least_replicas <= 3


async def test_where_donors_are_too_few_experts_without_a_route_are_counted() -> None:
    found = await churn(donors=3, minutes=2)
    assert found.looks > 0
    assert found.without_route >= 16 * 64 - 3 * 200
    assert found.not_found >= found.without_route - 3 * 200
