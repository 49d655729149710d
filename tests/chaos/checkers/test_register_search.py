"""The register's search against brute force, and on histories of a correct object."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.checkers.register import check_register
from ebla.chaos.history import OK, History, pair
from tests.chaos.checkers.histories import Play, changed, draw_register, explainable, register

SEEDS = st.integers(0, 2**32)


def small(seed: int) -> tuple[Play, History]:
    """At most 7 operations on one key; most histories have one changed answer."""
    draw = random.Random(seed)
    play = Play(seed, register, {}, draw_register(1, draw.choice([2, 3, None])), draw.choice([0.0, 0.2, 0.4]))
    history = play.run(slots=draw.choice([2, 3, 4]), count=draw.choice([4, 5, 6, 7]))
    answers = [event for event in history.events if event.type == OK and event.operation != "write"]
    if answers and draw.random() < 0.7:
        event = draw.choice(answers)
        value = draw.choice([None, 0, 1, 2]) if event.operation == "read" else not event.value
        history = changed(history, event.index, value)
    return play, history


def agrees(history: History, order: dict[int, int | None]) -> bool:
    operations = pair(history.events)
    verdict = check_register(history, order)
    if verdict.valid is None:
        return not any(each.known for each in operations)
    return verdict.valid == explainable(operations, register, {}, order)


@settings(max_examples=600, deadline=None)
@given(SEEDS)
def test_the_search_agrees_with_brute_force(seed: int) -> None:
    _, history = small(seed)
    assert agrees(history, {})


@settings(max_examples=600, deadline=None)
@given(SEEDS)
def test_the_search_with_a_log_agrees_with_brute_force(seed: int) -> None:
    play, history = small(seed)
    draw = random.Random(seed + 1)
    order = {place: position for place, position in play.order.items() if draw.random() < 0.8}
    order = {place: at for place, at in order.items() if history.events[place].operation != "read"}
    if len(order) > 1 and draw.random() < 0.4:
        one, other = draw.sample(list(order), 2)
        order[one], order[other] = order[other], draw.choice([order[one], order[one], None])
    assert agrees(history, order)


def test_both_verdicts_are_common_among_the_small_histories() -> None:
    """Otherwise the two tests above prove little."""
    verdicts = [check_register(small(seed)[1]).valid for seed in range(300)]
    assert verdicts.count(True) > 50 and verdicts.count(False) > 50


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 10), st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([3, None]))
def test_histories_of_a_correct_register_are_accepted(
    seed: int, slots: int, unknown: float, values: int | None
) -> None:
    play = Play(seed, register, {}, draw_register(3, values), unknown)
    history = play.run(slots, count=120)
    assert check_register(history).valid is True
    writes = {at: where for at, where in play.order.items() if history.events[at].operation != "read"}
    assert check_register(history, writes).valid is True


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 0.1]))
def test_a_very_stale_read_is_found_in_a_long_history(seed: int, unknown: float) -> None:
    play = Play(seed, register, {}, draw_register(1, None, ("read", "write")), unknown)
    history = play.run(slots=5, count=300)
    read = [event for event in history.events if event.type == OK and event.operation == "read"]
    old = next(event.value for event in read if event.value is not None)
    history = changed(history, read[-1].index, old)
    assert check_register(history).valid is (read[-1].value == old)


def test_long_histories_of_many_processes_are_judged() -> None:
    """The worst case is exponential; the bound on steps shows that the usual case is not."""
    for slots, unknown in ((5, 0.0), (10, 0.0), (5, 0.05), (10, 0.05)):
        history = Play(1, register, {}, draw_register(1, None), unknown).run(slots, count=5000)
        assert check_register(history, steps_max=400_000).valid is True
