"""Trained models as files without pickle, and their predictions in the units of the table."""
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import pacgp_ref
import predictive
from pacgp_ref import Optimum, __version__, check_columns, check_kind
from predictive import Predictor
from beyond import kernels
from beyond.rounding import Certified
from own_data.scale import Scale

# Of saved models and states: what has another must be made again.
FORMAT = 4
# name -> kernel: what --kernel takes, and what saved models and states say.
KERNELS = {name: row.function for name, row in kernels.KERNELS.items()}


class Model(NamedTuple):
    """A trained GP and the scale of its table: `predict` takes and gives the table's own units;
    `save` keeps it."""
    fit: NamedTuple            # the Fit of pacgp_ref or of predictive, or a Certified
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


def kernel_name(kernel):
    """The name of a kernel in KERNELS; ValueError for another."""
    for name, known in KERNELS.items():
        if kernel is known:
            return name
    raise ValueError(f"a kernel without a name cannot be saved: {kernel!r} is none of "
                     f"{', '.join(KERNELS)}")


def flattened(value, arrays, classes):
    """A value of numbers, texts, lists, tuples, dicts, KERNELS and NamedTuples of `classes` as JSON
    can say it; the list `arrays` takes arrays.

    An object array of texts becomes one of texts. ValueError for what `restored` cannot bring back.
    """
    again = lambda v: flattened(v, arrays, classes)
    if isinstance(value, np.ndarray):
        if value.dtype == object and all(isinstance(v, str) for v in value.flat):
            value = value.astype(str)
        if value.dtype.hasobject:
            raise ValueError("cannot save an array of Python objects: give numbers or texts")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple) and type(value) in (tuple, *classes):
        of = [again(v) for v in value]
        names = getattr(value, "_fields", None)
        return {type(value).__name__: dict(zip(names, of)) if names else of}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: again(v) for name, v in value.items()}}
    if isinstance(value, list):
        return [again(v) for v in value]
    if callable(value):
        return {"kernel": kernel_name(value)}
    if not isinstance(value, (str, int, float, type(None))):
        raise ValueError(f"cannot save a {type(value).__name__}: give numbers, texts, arrays, "
                         "lists, tuples, or dicts with texts as names")
    return value


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
    if kind == "kernel":
        return KERNELS[inside]
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


def write_archive(path, value, module, classes, known=None):
    """Writes a value that `flattened` takes apart, of the module so named, for read_archive: an
    .npz file without pickle. A symbolic link stays one: its target is written.

    The file is the old one or whole, whenever this is interrupted. known: of a state, which goes
    on, a list of the bytes it may hold before, changed to those and the new ones. ValueError where
    it holds others, or cannot be written.
    """
    import io
    import json
    arrays = []
    of_state = dict(state=True) if known is not None else {}
    about = dict(format=FORMAT, module=module, version=__version__, **of_state,
                 value=flattened(value, arrays, classes))
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    place = os.path.realpath(path)
    part = f"{place}.{os.getpid()}.part"
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
            os.replace(part, place)
    finally:
        if os.path.exists(part):
            os.remove(part)


def opened_archive(path):
    """What write_archive says of the file at path, a dict, and its arrays; errors of many kinds
    for another file, or a broken one."""
    import json
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        if file.zip.testzip():          # a shape that is damaged hides a part from its check sum
            raise ValueError
        about, *arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
    return json.loads(about.tobytes()), arrays


def is_model(path):
    """Whether write_archive wrote the file at path, and as no state that goes on."""
    try:
        about, _ = opened_archive(path)
        return "module" in about and not about.get("state")
    except Exception:
        return False


def read_archive(path, module, classes):
    """The value at path that write_archive wrote for the same module; classes: the NamedTuples it
    may be made of.

    ValueError where it cannot be read, is damaged, or is another module's or a later version's.
    """
    try:
        about, arrays = opened_archive(path)
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


FITS = {               # module -> what of it can be saved, alone or in a Model
    "pacgp_ref": (pacgp_ref.Fit, Certified),
    "predictive": (predictive.Fit,),
}
MODELS = {             # module -> what its saved models are made of
    "pacgp_ref": (Model, *FITS["pacgp_ref"], Optimum, Scale),
    "predictive": (Model, *FITS["predictive"], Predictor, Scale),
}


def fit_of(model):
    """The Fit of a Model, of a Certified or of a Fit, which is its own."""
    while hasattr(model, "fit"):
        model = model.fit
    return model


def holds_its_kinds(fields):
    """Whether the texts and the numbers of a NamedTuple are of the kinds that it declares."""
    for value, kind in zip(fields, type(fields).__annotations__.values()):
        if kind is str and not isinstance(value, str):
            return False
        if kind in (int, float) and (np.ndim(value) or np.asarray(value).dtype.kind not in "iuf"):
            return False
    return True


def predicts(model):
    """Whether fit and scale of a Model predict at a row of zeros."""
    mean, var = predict(model, np.zeros((1, len(model.scale.unit_X))))
    parts = (model.fit, fit_of(model), model.scale)
    return mean.shape == var.shape == (1,) and all(map(holds_its_kinds, parts))


def can_be_said(about):
    """Whether the dict is one that JSON can say, and its text and bound are such."""
    import json
    kinds = dict(text=str, loss=str, mean_bound=(int, float))
    kept = all(isinstance(about[name], kind) for name, kind in kinds.items() if name in about)
    return isinstance(about, dict) and bool(json.dumps(about)) and kept


RULES = {              # field of a Model -> whether it can be used, and what it must be
    "inputs": (lambda model: isinstance(model.inputs, list)
               and all(isinstance(name, str) for name in model.inputs), "a list of texts"),
    "target": (lambda model: isinstance(model.target, str), "a text"),
    "about": (lambda model: can_be_said(model.about),
              "a dict that JSON can say, its text a text and its mean_bound a number"),
    "fit": (predicts, "one that predicts in units of scale: both as fit and standardise or "
                      "scale_of give them"),
}


def checked(model, module):
    """A Model of `module`, its names as a list; a Fit or a Certified as it is.

    ValueError that names the field which the command line could not use.
    """
    if not isinstance(model, Model):
        return model
    check_kind("fit", model.fit, FITS[module], "fit")
    check_kind("scale", model.scale, Scale, "standardise or scale_of")
    if isinstance(model.inputs, (tuple, np.ndarray)):
        model = model._replace(inputs=np.asarray(model.inputs).tolist())
    for field, (met, rule) in RULES.items():
        try:
            right = met(model)
        except Exception:                            # wrong kinds and shapes raise errors of many
            right = False
        if not right:
            raise ValueError(f"{field} of a Model must be {rule}")
    return model


def save(path, model):
    """Writes a Model, or a Certified or a Fit of pacgp_ref or predictive alone, for `load`.

    ValueError where it cannot be written, or is none that `load` would take.
    """
    check_kind("model", model, (Model, *FITS["pacgp_ref"], *FITS["predictive"]), "fit")
    module = type(fit_of(model)).__module__
    if module not in MODELS:
        raise ValueError("fit of a Model must be a Fit, from fit")
    write_archive(path, checked(model, module), module, MODELS[module])


def load(path, module="pacgp_ref"):
    """What `save` wrote of a model of `module`, the same to the last bit.

    ValueError for another file, or a damaged one.
    """
    model = read_archive(path, module, MODELS[module])
    check_kind(f"what {path} holds", model, (Model, *FITS[module]), "save")
    try:
        return checked(model, module)
    except ValueError as err:
        raise ValueError(f"{path} is no saved model, or damaged: {err}") from None


def predict(model, X_new):
    """mean [y], var [y^2] (n,) of f at X_new (n, d) by a Model, in units of the table."""
    module = {pacgp_ref.Fit: pacgp_ref, predictive.Fit: predictive}[type(fit_of(model))]
    return in_table(*module.predict(model.fit, in_units(X_new, model.scale)), model.scale)


def predict_y(model, X_new):
    """As predict, of y = f + noise, for a Model of predictive.py, whose noise is an estimate."""
    return in_table(*predictive.predict_y(model.fit, in_units(X_new, model.scale)), model.scale)


def in_table(mean, var, scale):
    """mean, var (n,) of a scaled target in units of the table."""
    return scale.middle + scale.unit * mean, scale.unit**2 * var
