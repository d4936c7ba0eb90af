"""Trained models as files without pickle, and their predictions in the units of the table."""
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import pacgp_ref
import predictive
from pacgp_ref import Optimum, Scale, __version__, check_columns, check_kind
from predictive import Predictor

# Of saved models and states: what has another must be made again.
FORMAT = 3


class Model(NamedTuple):
    """A trained GP and the scale of its table: `predict` takes and gives the table's own units;
    `save` keeps it."""
    fit: NamedTuple            # the Fit of pacgp_ref or of predictive
    scale: NamedTuple          # of standardise or scale_of
    inputs: list = []          # names of the table's columns
    target: str = ""
    about: dict = {}           # what the command line says of it, as with --json


def in_units(X_new, scale):
    """X_new (n, d) in units of the Scale."""
    with np.errstate(over="ignore", invalid="ignore"):
        X_new = check_columns("X_new", X_new, len(scale.unit_X))
        return (X_new - scale.middle_X) / scale.unit_X


def contents(path):
    """The bytes of the file at path, none where it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def flattened(value, arrays):
    """A value of numbers, texts, lists, tuples, NamedTuples and dicts as JSON can say it; the list
    `arrays` takes arrays."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple):
        of = [flattened(v, arrays) for v in value]
        names = getattr(value, "_fields", None)
        return {type(value).__name__: dict(zip(names, of)) if names else of}
    if isinstance(value, dict):
        return {"dict": {name: flattened(v, arrays) for name, v in value.items()}}
    if isinstance(value, list):
        return [flattened(v, arrays) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def restored(part, arrays, classes):
    """The value that `flattened` took apart; classes: name -> NamedTuple or dict."""
    again = lambda v: restored(v, arrays, classes)
    if isinstance(part, list):
        return [again(v) for v in part]
    if not isinstance(part, dict):
        return part
    (kind, inside), = part.items()
    if kind == "array":
        return arrays[inside]
    if kind == "tuple":
        return tuple(again(v) for v in inside)
    fields = {name: again(v) for name, v in inside.items()}
    return classes[kind](**fields)


@contextlib.contextmanager
def writing(path):
    """Inside, an OSError becomes a ValueError that says what cannot be written."""
    try:
        yield
    except OSError as err:
        raise ValueError(f"cannot write {path}: {err}") from None


def write_archive(path, value, module, known=None):
    """Writes a value that `flattened` takes apart, of the module so named, for read_archive: an
    .npz file without pickle.

    The file is the old one or whole, whenever this is interrupted. known: a list of the bytes it
    may hold before, changed to those and the new ones. ValueError where it holds others, or cannot
    be written.
    """
    import io
    import json
    arrays = []
    about = dict(format=FORMAT, module=module, version=__version__, value=flattened(value, arrays))
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    part = f"{path}.{os.getpid()}.part"
    archive = io.BytesIO()
    try:
        with ThreadPoolExecutor(1) as undisturbed:   # Ctrl-C in savez may become another error
            undisturbed.submit(np.savez, archive, text, *arrays).result()
        with writing(path):
            with open(part, "wb") as file:
                file.write(archive.getvalue())
            if known is not None:
                before = contents(path)
                if before not in known:
                    raise ValueError(f"{path} was changed by another process: it is left as it is")
                known[:] = [before, archive.getvalue()]
            os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def read_archive(path, module, classes):
    """The value at path that write_archive wrote for the same module; classes: the NamedTuples it
    may be made of.

    ValueError where it cannot be read, is damaged, or is another module's or a later version's.
    """
    import json
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if file.zip.testzip():      # a shape that is damaged hides a part from its check sum
                raise ValueError
            about, *arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
        about = json.loads(about.tobytes())
        if about["module"] == module and about["format"] == FORMAT:
            by_name = {kind.__name__: kind for kind in (dict, *classes)}
            return restored(about["value"], arrays, by_name)
    except OSError as err:
        raise ValueError(f"cannot read {path}: {err}") from None
    except Exception:                                # a broken archive raises errors of many kinds
        raise ValueError(f"{path} is no saved model, or damaged") from None
    by = f"{about['module']}.py {about.get('version')}"
    this = f"{module}.py {__version__}"
    if about["module"] == module:
        by += f", format {about['format']}"
        this += f", format {FORMAT}"
    raise ValueError(f"{path} was saved by {by}: this is {this}")


MODELS = {             # module -> what its saved models are made of
    "pacgp_ref": (Model, pacgp_ref.Fit, Optimum, Scale),
    "predictive": (Model, predictive.Fit, Predictor, Scale),
}


def save(path, model):
    """Writes a Model, or a Fit of pacgp_ref or predictive alone, to a file for `load`.

    ValueError where it cannot be written.
    """
    check_kind("model", model, (Model, pacgp_ref.Fit, predictive.Fit), "fit")
    write_archive(path, model, type(getattr(model, "fit", model)).__module__)


def load(path, module="pacgp_ref"):
    """What `save` wrote of a model of `module`, the same to the last bit.

    ValueError for another file, or a damaged one.
    """
    return read_archive(path, module, MODELS[module])


def predict(model, X_new):
    """mean [y], var [y^2] (n,) of f at X_new (n, d) by a Model, in units of the table."""
    module = {pacgp_ref.Fit: pacgp_ref, predictive.Fit: predictive}[type(model.fit)]
    return in_table(*module.predict(model.fit, in_units(X_new, model.scale)), model.scale)


def predict_y(model, X_new):
    """As predict, of y = f + noise, for a Model of predictive.py, whose noise is an estimate."""
    return in_table(*predictive.predict_y(model.fit, in_units(X_new, model.scale)), model.scale)


def in_table(mean, var, scale):
    """mean, var (n,) of a scaled target in units of the table."""
    return scale.middle + scale.unit * mean, scale.unit**2 * var
