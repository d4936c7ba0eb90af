"""What programs say: an example each, its numbers those of --json, never rounded too good."""
import importlib.util
import json
import pathlib
import re
from decimal import Decimal

import numpy as np
from numpy.random import default_rng
import pytest

from own_data import command_line, models
from tests.oracles import each
from tests.test_own_data import ROOT, lines, run          # noqa: F401 (a fixture)

NUMBER = r"\*|<?-?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b"
EXAMPLES = """
$ certify --evals 4
a demo: {rows} rows; inputs x; target y

With 99 % confidence the predicted y misses by more than <{eps} (<{deviations} standard deviations
of {scale_rows} rows) with probability at most <{mean_bound}.

         eps     bound    missed  guessing
      <{eps}  <{mean_bound}  {mean_risk}  {guessing}

- {N} rows certify, {trained} other rows trained. They and new ones must be drawn independently from
  one source.
- full-GP, kernel {kernel}; {ended}.
$ certify --evals 3 --certificate prior --eps 2 --delta 0.03 --inducing 5
a demo: {rows} rows; inputs x; target y

With 97 % confidence the predicted y misses by more than 2 (<{deviations} standard deviations of
{scale_rows} rows) with probability at most <{mean_bound}. It cannot be told from guessing the mean
of the training rows, which misses {guessing} of these.

         eps     bound    missed  guessing   sampled  its risk
           2  <{mean_bound}  {mean_risk}  {guessing}  <{bound}  {risk}

- {N} rows certify, {trained} other rows trained. They and new ones must be drawn independently from
  one source.
- KL, grid and confidence, in nats a row: {nats[0]}, {nats[1]}, {nats[2]}.
- VFE, M = {M}, kernel {kernel}; {ended}.
$ certify --evals 3 --certificate paper --eps 0.05
a demo: {rows} rows; inputs x; target y

With 99 % confidence a function sampled from the GP of y misses by more than 0.05 (<{deviations}
standard deviations of {scale_rows} rows) with probability at most <{bound}. It cannot be told from
guessing the mean of the training rows, which misses {guessing} of these.

         eps     bound    missed  guessing   sampled  its risk
        0.05    1.0000  {mean_risk}  {guessing}  <{bound}  {risk}

- {N} rows certify. They and new ones must be drawn independently from one source.
- KL, grid and confidence, in nats a row: {nats[0]}, {nats[1]}, {nats[2]}.
- kl-PAC-GP, kernel {kernel}; {ended}.
$ certify --evals 3 --coverage 0.85 --eps 0.3 0.6
a demo: {rows} rows; inputs x; target y

With 99 % confidence at least 85 % of new values of y lie within <{factor} predicted standard
deviations (at least <{least} each) of the prediction, <{half_width} on average, and the predicted y
misses by more than eps with probability at most the bound, at every eps at once.

         eps     bound    missed  guessing
         0.3  <{claims[0][mean_bound]}  {claims[0][mean_risk]}  {claims[0][guessing]}
         0.6  <{claims[1][mean_bound]}  {claims[1][mean_risk]}  {claims[1][guessing]}

- {N} rows certify, {trained} other rows trained. They and new ones must be drawn independently from
  one source.
- full-GP, kernel {kernel}; {ended}.
$ score --epochs 1 --inducing 5
a demo: {rows} rows; inputs x; target y

{best} predicts y with RMSE {scores[exact][RMSE]} on {test} rows held out, where a constant has
{scores[constant][RMSE]}. Its 95 % intervals hold {scores[exact][inside]:%} of them. No better than
a constant's density: PPGPR-MFD.

                   NLL      RMSE
PPGPR-MFD  {scores[PPGPR-MFD][NLL]}  {scores[PPGPR-MFD][RMSE]}
exact      {scores[exact][NLL]}  {scores[exact][RMSE]}
constant   {scores[constant][NLL]}  {scores[constant][RMSE]}

- {train} rows trained each, drawn at random; kernel {kernel}. Then {best} was trained on all.
$ follow --inducing 6 --first 280
a demo: {seen} rows; inputs x; target y

The GP's forecast missed y by more than <{eps} in {certificates[mean][loss]:%} of 20 rows; with
95 % confidence its risk was at most <{certificates[mean][bound]}. Its 95 % intervals held {held:%}.

forecast                  RMSE     bound
GP                {rmse[mean]}     <{certificates[mean][bound]}
ridge regression  {rmse[ridge]}    <{certificates[ridge][bound]}
last value        {rmse[last]}     <{certificates[last][bound]}
mean so far       {rmse[average]}  <{certificates[average][bound]}
GP, row 10  * *
GP, row 20  {rmse[mean]}     <{certificates[mean][bound]}

- The bounds hold together and at every row: on the probability of a miss given the rows before,
  averaged over the rows, in any order and dependence.
- The first {first} rows set the scale and the tolerance, and do not count.
"""


def words(text):
    """A text without numbers and blanks, and the numbers."""
    return "".join(re.sub(NUMBER, "#", text).split()), re.findall(NUMBER, text)


@each("example", EXAMPLES.split("\n$ ")[1:])
def test_said(example):
    """Words are the same; numbers are the facts to all digits shown, those after < rounded up."""
    typed, want = example.split("\n", 1)
    facts = json.loads(run(f"{typed} --json")[0])
    if facts.get("KL") is not None:
        facts["nats"] = [facts[name] / facts["N"] for name in ("KL", "penalty", "confidence")]
    if facts.get("least") is not None:
        facts["least"] *= facts["unit"]
    if "rmse" in facts:
        facts["held"] = 1 - facts["certificates"]["interval"]["loss"]
    said, found = words(run(typed)[0])
    same, exact = words(want.format(**facts))
    assert said == same
    for a, b in zip(found, exact):
        if b != "*":
            off = Decimal(a) - Decimal(b.strip("<"))
            unit = Decimal(1).scaleb(Decimal(a).as_tuple().exponent)
            assert 0 <= off < unit if b[0] == "<" else abs(off) <= unit / 2, (a, b)


def assert_printed(found, shown, rough=2e-3):
    """Words are the same, numbers nearly."""
    (said, a), (same, b) = words(found), words(shown)
    assert said == same
    assert np.allclose(np.array(a, float), np.array(b, float), rtol=rough, atol=1.01e-4)


def test_readme(monkeypatch):
    """The first command prints README's lines, whatever the last bits of a processor's sine."""
    text = (ROOT / "README.md").read_text()
    typed = re.search(r"python -m own_data (certify --eps \S+)\n", text)[1]
    head, answer, *_ = run(typed)[0].split("\n\n")
    assert_printed(f"{head}\n\n{answer}", re.search("```text\n(.*?)\n```", text, re.S)[1])
    lines = command_line.demo()
    monkeypatch.setattr(np, "sin", lambda x: np.nextafter(np.cos(x - np.pi / 2), 9))
    assert command_line.demo() == lines


STEP = re.compile(r"(?sm)```python\n(.*?)```|^    ((?:python|head) [^\n]*)\n|```text\n(.*?)```")


@each("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_page(part, lines, capsys):
    """The examples of docs/own-data.md print what is below them: certify, score, follow."""
    text = (ROOT / "docs" / "own-data.md").read_text()
    exec((ROOT / "docs" / "tables.py").read_text(), {})
    steps = STEP.findall(re.split("\n## (?:Dens|Streams|What)", text)[part])
    if part == 0 and not all(map(importlib.util.find_spec, ("pandas", "sklearn"))):
        for i in [i for i, (code, _, _) in enumerate(steps) if "sklearn" in code][::-1]:
            del steps[i:i + 2]
    printed = ""
    for code, typed, shown in steps:
        _, _, words = typed.partition("own_data ")
        if shown:
            assert_printed(printed, shown, 0.05 if part == 1 else 2e-3)
        elif code:
            exec(code, {})
            printed = capsys.readouterr().out
        elif words:
            printed = run(words.split("2>")[0])[0]
        else:
            printed = "".join(pathlib.Path("prices.csv").read_text().splitlines(True)[:3])


@each(
    "value", [0.25, 0.99995, 1.0, *default_rng(0).uniform(0, 1, 50).tolist()])
def test_rounded(value):
    """Never too good: bounds and tolerances up, the confidence down; nines are kept."""
    exact = Decimal(value)
    assert exact <= Decimal(models.bound_text(value)) <= min(exact + Decimal("1e-4"), 1)
    assert exact <= Decimal(models.rounded_up(value)) <= exact * Decimal("1.001")
    assert Decimal(models.confidence_percent(value)) <= 100 * (1 - Decimal(repr(value)))
    assert models.confidence_percent(1e-15) == "99.9999999999"
