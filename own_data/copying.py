"""Prints functions of the modules with all that they need, to be used alone.

A "room" is a file to copy from, by its name in ROOMS, such as "online" or "beyond/search". A copy
takes float64 arrays only, as it leaves out the functions in GUARDS, which convert arguments. It
compares kernels by name, as the kernel in a record that a module has returned is not the same
object as the copy's. A copy from pacgp_ref and predictive alone does not check that shapes agree,
and computes distances by a matrix product only. It raises ValueError where inputs are too far
apart for that.
"""
import ast
import dis
import pathlib
import re
import textwrap

from pacgp_ref import __version__

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOMS = ["pacgp_ref", "predictive", "online",
         *sorted(f"beyond/{path.stem}" for path in ROOT.glob("beyond/*.py"))]
GUARDS = ("as_float", "real_array", "in_doubles", "doubled", "is_real")
MAKERS = {                     # of the records that functions start from
    "conjugate_update": "prior", "update": "prior", "step": "begin"}
SHORTER = {                    # what may do in place of a copy of more than LONG lines
    "sparse_gp": "full_gp, for up to 1000 rows",
    "held_out": "binomial_bound(misses, n, delta), or where losses are in [0, 1] kl_inv(mean loss, "
                "math.log(1 / delta) / n)"}
LONG = 300


def names_in(code):
    """Returns the set of global names and attributes (.name) in a code object.

    Those in nested functions are included.
    """
    names = set()
    for one in dis.get_instructions(code):
        if "GLOBAL" in one.opname or one.opname == "LOAD_NAME":
            names.add(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.add(f".{one.argval}")
    inner = [part for part in code.co_consts if isinstance(part, type(code))]
    return names.union(*map(names_in, inner))


def unguarded(text):
    """Returns a function's source, `text`, as a copy has it.

    Calls of GUARDS, which convert arguments, are removed. `kernel is f` becomes a comparison of the
    two names.
    """
    text = re.sub(r"\bkernel is ([\w.]+)", r"kernel.__name__ == \1.__name__", text)
    text = re.sub(r"\b(?:as_float\(|real_array\([^,()]+, )(\w+)\)", r"\1", text)
    return re.sub(r"(?m)^ +(.+) = \1\n", "", text)


def definitions(room, short=False):
    """Returns two dicts: what a room, such as "beyond/search", defines, and what it imports.

        own     name -> (source, names that the source looks up); a statement f.start = g is listed
                under the name "f.start"
        taken   name -> the room it is imported from, or its import statement if from elsewhere
    short: True to leave out calls of check_shapes, and distances computed by differences. A copy
    from pacgp_ref and predictive alone has neither.
    """
    path = ROOT / f"{room}.py"
    text = path.read_text(encoding="utf-8")
    if short:
        text = re.sub(r"(?m)^ +check_shapes\(.*\n", "", text)
        text = re.sub(r"(    if far or by_differences:\n)(?: {8}.*\n)+",
                      r'\1        raise ValueError("X is too far apart for one product")\n', text)
    lines = [*text.splitlines(), ""]
    own, taken = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            source = getattr(node, "module", "").replace(".", "/")
            for alias in node.names:
                node.names = [alias]
                taken[alias.asname or alias.name] = source if source in ROOMS else ast.unparse(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            start, end = node.lineno - 1, node.end_lineno                   # no decorators
            constant = isinstance(node, ast.Assign)
            while constant and lines[start - 1].startswith("#"):
                start -= 1                                               # a comment above it
            while lines[end].startswith(" "):
                end += 1                                                 # the rest of one beside it
            source = "\n".join(lines[start:end])
            name = ast.unparse(node.targets[0]) if constant else node.name
            if isinstance(node, ast.FunctionDef) and name not in GUARDS:
                source = unguarded(source)
            needs = names_in(compile(source, str(path), "exec"))
            own[name] = "\n\n" * (not constant) + source, needs
    return own, taken


def head(rooms):
    """Returns comment lines to head a copy: files, version, licence, authors in CITATION.cff.

    rooms: the set of rooms copied from.
    """
    path = ROOT / "CITATION.cff"
    about = path.read_text(encoding="utf-8") if path.exists() else ""
    about, *_ = about.split("references:")
    year, authors, title = (", ".join(re.findall(rf'(?m)^{key}: "?(.*?)"?$', about))
                            for key in ("date-released", "  - name", "title"))
    files = ", ".join(f"{room}.py" for room in ROOMS if room in rooms)
    return [f"# {files} {__version__}, SPDX-License-Identifier: MIT, (c) {year[:4]} {authors}",
            f"# {title}", "# R: Reeb et al. 2018, J: Jankowiak et al. 2020, L: Liu et al. 2022",
            "# For float64 arrays of these shapes; the module takes lists, frames, narrow numbers."]


def hints(name, source, needs, parts):
    """Yields comments for the head of a copy: how to call a function, and what would be shorter.

        name, source   name and source of the function
        needs          names that the function looks up
        parts          name -> source, of all that is copied
    The second comment comes only if the copy has more than LONG lines. It gives the function's
    entry in SHORTER, or, if there is none, the names of the functions that it calls.
    """
    tree, = ast.parse(source).body
    if isinstance(tree, ast.FunctionDef):
        yield f"# Call: {name}({ast.unparse(tree.args)})"
    lines = sum(part.count("\n") + 1 for part in parts.values())
    if lines > LONG:
        inner = [need for need in sorted(needs) if f"def {need}(" in parts.get(need, "")]
        said = f"{lines} lines; shorter is {SHORTER.get(name, 'a part: ' + ', '.join(inner))}"
        yield from textwrap.wrap(said, 98, initial_indent="# ", subsequent_indent="#   ")


def copied(*names):
    """Returns the source of the named functions with all that they need, to run alone.

    names: texts such as "full_gp" or "online.predict". A name without a room is looked up in the
    order of ROOMS: the papers' modules, then beyond/. With f_grad or f_back, f is copied, too. With
    a function in MAKERS, the maker of the record that it starts from is copied, too, such as
    `prior` with `update`. ValueError for a name that no room has, or if the copy needs two
    different definitions of one name.
    """
    known = {room: definitions(room) for room in ROOMS}
    wanted, found, imports, parts = [], set(), set(), {}
    for name in names:
        *rooms, name = name.replace("beyond.", "beyond/").split(".")
        homes = [room for room in rooms or ROOMS if name in known.get(room, ({},))[0]]
        if not homes:
            raise ValueError(f"no function {name} in {', '.join(rooms or ROOMS)}")
        others = MAKERS.get(name, name), name.removesuffix("_back").removesuffix("_grad")
        wanted += [(homes[0], one) for one in dict.fromkeys([name, *others])
                   if one in known[homes[0]][0]]
    if {room for room, _ in wanted} <= {*ROOMS[:2]}:
        known |= {room: definitions(room, short=True) for room in ROOMS[:2]}
    asked = [*wanted]
    read = set()                                         # attributes
    while wanted:
        for room, name in wanted:                        # which grows
            own, taken = known[room]
            if name in own and (room, name) not in found:
                found.add((room, name))
                wanted += [(room, need) for need in own[name][1]]
                read |= {need for need in own[name][1] if need.startswith(".")}
            elif taken.get(name) in known:
                wanted.append((taken[name], name))
            elif name in taken:
                imports.add(taken[name])
        set_on = {(room, name + attribute) for room, name in found for attribute in read}
        wanted = [(room, name) for room, name in set_on - found if name in known[room][0]]
    for room in ROOMS:
        for name, (source, _) in known[room][0].items():
            if (room, name) in found and parts.setdefault(name, source) != source:
                raise ValueError(f"{name}: needed from two files under one name")
    rooms = {room for room, _ in found}
    about = head(rooms)
    for room, name in asked:
        about += hints(name, *known[room][0][name], parts)
    text = "\n".join([*about, *sorted(imports), "", *parts.values(), ""])
    return re.sub("\n{4,}", "\n\n\n", text)
