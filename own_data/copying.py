"""--copy: the source of a function of these modules, with all that it needs, to be used alone."""
import ast
import difflib
import dis
import pathlib

from pacgp_ref import __version__


def globals_of(code):
    """The names that compiled code, with the functions in it, looks up outside itself."""
    names = {i.argval for i in dis.get_instructions(code)
             if "GLOBAL" in i.opname or i.opname == "LOAD_NAME"}
    inner = [part for part in code.co_consts if isinstance(part, type(code))]
    return names.union(*map(globals_of, inner))


LICENCE = "SPDX-License-Identifier: MIT, (c) 2026 the authors of this repository"
PAPERS = "# R: Reeb et al. 2018, J: Jankowiak et al. 2020, L: Liu et al. 2022"
COPIED = ("pacgp_ref", "predictive", "online", "beyond/kernels", "beyond/rounding",
          "beyond/certificates", "beyond/stream", "beyond/blocks", "beyond/search")


def definitions(path):
    """Of a file: name -> (source, names it needs) of what it defines; name -> one of COPIED, or an
    import, of what it takes."""
    own = {}
    taken = {}
    text = path.read_text(encoding="utf-8")
    lines = [*text.splitlines(), ""]
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            room = getattr(node, "module", "").replace(".", "/")
            for alias in node.names:
                node.names = [alias]
                taken[alias.asname or alias.name] = room if room in COPIED else ast.unparse(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            above = getattr(node, "decorator_list", None) or [node]
            start = above[0].lineno - 1
            end = node.end_lineno
            while isinstance(node, ast.Assign) and lines[start - 1].startswith("#"):
                start -= 1                                               # a comment above it
            while lines[end].startswith(" "):
                end += 1                                                 # the rest of one beside it
            name = node.targets[0].id if isinstance(node, ast.Assign) else node.name
            code = compile(ast.Module([node], []), str(path), "exec")
            own[name] = "\n".join(lines[start:end]), globals_of(code)
    return own, taken


def copied(path, *names):
    """The source of functions of the module at path, or of beyond/, with all that they need.

    A gradient, name_back or name_grad, comes with its forward function. No names: a list of them.
    ValueError for a name that is not there, or needed from two files.
    """
    path = pathlib.Path(path)
    files = {room: path.parent / f"{room}.py" for room in COPIED}
    known = {room: definitions(file) for room, file in files.items() if file.exists()}
    beyond = [room for room in known if room.startswith("beyond")]
    if not names:
        listed = [name for room in (path.stem, *beyond) for name in known[room][0]]
        return "".join(f"{name}\n" for name in listed if not name.isupper())
    last_wins = (*beyond, "pacgp_ref", path.stem)
    home = {name: room for room in last_wins for name in known[room][0]}
    wanted = []
    for name in names:
        if name not in home:
            close = difflib.get_close_matches(name, home, 1)
            hint = "".join(f": did you mean {other}?" for other in close)
            raise ValueError(f"{path.name} has no {name}{hint}")
        forward = name.removesuffix("_back").removesuffix("_grad")
        wanted += [(home[name], name), (home[name], forward)]
    found = set()
    imports = set()
    while wanted:
        room, name = wanted.pop()
        own, taken = known[room]
        if name in own and (room, name) not in found:
            found.add((room, name))
            wanted += [(room, need) for need in own[name][1]]
        elif taken.get(name) in known:
            wanted.append((taken[name], name))
        elif name in taken:
            imports.add(taken[name])
    parts = {}
    for room, name in [(room, name) for room in known for name in known[room][0]]:
        if (room, name) in found:
            if name in parts:
                raise ValueError(f"{name}: needed from two files under one name")
            parts[name] = known[room][0][name][0]
    gap = lambda source: "\n\n" * source.startswith(("def", "class", "@"))
    rest = [gap(source) + source for source in parts.values()]
    source = f"# {path.name} {__version__}, {LICENCE}"
    text = "\n".join([source, PAPERS, *sorted(imports), "", *rest, ""])
    return text.replace(4 * "\n", 3 * "\n")
