"""The search for an order of calls that explains every answer.

Wing and Gong's search with Lowe's memo, as in Porcupine: take any call that may come first and whose answer fits the
state, continue with the rest, come back if the rest cannot be ordered, and never enter the same situation (calls taken,
state) twice. A call may come next if it began before the first answer that is not taken yet. The remaining answers and calls
are a linked list in an array of places, so taking a call and putting it back is cheap.

Five rules keep the search fast, and none of them loses an order:

- A call that only observed (a read, a refused insert) is taken as soon as it fits: it blocks no other call.
- A situation remembers the taken calls from the first missing one on, so it is small in a history of any length.
- A call with an unknown outcome need not be taken. It is tried after those that must be taken, unless only it makes the
  next answer right. Of two equal ones the earlier is tried first. A situation that equals an earlier one, except that more of
  these calls are used, is not entered.
- A call with a known position in the replicated log waits for those before it, known or not.
- A state that a later call must observe, and that no remaining call can make again, is not left.

The worst case stays exponential, so the number of steps is bounded; beyond it the result is undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ebla.chaos.history import Operation

State = Hashable
STEPS_MAX = 2_000_000  # calls tried on a state: some seconds of one core


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


UNKNOWN: Final = _Mark("UNKNOWN")  # an answer that never arrived
REFUSED: Final = _Mark("REFUSED")  # a step's result if the answer cannot be right
ANY: Final = _Mark("ANY")  # not just one state

# (state, argument, answer or UNKNOWN) -> the state after it, or REFUSED
Step = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Call:
    """One operation in the search. `observes`: with this answer it never changes a state.

    `operation.ended` is None if it may take place at any later moment; `position` is its place in the log, if known. Without
    both it may also never take place. If one call has `wants`, all must have `makes`.
    """

    step: Step
    argument: Hashable
    answer: Hashable
    observes: bool
    operation: Operation
    position: int | None = None
    wants: State | _Mark = ANY  # of an observation: the only state that it fits, if there is just one
    makes: State | _Mark = ANY  # of a change: the only state that it leaves behind, if it changes anything

    @property
    def must(self) -> bool:
        return self.operation.ended is not None


@dataclass(frozen=True)
class Linearization:
    """`found` is None if the search was given up. Without an order, the other fields describe the longest attempt."""

    found: bool | None
    steps: int
    state: State = None
    taken: int = 0  # of the calls that must take place
    last: Call | None = None  # the newest call of the attempt that changed the state
    stuck: tuple[Call, ...] = ()  # calls that could have come next, in the order of their answers
    kept_for: Call | None = None  # the observation that still needs this state, which no call makes again


def linearize(calls: Sequence[Call], initial: State, steps_max: int = STEPS_MAX) -> Linearization:
    """Search an order of `calls` from the state `initial`. States must be hashable; steps must be pure."""
    return _Search(calls, steps_max).run(initial)


@dataclass(slots=True)
class _Choice:
    """A next step: take the listed call `number`, or (number -1) an unknown one, after which `used` unknown ones are used."""

    number: int
    state: State
    used: int


@dataclass(slots=True)
class _Frame:
    """A situation of the search, with the choices that were not tried yet."""

    state: State
    used: int
    taken: int  # length of the trail
    base: int
    window: int
    in_order: int
    choices: list[_Choice]
    guessed: bool
    before: State  # the state before the guess that led here, if no call was taken since; else REFUSED


@dataclass(slots=True)
class _Alike:
    """Unknown calls that differ only in their beginnings, in that order. `shift`: the place of their bits in `used`."""

    call: Call
    began: list[int]
    shift: int


class _Search:
    def __init__(self, calls: Sequence[Call], steps_max: int) -> None:
        self.steps, self.steps_max = 0, steps_max
        ordered = sorted(calls, key=lambda call: call.operation.began)
        self.calls = [call for call in ordered if call.must or call.position is not None]
        self.alike = _classes([call for call in ordered if not call.must and call.position is None])
        self.left = sum(call.must for call in self.calls)
        self.must = self.left
        self.seen: dict[tuple[int, int, State], tuple[int, ...]] = {}
        # The taken calls: every call below `base`, and those of the bits of `window` from there on; in order: `trail`.
        self.base, self.window = 0, 0
        self.trail: list[int] = []
        self._count_wants()
        self._rank_by_position()
        self._link()
        self.best = Linearization(False, 0, taken=-1)

    def _rank_by_position(self) -> None:
        """A call with a position waits until `rank` calls of lower positions are taken; `in_order` counts them."""
        self.in_order = 0
        positions = sorted(call.position for call in self.calls if call.position is not None)
        first: dict[int, int] = {}
        for rank, position in enumerate(positions):
            first.setdefault(position, rank)
        self.rank = [0 if call.position is None else first[call.position] for call in self.calls]

    def _count_wants(self) -> None:
        """Count the remaining calls that want each state, and those that can make it. Unknown ones always can."""
        self.wanted = Counter(call.wants for call in self.calls if call.wants is not ANY)
        changes = (call for call in self.calls if not call.observes)
        self.makers = Counter(call.makes for call in changes)
        self.makers.update(alike.call.makes for alike in self.alike)
        assert not self.wanted or ANY not in self.makers, "every change must have `makes`"

    def _must_stay(self, state: State) -> bool:
        return bool(self.wanted.get(state)) and not self.makers.get(state)

    def _link(self) -> None:
        """Link beginnings and answers in one circle in the order of their events; place 0 is its head."""
        events: list[tuple[int, int, bool]] = []
        for number, call in enumerate(self.calls):
            events.append((call.operation.began, number, True))
            if call.operation.ended is not None:
                events.append((call.operation.ended, number, False))
        events.sort()
        size = len(events) + 1
        self.event = [0] + [index for index, _, _ in events]
        self.caller = [-1] + [number for _, number, _ in events]
        self.begins = [False] + [begins for _, _, begins in events]
        self.next = [*range(1, size), 0]
        self.prior = [size - 1, *range(size - 1)]
        self.begin_at, self.answer_at = [0] * len(self.calls), [0] * len(self.calls)
        for place in range(1, size):
            (self.begin_at if self.begins[place] else self.answer_at)[self.caller[place]] = place

    # -- the search

    def run(self, initial: State) -> Linearization:
        stack = [self._arrive(initial, 0, REFUSED)]
        while self.left:
            frame = stack[-1]
            self._return_to(frame)
            if not frame.choices and not frame.guessed:
                self._guess(frame)
            if self.steps > self.steps_max:
                return Linearization(None, self.steps)
            if not frame.choices:
                self._gave_up(frame)
                stack.pop()
                if not stack:
                    return replace(self.best, steps=self.steps)
                continue
            choice = frame.choices.pop()
            if choice.number >= 0:
                self._take(choice.number)
            before = frame.state if choice.number < 0 else REFUSED
            stack.append(self._arrive(choice.state, choice.used, before))
        return Linearization(True, self.steps, taken=self.must)

    def _arrive(self, state: State, used: int, before: State) -> _Frame:
        """Take the calls that only observe, then list the choices: none if this situation was met before."""
        taken = len(self.trail)
        choices = self._ways_on(state, used)
        if len(self.trail) != taken:
            before = REFUSED
        frame = _Frame(
            state,
            used,
            len(self.trail),
            self.base,
            self.window,
            self.in_order,
            choices,
            not self.alike,
            before,
        )
        if not self._is_new(state, used):
            frame.choices, frame.guessed = [], True
        elif not self._prefer(choices) and not frame.guessed:
            self._guess(frame)
        return frame

    def _ways_on(self, state: State, used: int) -> list[_Choice]:
        again = True
        while again:
            again = False
            choices = []
            place = self.next[0]
            while self.begins[place]:
                number = self.caller[place]
                call = self.calls[number]
                if self.rank[number] <= self.in_order:
                    self.steps += 1
                    after = call.step(state, call.argument, call.answer)
                    if after is REFUSED:
                        pass
                    elif call.observes:
                        self._take(number)
                        again = again or call.position is not None  # others may have waited for its position
                    else:
                        choices.append(_Choice(number, after, used))
                place = self.next[place]
        if choices and self._must_stay(state):
            choices = [each for each in choices if each.state == state]
        return choices

    def _prefer(self, choices: list[_Choice]) -> bool:
        """Put last, to be tried first, choices that make the next answer right, then those that are answered first.

        Returns whether any choice makes the next answer right.
        """
        waits = self._next_answer()
        if waits is None or not choices:
            return not self.left
        call = self.calls[waits]
        helps = [
            each.number == waits or call.step(each.state, call.argument, call.answer) is not REFUSED
            for each in choices
        ]
        if len(choices) > 1:
            answered = [self.event[self.answer_at[each.number]] for each in choices]
            order = sorted(range(len(choices)), key=lambda at: (helps[at], -answered[at]))
            choices[:] = [choices[at] for at in order]
        return any(helps)

    def _next_answer(self) -> int | None:
        """The call with the first answer that is not taken yet."""
        place = self.next[0]
        while self.begins[place]:
            place = self.next[place]
        return self.caller[place] if place else None

    def _guess(self, frame: _Frame) -> None:
        """Add the unknown calls that might take place next and change the state; the most useful is tried first."""
        frame.guessed = True
        waits = self._next_answer()
        if waits is None or self._must_stay(frame.state):
            return
        until = self.event[self.answer_at[waits]]
        answer = self.calls[waits]
        helpful: list[_Choice] = []
        others: list[_Choice] = []
        for alike in self.alike:
            count = (frame.used >> alike.shift & ((1 << len(alike.began)) - 1)).bit_length()
            if count == len(alike.began) or alike.began[count] > until:
                continue
            call = alike.call
            self.steps += 1
            after = call.step(frame.state, call.argument, UNKNOWN)
            if after is REFUSED or after == frame.state:
                continue
            if frame.before is not REFUSED and call.step(frame.before, call.argument, UNKNOWN) == after:
                continue  # the guess that led here would be useless
            helps = answer.step(after, answer.argument, answer.answer) is not REFUSED
            choice = _Choice(-1, after, frame.used | 1 << (alike.shift + count))
            (helpful if helps else others).append(choice)
        frame.choices[:] = others + frame.choices + helpful if helpful else others + frame.choices

    def _is_new(self, state: State, used: int) -> bool:
        """Whether no situation with these calls taken, this state and as few unknown calls used was met before."""
        key = (self.base, self.window, state)
        met = self.seen.get(key)
        if met is None:
            self.seen[key] = (used,)
            return True
        if any(fewer & ~used == 0 for fewer in met):
            return False
        self.seen[key] = (*(more for more in met if used & ~more), used)
        return True

    # -- taking calls and putting them back

    def _take(self, number: int) -> None:
        call = self.calls[number]
        if call.must:
            self.left -= 1
            self._unlink(self.answer_at[number])
        # Last, so that its `next` is right for a walk that continues from here.
        self._unlink(self.begin_at[number])
        self.trail.append(number)
        self.in_order += call.position is not None
        self._count(call, -1)
        self.window |= 1 << (number - self.base)
        while self.window & 1:
            self.window >>= 1
            self.base += 1

    def _count(self, call: Call, more: int) -> None:
        if not call.observes:
            self.makers[call.makes] += more
        elif call.wants is not ANY:
            self.wanted[call.wants] += more

    def _unlink(self, place: int) -> None:
        before, after = self.prior[place], self.next[place]
        self.next[before], self.prior[after] = after, before

    def _return_to(self, frame: _Frame) -> None:
        while len(self.trail) > frame.taken:
            number = self.trail.pop()
            call = self.calls[number]
            self._link_again(self.begin_at[number])
            if call.must:
                self._link_again(self.answer_at[number])
                self.left += 1
            self._count(call, 1)
        self.base, self.window, self.in_order = frame.base, frame.window, frame.in_order

    def _link_again(self, place: int) -> None:
        self.next[self.prior[place]] = self.prior[self.next[place]] = place

    def _gave_up(self, frame: _Frame) -> None:
        taken = self.must - self.left
        if taken <= self.best.taken:
            return
        stuck: list[Call] = []
        place = self.next[0]
        while self.begins[place]:
            if self.calls[self.caller[place]].must:
                stuck.append(self.calls[self.caller[place]])
            place = self.next[place]
        stuck.sort(key=lambda call: call.operation.ended or 0)
        changes = (self.calls[number] for number in reversed(self.trail) if not self.calls[number].observes)
        taken_ones = frozenset(self.trail)
        left = (call for number, call in enumerate(self.calls) if number not in taken_ones)
        wanting = (call for call in left if call.observes and call.wants == frame.state)
        kept_for = next(wanting, None) if self._must_stay(frame.state) else None
        self.best = Linearization(False, 0, frame.state, taken, next(changes, None), tuple(stuck), kept_for)


def _classes(calls: Sequence[Call]) -> list[_Alike]:
    found: dict[tuple[Step, Hashable], _Alike] = {}
    for call in calls:
        alike = found.setdefault((call.step, call.argument), _Alike(call, [], 0))
        alike.began.append(call.operation.began)
    shift = 0
    for alike in found.values():
        alike.shift = shift
        shift += len(alike.began)
    return list(found.values())
