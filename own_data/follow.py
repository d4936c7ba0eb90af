"""A GP that learns from a stream row by row, certified at every row by beyond/stream.py."""
import copy
import math
import zlib
from dataclasses import dataclass
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np

from beyond.certificates import certificate, delta_each
from beyond.stream import (Certificates, Settings, begin, certificates, forecast, ordinary,
                           step)
from own_data.models import (Model, bound_text, categories, confidence_percent, eps_text,
                             indicators, kernel_named, kernel_names, levels_of, many, option,
                             paragraphs)
from own_data.tables import likely_codes

FORECASTS = dict(mean="GP", ridge="ridge regression", last="last value", average="mean so far")
MARKS = [digit * 10**power for power in range(1, 12) for digit in (1, 2, 5)]     # of the table
CERTIFIED = (*Certificates._fields, "ridge", "last", "average", "interval")    # they share delta
MISSED = 0.05                  # of the rows, by the intervals; Gibbs & Candes 2021, whose rate is
RATE = 0.005
SCORES = 100                   # rows whose errors set the width
DRAWN = 300                    # rows of the picture


@dataclass(eq=False)
class StreamGP(Model):
    """A GP that learns from a stream row by row, certified at every row even if rows are dependent.

    Attributes, beside those of Model:

        learner_     a Learner of beyond/stream.py, None until the warm-up is complete
        seen_        number of rows so far
        forecasts_   forecasts that the last call of partial_fit evaluated; see there
        width_       half the width of an interval, in standard deviations
    """
    eps: float = option(None, "tolerance in the target's unit; default: the root mean square "
                              "of the warm-up rows' changes")
    delta: float = option(0.05, "probability that a certificate ever fails (0.05)", most=1)
    inducing: int = option(50, "inducing inputs at most (50)")
    kernel: str = option("SE", "fixed before the stream (SE)", choices=kernel_names)
    memory: float = option(1.0, "share of what is known that is kept from batch to batch: below 1 "
                                "where the target drifts", most=1)
    first: int = option(10, "warm-up rows: they set scale and start, and are not evaluated",
                        least=2)
    batch: int = option(1, "rows that are learnt from at once")
    categories: str = categories()

    def fit(self, X, y):
        """Learns from rows X (n, d), y (n,) in their order, forgetting all earlier ones.

        Returns this model.
        """
        return self.begin(X, y).partial_fit(X, y)

    def partial_fit(self, X, y):
        """Learns from more rows X (n, d), y (n,) in their order; returns this model.

        forecasts_ lists (row, mean, sd, lower, upper, y, loss, bound) for each row that this call
        evaluated:

            row             its number, from 1
            mean .. upper   the forecast of y before the row was learnt, as from `limits`
            loss            share of the rows in its batch that `mean` missed by more than eps
            bound           upper bound, after this batch, on the probability that `mean` misses,
                            averaged over all rows evaluated so far
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
        """Forgets all rows; returns this model.

        X (n, d), y (n,) are not learnt: they only give the number and names of their columns.
        """
        asked, *_ = self.remember(X, y)
        self.asked_ = vars(asked)
        self.rows_ = self.digest_ = 0
        self.learner_, self.waiting_, self.history_ = None, [], []
        self.squares_, self.losses_, self.targets_ = np.zeros(4), np.zeros(4), np.zeros(3)
        self.origin_, self.products_ = np.zeros(()), np.zeros(())
        self.alpha_, self.drawn_ = MISSED, np.zeros((0, 8))
        normal = NormalDist().inv_cdf
        self.scores_ = np.array([normal(0.5 + (i + 0.5) / SCORES / 2) for i in range(SCORES)])
        return self

    def take(self, row):
        """Takes a row (d+1,), target last; learns once the warm-up or a batch is complete.

        A row with NaN is counted as dropped, and not learnt.
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
            X = rows[:, 1:-1]
            if not self.learner_:
                self.levels_ = levels_of(X, self.category_columns())
            self.learn(rows[:, 0], indicators(X, self.levels_), rows[:, -1])

    @property
    def seen_(self):
        """The number of rows so far, incomplete ones included."""
        return self.rows_ + self.dropped_

    def learn(self, numbers, X, y):
        """Evaluates the forecasts of a batch, then learns it. The warm-up is only learnt.

            numbers (n,)       the batch's row numbers in the stream, from 1
            X (n, d), y (n,)   its rows, with categories as indicators
        """
        old = self.learner_
        if old is None:
            self.learner_ = first_learner(X, y, self.names_[-1], **self.asked_)
        else:
            limits = mean, sd, lower, upper = self.interval(X)
            _, average, last = self.targets_
            told = np.broadcast_arrays(mean, self.ridge(X), last, average)
            self.learner_ = step(old, X, y)
            errors = np.abs(told - y)
            outside = (y < lower) | (y > upper)
            missed = ~(errors[1:] <= old.eps_y * (1 - 1e-12))     # NaN misses, too
            self.squares_ = self.squares_ + np.sum(errors**2, 1)
            self.losses_ = self.losses_ + np.sum([*missed, outside], 1)
            self.alpha_ += RATE * float(np.sum(MISSED - outside))
            self.scores_ = np.append(self.scores_, errors[0] / sd)[-SCORES:]
            self.note(numbers, [*limits, y], old.ledger)
        self.count(np.column_stack([X, y]))

    def note(self, numbers, columns, before):
        """Records a batch's forecasts and bound in forecasts_ and, for the picture, in drawn_.

        When the number of evaluated rows reaches 10, 20, 50, 100 .. (MARKS), history_ gets this
        number, the GP's RMSE and the bound, for the table of `text`.

            numbers   (n,): numbers of the batch's rows in the stream, from 1
            columns   a list of five arrays (n,): mean, sd, lower, upper of the forecasts, and the
                      targets y
            before    the Ledger before the batch was learnt. The batch's loss is the present sum
                      of losses minus the sum there
        """
        ledger = self.learner_.ledger
        bound = certificates(self.learner_).mean.bound
        if ledger.rows >= MARKS[len(self.history_)]:
            self.history_.append([int(ledger.rows), self.rmse()["mean"], bound])
        loss = (ledger.mean - before.mean) / len(numbers)
        self.forecasts_ += [(int(number), *row, loss, bound) for number, row
                            in zip(numbers, np.transpose(columns).tolist())]
        self.drawn_ = np.vstack([self.drawn_, self.forecasts_])[-DRAWN:]

    def count(self, rows):
        """Adds rows (n, d+1), target last, to the sums behind ridge regression and naive forecasts.

        products_ is the sum of V^T V over the batches, where V (n, d+2) is a column of ones and the
        rows minus origin_. origin_ is the mean row of the warm-up. Before a batch is added, the sum
        is multiplied by `memory`. targets_ holds the number, the mean and the last value of all
        targets.
        """
        n, average, _ = self.targets_
        if not n:
            self.origin_ = np.mean(rows, 0)
        n += len(rows)
        average += np.sum(rows[:, -1] - average) / n
        self.targets_ = np.array([n, average, rows[-1, -1]])
        V = np.insert(rows - self.origin_, 0, 1.0, axis=1)
        self.products_ = self.asked_["memory"] * self.products_ + V.T @ V

    def ridge(self, X):
        """Returns the forecast (n,) at X (n, d) of ridge regression on all rows so far.

        It penalises the squared slopes of the scaled inputs, with weight 1, but not the constant.
        If `memory` is below 1, older batches weigh less.
        """
        unit = np.append(1.0, self.learner_.input_scale[1])
        products = self.products_[:-1] / unit[:, None]
        penalised = products[:, :-1] / unit + np.diag(np.arange(len(unit)) > 0)
        constant, *slopes = np.linalg.solve(penalised, products[:, -1]) / unit
        return self.origin_[-1] + constant + (X - self.origin_[:-1]) @ slopes

    def rmse(self):
        """Returns a dict: forecast, a key of FORECASTS -> its root mean squared error so far."""
        return dict(zip(FORECASTS, np.sqrt(self.squares_ / self.learner_.ledger.rows).tolist()))

    @property
    def width_(self):
        """Half the width of an interval, in standard deviations.

        It is the 1 - alpha quantile of the last SCORES errors |y - mean|/sd. At first alpha is
        MISSED, the share of y that should be outside. After each batch it changes for every row of
        the batch:

            alpha += RATE (MISSED - 1[y outside])

        1[y outside] is 1 if y was outside its interval, otherwise 0. At alpha <= 0 the interval is
        the whole line, at alpha >= 1 it is empty. Theorem (Gibbs & Candes 2021): after n rows, the
        share of them with y outside differs from MISSED by at most (1 + RATE batch)/(RATE n),
        whatever the rows.
        """
        k = math.ceil((1 - self.alpha_) * (SCORES + 1))
        return [-math.inf, *sorted(self.scores_), math.inf][min(max(k, 0), SCORES + 1)]

    def limits(self, X):
        """Returns mean, sd, lower, upper, (n,) each, of y at X (n, d), noise included.

        lower and upper are the ends of the 95 % interval of y.
        """
        X = self.inputs(X)
        if self.learner_ is None:
            raise ValueError(f"{many(self.seen_)}, where {self.asked_['first']} set the scale: no "
                             "forecast yet")
        return self.interval(indicators(X, self.levels_))

    def interval(self, X):
        """Returns what `limits` does; but in X (n, d), indicators stand in place of categories."""
        mean, _, var = forecast(self.learner_, X)
        sd = np.sqrt(var)
        return mean, sd, mean - self.width_ * sd, mean + self.width_ * sd

    @property
    def facts_(self):
        """Parameters, errors and certificates, a dict for JSON.

        ValueError if no row was evaluated.
        """
        if not self.evaluated():
            raise ValueError(f"{many(self.seen_)}, {self.dropped_} incomplete: the first "
                             f"{self.asked_['first']} set the scale, none is left to evaluate")
        n, settings = int(self.learner_.ledger.rows), self.learner_.settings
        found = certificates(self.learner_)._asdict()
        share = delta_each(self.asked_["delta"], CERTIFIED)
        for name, loss in zip(CERTIFIED[-4:], self.losses_):
            found[name] = certificate(loss, 0.0, n, settings.lams, share)
        return self.asked_ | dict(
            eps=settings.eps, given=self.asked_["eps"] is not None, rows=n, seen=self.seen_,
            rmse=self.rmse(), certificates={name: one._asdict() for name, one in found.items()})

    def text(self):
        """Returns the certificates as text: the answer, a table, the conditions."""
        facts = SimpleNamespace(**self.facts_)
        found = facts.certificates
        mean, interval = found["mean"], found["interval"]
        eps = eps_text(facts.eps, facts.given)
        answer = (f"The GP's forecast missed {self.names_[-1]} by more than {eps} in "
                  f"{100 * mean['loss']:.0f} % of {many(facts.rows)}; with "
                  f"{confidence_percent(facts.delta)} % confidence its risk was at most "
                  f"{bound_text(mean['bound'])}. Its 95 % intervals held "
                  f"{100 * (1 - interval['loss']):.1f} %.")
        naive = min([*FORECASTS][1:], key=lambda one: found[one]["bound"])
        if found[naive]["bound"] <= min(mean["bound"], 0.9999):
            answer += f" The {FORECASTS[naive]} is no worse: prefer it."
        lines = [(title, facts.rmse[one], found[one]["bound"]) for one, title in FORECASTS.items()]
        lines += [(f"GP, row {n}", *line) for n, *line in self.history_]
        return paragraphs(
            " ".join([answer, *likely_codes(self.names_[-1:], self.drawn_[:, 5:6])]),
            [f"{'forecast':<20}{'RMSE':>10}{'bound':>10}",
             *(f"{title:<20}{rmse:10.4g}{bound_text(bound):>10}" for title, rmse, bound in lines)],
            ["The bounds hold together and at every row: on the probability of a miss given the "
             "rows before, averaged over the rows, in any order and dependence.",
             f"The first {many(facts.first)} set the scale" + " and the tolerance"
             * (not facts.given) + ", and do not count.",
             f"{many(self.dropped_, 'incomplete row')} left out." * (self.dropped_ > 0)])

    def evaluated(self):
        """Whether a row has been evaluated."""
        return bool(getattr(self, "learner_", None) and self.learner_.ledger.rows)

    def usable(self):
        """Raises an exception unless this loaded model can go on learning.

        This is tried on a copy, which learns rows, predicts and makes its text.
        """
        StreamGP(**self.asked_).checked()
        "".join(getattr(self, "columns_", []))
        d = self.n_features_in_
        np.isfinite(np.reshape(self.waiting_, (-1, d + 2)))        # TypeError unless numbers
        trial = copy.deepcopy(self)
        trial.take(np.full(d + 1, np.nan))
        ten = np.arange(10.0)
        if trial.learner_ is None:
            trial.learn(ten, np.outer(ten, np.ones(d)), ten)
        *inputs, _ = trial.learner_.recent[-1]
        trial.learn(ten, np.tile(inputs, (10, 1)), ten)            # adds to history_
        super(StreamGP, trial).usable()

    def draw(self, ax):
        """Draws targets, forecasts and intervals of the last DRAWN rows; ax: matplotlib axes."""
        row, mean, _, lower, upper, y, *_ = np.transpose(self.drawn_)
        ax.plot(row, y, ".", label="data")
        ax.plot(row, mean, label="forecast")
        ax.fill_between(row, lower, upper, where=np.isfinite(upper), alpha=0.2, label="95 %")
        ax.set_xlabel("row")
        ax.set_ylabel(self.names_[-1], parse_math=False)
        ax.legend()


def first_learner(X, y, name, eps, delta, inducing, kernel, memory, **_):
    """Returns the Learner that has learnt the warm-up rows X (n, d), y (n,).

        name           of the target, for error messages
        eps .. memory  parameters of a StreamGP, checked

    An eps of None is replaced by the root mean square of the changes of y from row to row, outliers
    left out. ValueError if this is 0.
    """
    changes = np.abs(np.diff(y))
    eps = eps or math.sqrt(np.mean(changes[ordinary(changes)] ** 2))
    if not eps:
        raise ValueError(f"the target, {name}, does not vary in the first {many(len(y))}, which "
                         "set eps: --target chooses another, --eps or --first helps")
    settings = Settings(eps=eps, unit="y", M=inducing, forgetting=memory, discard="auto",
                        delta=len(Certificates._fields) * delta_each(delta, CERTIFIED))
    kernel = kernel_named(kernel)
    ln_theta = kernel.start(X.shape[1], True)      # l^2 = d: from 1 wide tables stick
    return begin(X, y, settings, ln_theta, kernel=kernel)
