"""Time model files, engines and thread counts against each other, at each length, on this machine.

`race_apart` starts this module as a separate process, whose `main` calls `race`; this returns a `Plan` with a `Timing`
for each `Candidate`. The process is separate because the files that the race opens and closes would leave the memory of
this process fragmented, and a model that takes a millisecond would be 5 % slower from then on.

The speed of a machine that other programs use too changes by a third from one second to the next. So all candidates
take turns in rounds, which a disturbance affects alike, and are compared within each round. A candidate that is far
slower than the best one at a length is no longer run at that length, so that more time is left for those that are
close. A turn resembles use: some texts of mixed lengths, then, length by length, texts of one length in a row until the
caches are warm. (One text right after one of another engine is no measure: a small model takes twice its usual time
there.)

For the cadence `interactive` a turn consists of one untimed call, which fills the caches, and then calls that follow an
idle time each, of one length and of mixed lengths.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from pocketbert.core.errors import MachineError
from pocketbert.core.host.system import can_start_python
from pocketbert.core.predict.predictor import smallest_fitting_length
from pocketbert.runtime.engines import EngineFile, FilePredictor, add_missing_inputs
from pocketbert.runtime.onnx import OnnxPredictor, Spin

IDLE_MS = 100.0
"""Idle time before each call of the cadence `interactive`."""
LENGTHS = (8, 16, 24, 32, 48, 64, 128, 256, 512)
"""Lengths at which a file that takes any length is timed; between them its time is interpolated."""
_SINGLE_LENGTHS = (8, 16, 32, 64, 128, 512)
"""The lengths for single calls; these are fewer, because each call takes the idle time too."""
_SINGLES = 2
"""Number of timed calls in a turn of the cadence `interactive`."""
_ROUNDS, _LEAST_ROUNDS = 24, 3
_SPIN_ON_PRICE = 1.02
"""Threads that wait busily between runs occupy a core without use, so they are chosen only if faster by this factor."""
_CLOSE = (3.0, 1.6, 1.35, 1.25, 1.2, 1.15, 1.12)
"""A candidate that took more than this multiple of the best time at a length is no longer run there. The first factor
holds before the first round, when a disturbance may have affected the candidate's only inferences, the second one
before the second round, and so on."""
_QUIET = 0.8
"""The machine counts as quiet when one thread had at least this share of a core in three quarters of the rounds."""
_WARM_MS, _BURST_MS, _MOST = 8.0, 16.0, 12
"""A burst: ms of untimed inferences, ms of timed ones, and the largest number of inferences of each kind."""
_FIRST_MS = 40.0
"""The first time at a length is the best of two inferences, or of up to four if they take less than this number of
ms."""
_MIXED_MS = 25.0
"""The time of an inference of at least this number of ms does not depend on what ran before it."""
_MIXED_CYCLES, _MIXED_CYCLES_MS = (2, 5), 100.0
"""A turn of mixed lengths runs each length once to fill the caches, then up to four times, in about this number of ms
in all."""
_SENTENCE = 64
"""Lengths up to this number of tokens (sentences) are mixed with each other, and longer ones with each other. A
document between two sentences would empty the caches, which in use are full when the second sentence comes."""
_THREADS_PAY = 1.3
"""If a file is faster by this factor with more threads at a length, one thread is not tried at longer lengths."""
_REST_S, _SETTLE_S = 0.08, 0.005
"""ONNX Runtime's threads may wait busily for some 50 ms after a run, those of a LiteRT signature for some ms; meanwhile
the next candidate has one core less."""
_TIMEOUT_S = 600.0
"""No race takes nearly so long; a process that does hangs."""
_LEAVE_OUT = "Leave engine='fastest' out, or name a file."


class Cadence(StrEnum):
    """How an app calls the model, which decides what `fastest` measures."""

    BATCH = "batch"
    """One call right after the other: caches are full, the clock is high, threads are awake."""
    INTERACTIVE = "interactive"
    """Single calls, each after an idle time of `IDLE_MS`, as when a user types."""


_BUDGET_S = {Cadence.BATCH: 25.0, Cadence.INTERACTIVE: 60.0}
"""Largest number of seconds for all rounds, so that a slower model has fewer rounds, but at least `_LEAST_ROUNDS`.
Single calls have more seconds, since they vary more and most of the time is idle time. A length at which one candidate
is left is decided and not run again; when all lengths are decided, the race ends."""


@dataclass(frozen=True)
class Candidate:
    """A model file with the thread settings to open it. Candidates are timed against each other.

    Attributes:
        file: The file.
        threads: Number of threads within an operator.
        spin: How threads wait for the next operator; only ONNX Runtime has this setting.
    """

    file: EngineFile
    threads: int
    spin: Spin = Spin.NO

    def open(self) -> FilePredictor:
        """Open the file with its engine."""
        if self.spin is Spin.NO:
            return self.file.open(self.threads)
        return OnnxPredictor(self.file.path, self.threads, spin=self.spin)


class Timing(BaseModel):
    """The measured times of one candidate by length.

    Attributes:
        file: Name of the model file.
        threads: Number of threads within an operator.
        spin: How threads waited for the next operator.
        fixed: Whether the file takes only the lengths in `steady`.
        steady: Wall time of one text in ms after others of the same length, by length in tokens.
        mixed: Wall time of one text in ms after a text of another length, by length in tokens. LiteRT packs the weights
            once for each signature, so that after a change of length the caches contain none of them.
    """

    file: str
    threads: int
    spin: Spin
    fixed: bool
    steady: dict[int, float]
    mixed: dict[int, float]

    def expected_ms(self, length: int, steady: bool = True) -> float:
        """Return the expected time in ms for one text of a length, interpolated; infinite if the file does not take it.

        `steady` chooses the times after texts of the same length.
        """
        ms_by_length = self.steady if steady else self.mixed
        known = sorted(ms_by_length)
        if self.fixed:
            return ms_by_length[smallest_fitting_length(known, length)] if length <= known[-1] else float("inf")
        if length > known[-1]:
            return ms_by_length[known[-1]] * length / known[-1]
        return float(np.interp(length, known, [ms_by_length[n] for n in known]))


class Plan(BaseModel):
    """The result of a race: timings of all candidates on one machine.

    Attributes:
        timings: Timings of each candidate, in the order of the candidates.
        disturbed: Whether the machine was so busy that the timings should not be stored.
    """

    timings: list[Timing]
    disturbed: bool = False

    def costs(self, length: int, steady: bool = True) -> NDArray[np.float64]:
        """Return the cost of one text for each candidate, shape [candidates].

        The cost is the expected time in ms, and more if threads wait busily after a run.

        Args:
            length: Length of the text in tokens.
            steady: Whether the text comes after another of the same length.
        """
        prices = [_SPIN_ON_PRICE if t.spin is Spin.ON else 1 for t in self.timings]
        return np.array([t.expected_ms(length, steady) * p for t, p in zip(self.timings, prices, strict=True)])

    def best(self, lengths: Sequence[int], steady: bool = True) -> int:
        """Return the index of the candidate with the lowest total cost for texts of these lengths.

        Args:
            lengths: Length of each text in tokens.
            steady: Whether each text comes after another of the same length.
        """
        return int(np.sum([self.costs(n, steady) for n in lengths], axis=0).argmin())


class _Request(BaseModel):
    """The arguments of `race`, sent as JSON to the process that runs it."""

    candidates: list[Candidate]
    max_length: int
    rounds: int
    cadence: Cadence = Cadence.BATCH


@dataclass
class _Runner:
    """An opened candidate and the milliseconds measured so far, by length.

    Attributes:
        candidate: The candidate that is timed.
        predictor: The opened file.
        grid: Lengths to time, ascending.
        first: Best ms before the first round.
        steady: ms of each round, after texts of the same length. A candidate that was dropped at a length is not run
            there again, so that value i is that of round i.
        mixed: ms of each round, after texts of other lengths.
        contested: Lengths at which the candidate is still run.
    """

    candidate: Candidate
    predictor: FilePredictor
    grid: list[int]
    first: dict[int, float] = field(default_factory=dict)
    steady: dict[int, list[float]] = field(default_factory=dict)
    mixed: dict[int, list[float]] = field(default_factory=dict)
    contested: list[int] = field(default_factory=list)


def race_apart(candidates: Sequence[Candidate], max_length: int, cadence: Cadence = Cadence.BATCH) -> Plan:
    """Run `race` in a separate process and return the timings.

    If no Python can be started, or it does not return timings, the race runs in this process.

    Raises:
        MachineError: If the process is ended by a signal, as in a crash, or takes too long.
    """
    request = _Request(candidates=list(candidates), max_length=max_length, rounds=_ROUNDS, cadence=cadence)
    if not can_start_python():
        return race(candidates, max_length, _ROUNDS, cadence)
    # -P: a folder named like one of our imports in the user's working directory must not be picked up
    command = [sys.executable, "-P", "-m", __name__]
    try:
        process = subprocess.run(
            command,
            input=request.model_dump_json(),
            capture_output=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError:
        return race(candidates, max_length, _ROUNDS, cadence)
    except subprocess.TimeoutExpired as error:
        reason = f"timing the files took more than {_TIMEOUT_S:.0f} s."
        raise MachineError(f"engine 'fastest': {reason} {_LEAVE_OUT}") from error
    if process.returncode < 0:
        reason = f"the process that timed the files ended by signal {-process.returncode}."
        raise MachineError(f"engine 'fastest': {reason} {_LEAVE_OUT}")
    try:
        return Plan.model_validate_json((process.stdout.splitlines() or [""])[-1])
    except ValidationError:  # an embedding program that is no Python, or another set of packages
        return race(candidates, max_length, _ROUNDS, cadence)


def race(
    candidates: Sequence[Candidate], max_length: int, rounds: int = _ROUNDS, cadence: Cadence = Cadence.BATCH
) -> Plan:
    """Time candidates at all lengths in rounds, until each length is decided or the time is over.

    Args:
        candidates: The candidates (file, engine, threads); each is opened here.
        max_length: Longest input in tokens.
        rounds: Largest number of rounds.
        cadence: How the model will be called.

    Returns:
        Wall times of one text, by candidate and length.
    """
    single = cadence is Cadence.INTERACTIVE
    runners = []
    for candidate in candidates:
        predictor = candidate.open()
        lengths = _lengths_to_time(predictor, max_length, _SINGLE_LENGTHS if single else LENGTHS)
        runners.append(_Runner(candidate, predictor, lengths))
    for runner in sorted(runners, key=lambda r: -r.candidate.threads):
        _time_first_runs(runner, runners, single)
        _rest(runner)
    one_thread = next((r for r in runners if r.candidate.threads == 1), None)
    order, shares, started = np.random.default_rng(0), list[float](), time.perf_counter()
    for rounds_done in range(rounds):
        _drop_slow_candidates(runners, max_length, _CLOSE[min(rounds_done, len(_CLOSE) - 1)])
        if one_thread is not None:
            shares.append(_measure_core_share(one_thread))
        # lengths at which more than one candidate is left
        undecided = {n for n, count in Counter(n for r in runners for n in r.contested).items() if count > 1}
        spent = time.perf_counter() - started
        if not undecided or (rounds_done >= _LEAST_ROUNDS and spent * (1 + 1 / rounds_done) > _BUDGET_S[cadence]):
            break
        if single:
            _time_single_calls(runners, undecided, order)
        else:
            _time_bursts(runners, undecided, order)
    disturbed = bool(shares) and float(np.quantile(shares, 0.25)) < _QUIET
    return Plan(timings=_estimated_timings(runners), disturbed=disturbed)


def _lengths_to_time(predictor: FilePredictor, max_length: int, grid: Sequence[int]) -> list[int]:
    """Return the lengths at which to time a file, up to `max_length`: those that it lists, or the grid's if it takes any length."""
    listed = [
        n for n in predictor.lengths if n <= max_length or n == smallest_fitting_length(predictor.lengths, max_length)
    ]
    return listed or sorted({min(n, max_length) for n in grid})


def _time_first_runs(runner: _Runner, runners: Sequence[_Runner], single: bool) -> None:
    """Run a candidate at each length to warm it up, then time it there for the first time.

    With `single`, each timed call follows an idle time. If the same file was timed with more threads already, this
    stops at the length from which these are much faster.
    """
    more_threads = next(
        (
            r
            for r in runners
            if r.first and r.candidate.file == runner.candidate.file and r.candidate.threads > runner.candidate.threads
        ),
        None,
    )
    predictor = runner.predictor
    for n in runner.grid:
        feed = _sample(n, predictor)
        _time(predictor, feed)
        if single:
            best = min(_time_after_idle(predictor, feed) for _ in range(_SINGLES))
        else:
            ms = _time(predictor, feed)
            repeats = int(np.clip(_FIRST_MS / max(ms, 0.01), 1, 3))
            best = min(ms, *(_time(predictor, feed) for _ in range(repeats)))
        runner.first[n] = best
        runner.contested.append(n)
        if more_threads is not None and more_threads.first.get(n, np.inf) * _THREADS_PAY < best:
            break  # one thread falls back further the longer the text


def _drop_slow_candidates(runners: Sequence[_Runner], max_length: int, within: float) -> None:
    """Drop each candidate at the lengths where it takes more than `within` times as long as the fastest one.

    A candidate is kept if its estimate from all rounds or its best single time is within that factor, for texts of the
    same or of mixed lengths.
    """
    at_their_best = []
    for runner in runners:
        steady = {n: min([ms, *runner.steady.get(n, [])]) for n, ms in runner.first.items()}
        mixed = {n: min(runner.mixed.get(n) or [ms]) for n, ms in steady.items()}
        at_their_best.append(_timing(runner, steady, mixed))
    estimates = [_estimated_timings(runners), at_their_best]

    def is_close(number: int, n: int) -> bool:
        """Return whether a candidate's estimate at a length is within the factor of the best estimate."""
        length = min(n, max_length)
        return any(
            timings[number].expected_ms(length, steady) <= within * min(t.expected_ms(length, steady) for t in timings)
            for timings in estimates
            for steady in (True, False)
        )

    for number, runner in enumerate(runners):
        runner.contested = [n for n in runner.contested if is_close(number, n)]


def _time_bursts(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Time one round of the cadence `batch`: each candidate at mixed lengths, then all candidates, length by length.

    `undecided` are the lengths at which several candidates are left. Candidates whose threads wait busily after a run
    come last, each at all its lengths, with one rest after each candidate.
    """
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _time_mixed_bursts(running[i], order)
    others = [r for r in running if r.candidate.spin is not Spin.ON]
    for n in order.permutation(sorted(undecided.intersection(n for r in others for n in r.contested))):
        competing = [r for r in others if n in r.contested]
        for i in order.permutation(len(competing)):
            _time_burst(competing[i], int(n))
    for runner in (r for r in running if r.candidate.spin is Spin.ON):
        for n in order.permutation(sorted(undecided.intersection(runner.contested))):
            _time_burst(runner, int(n))
        _rest(runner)


def _time_mixed_bursts(runner: _Runner, order: np.random.Generator) -> None:
    """Time texts of alternating lengths with one candidate, and append each length's median time to its timings.

    Lengths at which it takes `_MIXED_MS` or more are left out, and so is a length without another one to alternate with.
    """
    quick = [n for n in order.permutation(runner.contested).tolist() if runner.first[n] < _MIXED_MS]
    groups = [n for n in quick if n <= _SENTENCE], [n for n in quick if n > _SENTENCE]
    several = [lengths for lengths in groups if len(lengths) > 1]
    for lengths in several:
        count = int(np.clip(_MIXED_CYCLES_MS / max(sum(runner.first[n] for n in lengths), 0.01), *_MIXED_CYCLES))
        cycles = [[_time(runner.predictor, _sample(n, runner.predictor)) for n in lengths] for _ in range(count)]
        # the first one finds another engine's weights in the caches
        for n, ms in zip(lengths, np.median(cycles[1:], axis=0), strict=True):
            runner.mixed.setdefault(n, []).append(float(ms))
    if several:
        _rest(runner)


def _time_burst(runner: _Runner, n: int) -> None:
    """Run texts of length `n` until the caches are warm, then time more of them and append the median to the timings."""
    feed, ms = _sample(n, runner.predictor), max(runner.first[n], 0.01)
    if runner.candidate.threads > 1:
        time.sleep(_SETTLE_S)
    for _ in range(int(np.clip(_WARM_MS / ms, ms < _MIXED_MS, _MOST))):  # slow ones need no warming
        runner.predictor.run(feed)
    burst = [_time(runner.predictor, feed) for _ in range(int(np.clip(_BURST_MS / ms, 1, _MOST)))]
    runner.steady.setdefault(n, []).append(float(np.median(burst)))


def _time_single_calls(runners: Sequence[_Runner], undecided: set[int], order: np.random.Generator) -> None:
    """Time one round of the cadence `interactive`: calls after an idle time, at mixed lengths, then at each length."""
    running = [r for r in runners if undecided.intersection(r.contested)]
    for i in order.permutation(len(running)):
        _time_mixed_singles(running[i], order)
    for n in order.permutation(sorted(undecided)):
        competing = [r for r in runners if n in r.contested]
        for i in order.permutation(len(competing)):
            predictor = competing[i].predictor
            feed = _sample(int(n), predictor)
            predictor.run(feed)  # the caches hold the weights of the engine before
            calls = [_time_after_idle(predictor, feed) for _ in range(_SINGLES)]
            competing[i].steady.setdefault(int(n), []).append(float(np.median(calls)))


def _time_mixed_singles(runner: _Runner, order: np.random.Generator) -> None:
    """Time one call per length, each after an idle time and a call of another length.

    Only lengths of sentences are timed. `order` is the random generator that gives their order.
    """
    lengths = [n for n in order.permutation(runner.contested).tolist() if n <= _SENTENCE]
    if len(lengths) < 2:
        return
    runner.predictor.run(_sample(lengths[-1], runner.predictor))
    for n in lengths:
        runner.mixed.setdefault(n, []).append(_time_after_idle(runner.predictor, _sample(n, runner.predictor)))


def _estimated_timings(runners: Sequence[_Runner]) -> list[Timing]:
    """Estimate the times of all candidates from the rounds so far, or from the first runs before there are rounds."""
    steady: list[dict[int, float]] = [{} for _ in runners]
    mixed: list[dict[int, float]] = [{} for _ in runners]
    for n in sorted({n for r in runners for n in r.first}):
        timed = [i for i, r in enumerate(runners) if n in r.first]
        first = [runners[i].first[n] for i in timed]
        steady_ms = _estimate_times([runners[i].steady.get(n, []) for i in timed], first)
        mixed_ms = _estimate_times([runners[i].mixed.get(n, []) for i in timed], steady_ms)
        for i, after_same, after_other in zip(timed, steady_ms, mixed_ms, strict=True):
            steady[i][n], mixed[i][n] = after_same, after_other
    return [_timing(r, s, m) for r, s, m in zip(runners, steady, mixed, strict=True)]


def _estimate_times(rounds: Sequence[Sequence[float]], otherwise: Sequence[float]) -> list[float]:
    """Estimate each candidate's time at one length, from rounds in which the candidates took turns.

    Args:
        rounds: Times in ms of each round, by candidate; candidates that were dropped have fewer rounds.
        otherwise: Times in ms of candidates without rounds.

    Returns:
        ms by candidate. The leader is the best of the candidates with the most rounds. Its time is its lower quartile,
        since disturbances only make times longer. The time of another candidate is the leader's time multiplied by the
        median of their ratios in the rounds that both have; with fewer than three such rounds, by the ratio of their
        best times, `otherwise` included.
    """
    most = max(map(len, rounds))
    if most == 0:
        return list(otherwise)
    first = min((i for i, r in enumerate(rounds) if len(r) == most), key=lambda i: float(np.median(rounds[i])))
    leader, low = rounds[first], float(np.quantile(rounds[first], 0.25))

    def ratio_to_leader(number: int) -> float:
        ms, shared = rounds[number], leader[: len(rounds[number])]
        if len(ms) < _LEAST_ROUNDS:  # a leader that was interrupted in the only round would make all others look fast
            return min(*ms, otherwise[number]) / min(*shared, otherwise[first])
        return float(np.median(np.asarray(ms) / np.asarray(shared)))

    return [
        low * ratio_to_leader(i) if ms else other for i, (ms, other) in enumerate(zip(rounds, otherwise, strict=True))
    ]


def _timing(runner: _Runner, steady: dict[int, float], mixed: dict[int, float]) -> Timing:
    """Build the `Timing` of a candidate from its milliseconds by length."""
    candidate, fixed = runner.candidate, bool(runner.predictor.lengths)
    name, threads, spin = candidate.file.path.name, candidate.threads, candidate.spin
    return Timing(file=name, threads=threads, spin=spin, fixed=fixed, steady=steady, mixed=mixed)


def _measure_core_share(runner: _Runner) -> float:
    """Return the share of a core that one thread gets now: CPU time divided by wall time of a few short texts."""
    shortest = min(runner.first)
    feed = _sample(shortest, runner.predictor)
    count = int(np.clip(_BURST_MS / max(runner.first[shortest], 0.01), 1, _MOST))
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        runner.predictor.run(feed)
    return (time.process_time() - cpu) / max(time.perf_counter() - began, 1e-9)


def _rest(runner: _Runner) -> None:
    """Sleep until the busily waiting threads of a candidate are asleep and leave the cores to the next candidate."""
    if runner.candidate.spin is Spin.ON:
        time.sleep(_REST_S)


def _time(predictor: FilePredictor, feed: Mapping[str, NDArray[np.generic]]) -> float:
    begin = time.perf_counter_ns()
    predictor.run(feed)
    return (time.perf_counter_ns() - begin) / 1e6


def _time_after_idle(predictor: FilePredictor, feed: Mapping[str, NDArray[np.generic]]) -> float:
    time.sleep(IDLE_MS / 1000)
    return _time(predictor, feed)


def _sample(length: int, predictor: FilePredictor) -> dict[str, NDArray[Any]]:
    """Make one input row of `length` tokens with every input that the file takes."""
    ids = (np.arange(length, dtype=np.int64) * 7 % 97)[None, :]  # any small ids: every vocabulary has them
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    return add_missing_inputs(predictor, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})


def main() -> None:
    """Read the arguments of a race from stdin, run it, and print the timings as JSON on the last line of stdout."""
    request = _Request.model_validate_json(sys.stdin.read())
    print(race(request.candidates, request.max_length, request.rounds, request.cadence).model_dump_json())


if __name__ == "__main__":
    main()
