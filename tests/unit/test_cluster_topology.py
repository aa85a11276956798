"""Cores -> shard count, and what --shards accepts."""

import pytest

from cluster.topology import BadShards, is_shard_count, parse_shards, shards_for


@pytest.mark.parametrize(
    ("cpus", "shards"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (12, 16), (33, 64), (64, 64), (65, 64), (500, 64)],
)
def test_shards_cover_all_cores_up_to_the_limit(cpus, shards):
    assert shards_for(cpus) == shards


@pytest.mark.parametrize("text", ["1", "2", "64"])
def test_powers_of_two_are_accepted(text):
    assert parse_shards(text) == int(text)


def test_auto_leaves_the_choice_to_the_cluster():
    assert parse_shards("auto") is None
    assert parse_shards(" AUTO ") is None


@pytest.mark.parametrize("text", ["0", "3", "-2", "128", "two", "", "2.0", "1e1"])
def test_anything_else_is_refused_with_the_bounds(text):
    with pytest.raises(BadShards, match="power of two from 1 to 64"):
        parse_shards(text)


def test_only_powers_of_two_are_shard_counts():
    assert [n for n in range(-1, 130) if is_shard_count(n)] == [1, 2, 4, 8, 16, 32, 64]
