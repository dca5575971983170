"""Which revision of a name is meant, in one replica and among several."""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.members.lives import DROPPED_MAX, Lives
from activator.messages import DropRevision, SetRevision


def a_spec(name: str) -> RevisionSpec:
    return RevisionSpec(key=f"default/{name}")


def life_of(lives: Lives, name: str = "a") -> int:
    effect = lives.with_life(SetRevision(a_spec(name)))
    assert isinstance(effect, SetRevision)
    return effect.life


def drop(lives: Lives, name: str = "a") -> None:
    lives.with_life(DropRevision(a_spec(name).key))


def test_a_revision_that_comes_back_is_another_one() -> None:
    lives = Lives()
    assert [life_of(lives), life_of(lives)] == [0, 0]
    drop(lives)
    assert life_of(lives) == 1
    assert life_of(lives, "b") == 0
    assert lives.announced().present == {a_spec("a").key: 1}


def test_a_replica_that_starts_later_counts_on() -> None:
    one, other = Lives(), Lives()
    life_of(one)
    drop(one)
    life_of(one)
    assert other.learn(one.announced()) == []
    assert life_of(other) == 1


def test_a_lower_number_than_others_have_is_told() -> None:
    one, other = Lives(), Lives()
    for _ in range(2):
        life_of(one)
        drop(one)
    life_of(one)
    life_of(other)
    assert other.learn(one.announced()) == [a_spec("a").key]
    assert one.learn(other.announced()) == []


def test_names_that_were_dropped_are_forgotten_in_the_end() -> None:
    lives = Lives()
    for index in range(DROPPED_MAX + 5):
        life_of(lives, f"r{index}")
        drop(lives, f"r{index}")
    assert life_of(lives, "r0") == 0
    assert life_of(lives, f"r{DROPPED_MAX + 4}") == 1


def test_a_replica_that_starts_between_a_drop_and_the_return_counts_on() -> None:
    one, other = Lives(), Lives()
    life_of(one)
    drop(one)
    assert other.learn(one.announced()) == []
    third = Lives()
    assert third.learn(other.announced()) == []  # who has heard of it tells it as well
    assert life_of(one) == life_of(other) == life_of(third) == 1


def test_a_drop_that_has_not_come_here_yet_is_no_reason_to_complain() -> None:
    one, other = Lives(), Lives()
    life_of(one)
    life_of(other)
    drop(one)
    assert other.learn(one.announced()) == []
    drop(other)
    assert life_of(one) == life_of(other) == 1
