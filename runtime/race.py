"""Find which file, engine and number of threads is fastest at each length on this machine, in a short race.

All candidates stay open and take turns, so that a disturbance affects all of them, and are compared within each round: the speed
of a machine that others use too changes by a third from one second to the next. A candidate that is far behind at a length is not
run there any more: the time goes to those that are close. A turn looks like use: some texts of mixed lengths, then, length by
length, texts of one length in a row until the caches are warm. (One text after another engine's tells little: a small
model takes twice its usual time there.)

For the cadence `interactive` a turn is one untimed call, which fills the caches, and then calls after an idle time each, of one
length and of mixed lengths.

It is run by a process of its own: what it opens and closes would leave the memory of this one in pieces, and a model of a
millisecond 5 % slower for good.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from pocketbert.core.errors import MachineError
from pocketbert.core.host.system import can_start_python
from pocketbert.core.predict.predictor import fitting
from pocketbert.runtime.engines import EngineFile, FilePredictor, filled
from pocketbert.runtime.onnx import OnnxPredictor, Spin

# --- plan ---
# Times of the candidates on one machine, and which of them is expected to be fastest.


SPIN_ON_PRICE = 1.02
"""Threads that wait busily between runs occupy a core without use: they have to be faster by this factor."""


class Cadence(StrEnum):
    """How an app calls the model, which decides what `fastest` measures."""

    BATCH = "batch"
    """One call right after the other: caches are full, the clock is high, threads are awake."""
    INTERACTIVE = "interactive"
    """Single calls, each after an idle time of `IDLE_MS`, as when a user types."""


IDLE_MS = 100.0
"""Idle time before each call of the cadence `interactive`."""


@dataclass(frozen=True)
class Candidate:
    """A file, and how to open it.

    Attributes:
        file: The file.
        threads: Threads within an operator.
        spin: How its threads wait; of ONNX Runtime only.
    """

    file: EngineFile
    threads: int
    spin: Spin = Spin.NO

    def open(self) -> FilePredictor:
        """Open it."""
        return (
            OnnxPredictor(self.file.path, self.threads, spin=self.spin)
            if self.spin is not Spin.NO
            else self.file.open(self.threads)
        )


class Timing(BaseModel):
    """Times of one candidate.

    Attributes:
        file: Name of the file.
        threads: Its threads.
        spin: How its threads waited.
        fixed: Whether it takes the listed lengths only.
        steady: Wall time of one text in ms after others of the same length, by length in tokens.
        mixed: The same after a text of another length. LiteRT packs the weights once for each signature, so that a
            change of length finds none of them in the caches.
    """

    file: str
    threads: int
    spin: Spin
    fixed: bool
    steady: dict[int, float]
    mixed: dict[int, float]

    def at(self, length: int, steady: bool = True) -> float:
        """Expected milliseconds for one text of a length; infinite where it does not fit."""
        ms = self.steady if steady else self.mixed
        known = sorted(ms)
        if self.fixed:
            return ms[fitting(known, length)] if length <= known[-1] else float("inf")
        if length > known[-1]:
            return ms[known[-1]] * length / known[-1]
        return float(np.interp(length, known, [ms[n] for n in known]))


class Plan(BaseModel):
    """Timings of all candidates on one machine.

    Attributes:
        timings: In the order of the candidates.
        disturbed: Whether the machine was so busy that the timings are not worth remembering.
    """

    timings: list[Timing]
    disturbed: bool = False

    def costs(self, length: int, steady: bool = True) -> NDArray[np.float64]:
        """What one text costs each candidate: its expected ms, more where threads spin on; shape [candidates].

        Args:
            length: Tokens.
            steady: Whether the text comes after another of its own length.
        """
        return np.array([t.at(length, steady) * (SPIN_ON_PRICE if t.spin is Spin.ON else 1) for t in self.timings])

    def best(self, lengths: Sequence[int], steady: bool = True) -> int:
        """Number of the candidate that is expected to need least time for texts of these lengths, one after the other.

        Args:
            lengths: Tokens of each text.
            steady: Whether a text comes after another of its own length.
        """
        return int(np.sum([self.costs(n, steady) for n in lengths], axis=0).argmin())


LENGTHS = (8, 16, 24, 32, 48, 64, 128, 256, 512)
"""Where a file that takes any length is raced; between them its time is interpolated."""
SINGLE_LENGTHS = (8, 16, 32, 64, 128, 512)
"""The same for single calls, of which each costs the idle time."""
SINGLES = 2
"""Timed calls of a turn of the cadence `interactive`."""
ROUNDS = 24
BUDGET_S = {Cadence.BATCH: 25.0, Cadence.INTERACTIVE: 60.0}
"""Most seconds spent on rounds, which are mostly idle where single calls are timed, since those vary more; the slower the model, the
fewer rounds, never fewer than 3. A length at which all candidates but one are out is decided and not run again; where all lengths
are, the race is over."""
CLOSE = (3.0, 1.6, 1.35, 1.25, 1.2, 1.15, 1.12)
"""A candidate that took more than this multiple of the best time at a length is out of the race there: before the first round, when
a disturbance may have affected its only inferences, before the second one, and so on."""
QUIET = 0.8
"""A race is remembered when one thread had at least this share of a core in three quarters of the rounds."""
WARM_MS, BURST_MS, MOST = 8.0, 16.0, 12
"""A burst: ms of untimed inferences, ms of timed ones, and the most inferences of each. One of `MIXED_MS` needs no warming."""
FIRST_MS = 40.0
"""The first time of a length is the best of two inferences; below this number of ms, of up to four."""
MIXED_MS = 25.0
"""The time of an inference of this number of ms does not depend on what ran before it."""
MIXED_CYCLES, MIXED_CYCLES_MS = (2, 5), 100.0
"""A turn of mixed lengths: once to fill the caches, then up to four times, together in about this number of ms."""
SENTENCE = 64
"""Lengths are mixed among sentences, of at most this number of tokens, and among what is longer: a document between two sentences
would empty the caches that the second one finds full in use."""
THREADS_PAY = 1.3
"""Where a file is faster by this factor with more threads, one thread is not tried at longer lengths."""
REST_S, SETTLE_S = 0.08, 0.005
"""ONNX Runtime's threads may wait busily for some 50 ms after a run, those of a LiteRT signature for some ms; meanwhile
the next candidate has one core less."""
TIMEOUT_S = 600.0
"""No race takes nearly so long; a process that does hangs."""
_LEAST_ROUNDS = 3
_LEAVE_OUT = "Leave engine='fastest' out, or name a file."


class Request(BaseModel):
    """What the process that runs a race is told.

    Attributes:
        candidates: What to time.
        max_length: Longest input in tokens.
        rounds: Most rounds.
        cadence: How the model will be called.
    """

    candidates: list[Candidate]
    max_length: int
    rounds: int
    cadence: Cadence = Cadence.BATCH


@dataclass
class _Runner:
    """A candidate in the race and its ms by length; once out at a length it stays out, so that value i is that of round i."""

    candidate: Candidate
    predictor: FilePredictor
    grid: list[int]
    first: dict[int, float] = field(default_factory=dict)
    steady: dict[int, list[float]] = field(default_factory=dict)
    mixed: dict[int, list[float]] = field(default_factory=dict)
    contested: list[int] = field(default_factory=list)


def race_apart(candidates: Sequence[Candidate], max_length: int, cadence: Cadence = Cadence.BATCH) -> Plan:
    """Run `race` in a separate process, or in this one if no Python with these packages can be started.

    Raises:
        MachineError: If the process crashes or hangs, as this one then would.
    """
    request = Request(candidates=list(candidates), max_length=max_length, rounds=ROUNDS, cadence=cadence)
    if not can_start_python():
        return race(candidates, max_length, ROUNDS, cadence)
    # -P: a folder named like one of our imports in the user's working directory must not be picked up
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command,
            input=request.model_dump_json(),
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError:
        return race(candidates, max_length, ROUNDS, cadence)
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"engine 'fastest': timing the files took more than {TIMEOUT_S:.0f} s. {_LEAVE_OUT}"
        ) from error
    if done.returncode < 0:
        raise MachineError(
            f"engine 'fastest': the process that timed the files ended by signal {-done.returncode}. {_LEAVE_OUT}"
        )
    try:
        return Plan.model_validate_json((done.stdout.splitlines() or [""])[-1])
    except ValidationError:  # an embedding program that is no Python, or another set of packages
        return race(candidates, max_length, ROUNDS, cadence)


def race(
    candidates: Sequence[Candidate], max_length: int, rounds: int = ROUNDS, cadence: Cadence = Cadence.BATCH
) -> Plan:
    """Time the candidates at all lengths.

    Args:
        candidates: What to time.
        max_length: Longest input in tokens.
        rounds: Most rounds.
        cadence: How the model will be called.

    Returns:
        Wall times of one text.
    """
    single = cadence is Cadence.INTERACTIVE
    grid = SINGLE_LENGTHS if single else LENGTHS
    runners = [_Runner(c, p, _grid(p, max_length, grid)) for c, p in ((c, c.open()) for c in candidates)]
    for runner in sorted(runners, key=lambda r: -r.candidate.threads):
        _first_times(runner, runners, _single_time if single else _burst_time)
        _rest(runner)
    one = next((r for r in runners if r.candidate.threads == 1), None)
    order, shares, started = np.random.default_rng(0), list[float](), time.perf_counter()
    for done in range(rounds):
        _choose_contested(runners, max_length, CLOSE[min(done, len(CLOSE) - 1)])
        if one is not None:
            shares.append(_share(one))
        undecided = _undecided(runners)
        spent = time.perf_counter() - started
        if not undecided or (done >= _LEAST_ROUNDS and spent * (1 + 1 / done) > BUDGET_S[cadence]):
            break
        (_round_of_singles if single else _round)(runners, undecided, order)
    return Plan(
        timings=_timings(runners),
        disturbed=bool(shares) and float(np.quantile(shares, 0.25)) < QUIET,
    )


def _grid(predictor: FilePredictor, max_length: int, lengths: Sequence[int]) -> list[int]:
    free = sorted({min(n, max_length) for n in lengths})
    listed = [n for n in predictor.lengths if n <= max_length or n == fitting(predictor.lengths, max_length)]
    return listed or free


def _first_times(
    runner: _Runner, runners: Sequence[_Runner], timed: Callable[[FilePredictor, dict[str, NDArray[Any]]], float]
) -> None:
    """Plan the memory and pack the weights of each length, which the first run does, then a first time."""
    more = next((r for r in runners if r.first and _same_file(r, runner)), None)
    for n in runner.grid:
        feed = _sample(n, runner.predictor)
        _time(runner.predictor, feed)
        runner.first[n] = timed(runner.predictor, feed)
        runner.contested.append(n)
        if more is not None and more.first.get(n, np.inf) * THREADS_PAY < runner.first[n]:
            break  # one thread falls back further the longer the text


def _burst_time(predictor: FilePredictor, feed: dict[str, NDArray[Any]]) -> float:
    again = int(np.clip(FIRST_MS / max(ms := _time(predictor, feed), 0.01), 1, 3))
    return min(ms, *(_time(predictor, feed) for _ in range(again)))


def _single_time(predictor: FilePredictor, feed: dict[str, NDArray[Any]]) -> float:
    return min(_after_idle(predictor, feed) for _ in range(SINGLES))


def _after_idle(predictor: FilePredictor, feed: dict[str, NDArray[Any]]) -> float:
    time.sleep(IDLE_MS / 1000)
    return _time(predictor, feed)


def _same_file(other: _Runner, runner: _Runner) -> bool:
    return other.candidate.file == runner.candidate.file and other.candidate.threads > runner.candidate.threads


def _choose_contested(runners: Sequence[_Runner], max_length: int, within: float) -> None:
    """Keep candidates that were close at their best, as one undisturbed inference is enough, and those that are close by all rounds."""
    kinds = [_timings(runners), [_timing(r, *_bests(r)) for r in runners]]

    def close(number: int, n: int) -> bool:
        length = min(n, max_length)
        return any(
            timings[number].at(length, steady) <= within * min(t.at(length, steady) for t in timings)
            for timings in kinds
            for steady in (True, False)
        )

    for number, runner in enumerate(runners):
        runner.contested = [n for n in runner.contested if close(number, n)]


def _timings(runners: Sequence[_Runner]) -> list[Timing]:
    """The times of all candidates, as far as they are known."""
    lengths = sorted({n for r in runners for n in r.first})
    steady: list[dict[int, float]] = [{} for _ in runners]
    mixed: list[dict[int, float]] = [{} for _ in runners]
    for n in lengths:
        there = [i for i, r in enumerate(runners) if n in r.first]
        times = _compared([runners[i].steady.get(n, []) for i in there], [runners[i].first[n] for i in there])
        changed = _compared([runners[i].mixed.get(n, []) for i in there], times)
        for i, ms, after in zip(there, times, changed, strict=True):
            steady[i][n], mixed[i][n] = ms, after
    return [_timing(r, s, m) for r, s, m in zip(runners, steady, mixed, strict=True)]


def _compared(rounds: Sequence[Sequence[float]], otherwise: Sequence[float]) -> list[float]:
    """One time for each candidate at one length.

    Args:
        rounds: ms of each round, by candidate; some left early.
        otherwise: The ms of candidates that were in no round.

    Returns:
        That of the leader, the best one of those that stayed longest, is its lower quartile, since whatever else runs
        only ever makes a time longer. That of another one is the leader's times their ratio in the rounds that they share; where
        those are fewer than three, times the ratio of their best times, `otherwise` included.
    """
    most = max(map(len, rounds))
    if most == 0:
        return list(otherwise)
    first = min((i for i, r in enumerate(rounds) if len(r) == most), key=lambda i: float(np.median(rounds[i])))
    leader, low = rounds[first], float(np.quantile(rounds[first], 0.25))

    def ratio(number: int) -> float:
        ms, its = rounds[number], leader[: len(rounds[number])]
        if len(ms) < _LEAST_ROUNDS:  # a leader that was interrupted in the only round would make all others look fast
            return min(*ms, otherwise[number]) / min(*its, otherwise[first])
        return float(np.median(np.asarray(ms) / np.asarray(its)))

    return [low * ratio(i) if ms else other for i, (ms, other) in enumerate(zip(rounds, otherwise, strict=True))]


def _bests(runner: _Runner) -> tuple[dict[int, float], dict[int, float]]:
    steady = {n: min([ms, *runner.steady.get(n, [])]) for n, ms in runner.first.items()}
    return steady, {n: min(runner.mixed.get(n) or [ms]) for n, ms in steady.items()}


def _timing(runner: _Runner, steady: dict[int, float], mixed: dict[int, float]) -> Timing:
    c = runner.candidate
    return Timing(
        file=c.file.path.name,
        threads=c.threads,
        spin=c.spin,
        fixed=bool(runner.predictor.lengths),
        steady=steady,
        mixed=mixed,
    )


def _undecided(runners: Sequence[_Runner]) -> set[int]:
    """Lengths at which more than one candidate is left."""
    return {n for n, count in Counter(n for r in runners for n in r.contested).items() if count > 1}


def _round(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Give each candidate a turn at mixed lengths, then at each length, with those at one length right after each other."""
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _mix(running[i], order)
    others = [r for r in running if r.candidate.spin is not Spin.ON]
    for n in order.permutation(sorted(undecided.intersection(n for r in others for n in r.contested))):
        there = [r for r in others if n in r.contested]
        for i in order.permutation(len(there)):
            _burst(there[i], int(n))
    for runner in (r for r in running if r.candidate.spin is Spin.ON):
        for n in order.permutation(sorted(undecided.intersection(runner.contested))):
            _burst(runner, int(n))
        _rest(runner)  # once for all its lengths: ten rests would take most of the time there is


def _round_of_singles(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Time single calls of each candidate after idle times, at mixed lengths and then at each length."""
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _mix_singles(running[i], order)
    for n in order.permutation(sorted(undecided)):
        there = [r for r in runners if n in r.contested]
        for i in order.permutation(len(there)):
            predictor = there[i].predictor
            feed = _sample(int(n), predictor)
            predictor.run(feed)  # the caches hold the weights of the engine before
            calls = [_after_idle(predictor, feed) for _ in range(SINGLES)]
            there[i].steady.setdefault(int(n), []).append(float(np.median(calls)))


def _mix(runner: _Runner, order: np.random.Generator) -> None:
    quick = [n for n in order.permutation(runner.contested).tolist() if runner.first[n] < MIXED_MS]
    kinds = [n for n in quick if n <= SENTENCE], [n for n in quick if n > SENTENCE]
    several = [kind for kind in kinds if len(kind) > 1]
    for kind in several:
        count = int(np.clip(MIXED_CYCLES_MS / max(sum(runner.first[n] for n in kind), 0.01), *MIXED_CYCLES))
        cycles = [[_time(runner.predictor, _sample(n, runner.predictor)) for n in kind] for _ in range(count)]
        # the first one finds another engine's weights in the caches
        for n, ms in zip(kind, np.median(cycles[1:], axis=0), strict=True):
            runner.mixed.setdefault(n, []).append(float(ms))
    if several:
        _rest(runner)


def _mix_singles(runner: _Runner, order: np.random.Generator) -> None:
    """One call of each sentence's length, each after a call of another length: LiteRT's weights of it are in no cache then."""
    lengths = [n for n in order.permutation(runner.contested).tolist() if n <= SENTENCE]
    if len(lengths) < 2:
        return
    runner.predictor.run(_sample(lengths[-1], runner.predictor))
    for n in lengths:
        runner.mixed.setdefault(n, []).append(_after_idle(runner.predictor, _sample(n, runner.predictor)))


def _burst(runner: _Runner, n: int) -> None:
    feed, ms = _sample(n, runner.predictor), max(runner.first[n], 0.01)
    if runner.candidate.threads > 1:
        time.sleep(SETTLE_S)
    for _ in range(int(np.clip(WARM_MS / ms, ms < MIXED_MS, MOST))):
        runner.predictor.run(feed)
    burst = [_time(runner.predictor, feed) for _ in range(int(np.clip(BURST_MS / ms, 1, MOST)))]
    runner.steady.setdefault(n, []).append(float(np.median(burst)))


def _share(runner: _Runner) -> float:
    """The share of a core that one thread gets now."""
    shortest = min(runner.first)
    feed, count = (
        _sample(shortest, runner.predictor),
        int(np.clip(BURST_MS / max(runner.first[shortest], 0.01), 1, MOST)),
    )
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        runner.predictor.run(feed)
    return (time.process_time() - cpu) / max(time.perf_counter() - began, 1e-9)


def _rest(runner: _Runner) -> None:
    """Wait until threads that wait busily are asleep: they would take the next candidate's core."""
    if runner.candidate.spin is Spin.ON:
        time.sleep(REST_S)


def _time(predictor: FilePredictor, feed: Mapping[str, NDArray[np.generic]]) -> float:
    begin = time.perf_counter_ns()
    predictor.run(feed)
    return (time.perf_counter_ns() - begin) / 1e6


def _sample(length: int, predictor: FilePredictor) -> dict[str, NDArray[Any]]:
    ids = (np.arange(length, dtype=np.int64) * 7 % 97)[None, :]  # any small ids: every vocabulary has them
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    return filled(predictor, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})


def main() -> None:
    """The child: a request on stdin, a plan on the last line of stdout."""
    request = Request.model_validate_json(sys.stdin.read())
    print(race(request.candidates, request.max_length, request.rounds, request.cadence).model_dump_json())


if __name__ == "__main__":
    main()
