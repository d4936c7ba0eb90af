"""A GP that learns from a stream row by row, with certificates at every row; beyond/stream.py."""
import math
import zlib
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from beyond.kernels import kernel_row
from beyond.stream import Settings, begin, certificates, forecast, step
from own_data.models import (KERNELS, Model, bound_text, confidence_percent, exact, interval, many, option,
                             paragraphs, rounded_up)

TITLES = dict(draw="sampled", mean="mean", interval="interval", training="training",
              last="persistence", average="average")
MARKS = [digit * 10**power for power in range(1, 12) for digit in (1, 2, 5)]


@dataclass(eq=False)
class StreamGP(Model):
    """A GP of rows as they come, whatever their dependence: a certificate at every row.

    Attributes: those of Model; learner_, a Learner; seen_; forecasts_, see partial_fit.
    """
    eps: float = option(None, "tolerance in the target's unit; default: 0.6 deviations of the "
                              "warm-up rows")
    delta: float = option(0.05, "probability that a certificate ever fails (0.05)", most=1)
    inducing: int = option(50, "inducing inputs at most (50)")
    kernel: str = option("SE", "fixed before the stream (SE)", choices=list(KERNELS))
    memory: float = option(1.0, "share of what is known that is kept from batch to batch: below 1 "
                                "where the target drifts", most=1)
    first: int = option(10, "warm-up rows: they set scale and start, and are not evaluated",
                        least=2)
    batch: int = option(1, "rows that are learnt from at once")

    def fit(self, X, y):
        """Learns from rows X (n, d), y (n,) in their order, from the beginning."""
        return self.begin(X, y).partial_fit(X, y)

    def partial_fit(self, X, y):
        """Learns from more rows X (n, d), y (n,) in their order.

        forecasts_: (row, mean, sd, lower, upper, y, loss, bound) of those evaluated, each forecast
        before its row came.
        """
        if not hasattr(self, "asked_"):
            self.begin(X, y)
        X, y = self.table(X, y)
        told = []
        for row in np.column_stack([X, y]):
            self.take(row)
            told += self.forecasts_
        self.forecasts_ = told
        return self

    def begin(self, X, y):
        """This model before the first row, of the columns of X (n, d), y (n,)."""
        self.asked_ = self.checked()
        self.remember(X, y)
        self.rows_ = self.digest_ = 0
        self.learner_, self.waiting_, self.history_ = None, [], []
        return self

    def take(self, row):
        """Counts a row (d+1,), the target last; learns from it, and those before it that waited.

        An incomplete one is left out.
        """
        self.forecasts_ = []
        self.digest_ = zlib.crc32(row.tobytes(), self.digest_)
        if np.isnan(row).any():
            self.dropped_ += 1
            return
        self.rows_ += 1
        self.waiting_.append([self.seen_, *row.tolist()])
        if len(self.waiting_) == self.asked_["batch" if self.learner_ else "first"]:
            rows, self.waiting_ = np.array(self.waiting_), []
            self.learn(rows)

    @property
    def seen_(self):
        """How many rows have come."""
        return self.rows_ + self.dropped_

    def learn(self, rows):
        """Learns from rows (n, d+2) at once, whose number is first, their target last."""
        X, y = rows[:, 1:-1], rows[:, -1]
        if self.learner_ is None:
            self.learner_ = first_learner(X, y, **self.asked_)
            return
        mean, _, var = forecast(self.learner_, X)
        before = self.learner_.ledger.before
        self.learner_ = step(self.learner_, X, y)
        ledger = self.learner_.ledger
        loss = (ledger.before - before) / len(y)
        six = certificates(self.learner_)
        if not self.history_ or ledger.rows > 1.02 * self.history_[-1][0]:
            rmse = math.sqrt(ledger.squares / ledger.rows)
            bounds = [one.bound for one in six]
            self.history_.append([int(ledger.rows), rmse, *bounds])
        for number, *values in zip(rows[:, 0], *interval(mean, var), y):
            self.forecasts_.append((int(number), *map(float, values), loss, six.draw.bound))

    def limits(self, X):
        """mean, sd (n,) of y at X (n, d), noise included, and an interval that is to hold 95 %."""
        X = self.inputs(X)
        if self.learner_ is None:
            raise ValueError(f"{many(self.seen_)}, where {self.asked_['first']} set the scale: no "
                             "forecast yet")
        mean, _, var = forecast(self.learner_, X)
        return interval(mean, var)

    @property
    def facts_(self):
        """Numbers and certificates so far, as a dict for JSON."""
        if not self.evaluated():
            raise ValueError(f"{many(self.seen_)}, {self.dropped_} incomplete: the first "
                             f"{self.asked_['first']} set the scale, none is left to evaluate")
        ledger = self.learner_.ledger
        six = certificates(self.learner_)._asdict()
        eps = self.asked_["eps"] or self.learner_.settings.eps * self.learner_.units.high
        return self.asked_ | dict(
            eps=eps, given=self.asked_["eps"] is not None, rows=int(ledger.rows), seen=self.seen_,
            rmse=math.sqrt(ledger.squares / ledger.rows),
            certificates={name: one._asdict() for name, one in six.items()})

    def text(self):
        """The certificates: the answer, a table, the conditions."""
        facts = SimpleNamespace(**self.facts_)
        return stream_text(self.names_[-1], self.dropped_, facts, self.history_)

    def evaluated(self):
        """Whether a row has been evaluated."""
        return bool(getattr(self, "learner_", None) and self.learner_.ledger.rows)

    def usable(self):
        """Raises unless the state can be gone on with."""
        self.checked()
        np.array(self.waiting_, float)
        if self.evaluated():
            super().usable()

    def draw(self, ax):
        """Bounds over the evaluated rows."""
        rows, _, draw, mean, _, _, last, _ = np.transpose(self.history_)
        ax.semilogx(rows, np.transpose([draw, mean, last]), label=["sampled", "mean",
                                                                   "persistence"])
        ax.set(xlabel="evaluated rows", ylabel="bound on the risk so far", ylim=(0, 1))
        ax.legend()


def first_learner(X, y, eps, delta, inducing, kernel, memory, **_):
    """The Learner after the warm-up rows X (n, d), y (n,)."""
    goal = dict(eps=0.6, unit="first") if eps is None else dict(eps=eps, unit="y")
    settings = Settings(delta=delta, M=inducing, forgetting=memory, discard="auto", **goal)
    kernel = KERNELS[kernel]
    ln_theta = kernel_row(kernel).start(X.shape[1], True)      # l^2 = d: from 1 wide tables stick
    return begin(X, y, settings, ln_theta, kernel=kernel)


def running_lines(history):
    """RMSE and bounds after 10, 20, 50, ... evaluated rows, as lines."""
    titles = list(TITLES.values())
    yield f"{'rows':>8}{'RMSE':>12}" + "".join(f"{title:>12}" for title in titles)
    for mark in MARKS:
        there = [row for row in history if row[0] >= mark]
        if there:
            rows, rmse, *bounds = there[0]
            cells = "".join(f"{bound_text(bound):>12}" for bound in bounds)
            yield f"{rows:8}{rmse:12.4g}{cells}"


def stream_text(name, dropped, facts, history):
    """The facts_ of a StreamGP in words; name: of the target, dropped: incomplete rows."""
    six = facts.certificates
    rows = many(facts.rows, "evaluated row")
    sure = f"{confidence_percent(facts.delta)} % confidence"
    eps = exact(facts.eps) if facts.given else rounded_up(facts.eps)
    said = {one: bound_text(six[one]["bound"]) for one in six}
    answer = (f"The GP's mean missed {name} by more than {eps} in {100 * six['mean']['loss']:.0f} "
              f"% of {rows}. With {sure} its risk was at most {said['mean']} (persistence forecast:"
              f" at most {said['last']}).")
    naive = min(("last", "average"), key=lambda one: six[one]["bound"])
    if six[naive]["bound"] <= min(six["mean"]["bound"], 0.9999):
        answer += f" The {TITLES[naive]} of the values so far is no worse: prefer it."
    losses = "".join(f"{one['loss']:12.4f}" for one in six.values())
    bounds = "".join(f"{bound:>12}" for bound in said.values())
    table = [*running_lines(history), "", f"{'loss':>20}{losses}", f"{'bound':>20}{bounds}"]
    return paragraphs(answer, table, [
        f"The bounds hold at every row at once, with {sure} for all six together.",
        f"Risk is the expected loss of a row, given the rows before it, averaged over the {rows}, "
        "whose order and dependence may be any.",
        f"Warm-up: the first {many(facts.first)}. They set the scale, and are not evaluated.",
        "sampled: a function sampled from the GP before its row came; mean: that GP's mean; "
        "interval: whether y lies outside its 95 % interval; training: the GP after its row was "
        "learnt; persistence: the last value; average: the mean of all values so far.",
        f"It is about complete rows: {many(dropped, 'incomplete row')} left out." * (dropped > 0)])
