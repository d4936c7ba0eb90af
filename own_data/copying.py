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


def definitions(short=False):
    """Returns two dicts over all rooms: what they define, and what each of their names looks up.

        sources   (room, name) -> source of what the room defines; a statement f.start = g is listed
                  under the name "f.start"
        needs     (room, name) -> set of the (room, name) that the source looks up. Of an imported
                  name it is the one imported: ("", import statement) if that is from no room
    short: True to read the papers' modules pacgp_ref and predictive alone, without calls of
    check_shapes and without distances computed by differences.
    """
    sources, needs = {}, {}
    for room in ROOMS[:2] if short else ROOMS:
        path = ROOT / f"{room}.py"
        text = path.read_text(encoding="utf-8")
        if short:
            text = re.sub(r"(?m)^ +check_shapes\(.*\n", "", text)
            text = re.sub(r"(    if far or by_differences:\n)(?: {8}.*\n)+",
                          r'\1        raise ValueError("X is too far apart for one product")\n',
                          text)
        lines = [*text.splitlines(), ""]
        for node in ast.parse(text).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                home = getattr(node, "module", "").replace(".", "/")
                for alias in node.names:
                    node.names = [alias]
                    name = alias.asname or alias.name
                    needs[room, name] = {(home, name) if home in ROOMS else ("", ast.unparse(node))}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
                start, end = node.lineno - 1, node.end_lineno               # no decorators
                constant = isinstance(node, ast.Assign)
                while constant and lines[start - 1].startswith("#"):
                    start -= 1                                           # a comment above it
                while lines[end].startswith(" "):
                    end += 1                                             # the rest of one beside it
                source = "\n".join(lines[start:end])
                name = ast.unparse(node.targets[0]) if constant else node.name
                if isinstance(node, ast.FunctionDef) and name not in GUARDS:
                    source = unguarded(source)
                sources[room, name] = "\n\n" * (not constant) + source
                read = names_in(compile(source, str(path), "exec"))
                needs[room, name] = {(room, need) for need in read}
    return sources, needs


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
        needs          set of (room, name) that the function looks up
        parts          name -> source, of all that is copied
    The second comment comes only if the copy has more than LONG lines. It gives the function's
    entry in SHORTER, or, if there is none, the names of the functions that it calls.
    """
    tree, = ast.parse(source).body
    if isinstance(tree, ast.FunctionDef):
        yield f"# Call: {name}({ast.unparse(tree.args)})"
    lines = sum(part.count("\n") + 1 for part in parts.values())
    if lines > LONG:
        inner = [need for _, need in sorted(needs) if f"def {need}(" in parts.get(need, "")]
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
    sources, needs = definitions()
    asked = []
    for name in names:
        *rooms, name = name.replace("beyond.", "beyond/").split(".")
        homes = [room for room in rooms or ROOMS if (room, name) in sources]
        if not homes:
            raise ValueError(f"no function {name} in {', '.join(rooms or ROOMS)}")
        others = MAKERS.get(name, name), name.removesuffix("_back").removesuffix("_grad")
        asked += [(homes[0], one) for one in dict.fromkeys([name, *others])
                  if (homes[0], one) in sources]
    if {room for room, _ in asked} <= {*ROOMS[:2]}:
        sources, needs = definitions(short=True)
    found, wanted = set(), {*asked}
    while wanted:
        found |= wanted
        own = found & sources.keys()
        reached = set().union(*(needs.get(place, ()) for place in found))
        read = {name for _, name in reached if name.startswith(".")}         # attributes
        set_on = {(room, name + attribute) for room, name in own for attribute in read}
        wanted = (reached | set_on & sources.keys()) - found
    parts = {}
    for (room, name), source in sources.items():
        if (room, name) in own and parts.setdefault(name, source) != source:
            raise ValueError(f"{name}: needed from two files under one name")
    about = head({room for room, _ in own})
    for room, name in asked:
        about += hints(name, sources[room, name], needs[room, name], parts)
    imports = sorted(statement for room, statement in found if not room)
    text = "\n".join([*about, *imports, "", *parts.values(), ""])
    return re.sub("\n{4,}", "\n\n\n", text)
