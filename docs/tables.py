"""Writes the tables of docs/own-data.md into the current folder: `python docs/tables.py`."""
import numpy as np

rng = np.random.default_rng(0)


def houses(n):
    area, age = rng.uniform(40, 200, n), rng.uniform(0, 90, n)
    price = 60 + 2.2 * area - 1.5 * age + 0.012 * age**2 + 15 * rng.standard_normal(n)
    yield "id;town;area;age;price"
    for i in range(n):
        cells = [f"{v:.1f}".replace(".", ",") for v in (area[i], age[i], price[i])]
        cells[1] = "" if i % 97 == 5 else cells[1]
        yield ";".join([f"H{i:04d}", rng.choice(["Aachen", "Bonn", "Celle"]), *cells])


def wear(n):
    yield "load,speed,wear"
    for load, speed in rng.uniform((0, 10), (5, 60), (n, 2)):
        y = np.sin(load) * speed / 20 + (0.05 + 0.2 * load) * rng.standard_normal()
        yield f"{load:.3f},{speed:.1f},{y:.4f}"


def power(n):
    yield "hour,weekday,power"
    for t in range(n):
        wave = 3 * (t // 24 % 7 < 5) * np.exp(-((t % 24 - 13) / 4) ** 2)
        yield f"{t % 24},{t // 24 % 7},{5 + wave + 0.2 * rng.standard_normal():.3f}"


for name, lines in (("houses", houses(600)), ("offers", houses(6)), ("bench", wear(800)),
                    ("meter", power(1500)), ("tomorrow", power(2))):
    with open(f"{name}.csv", "w") as file:
        file.write("\n".join([*lines, ""]))
