"""The source of functions with all that they need, to be used alone."""
import ast
import dis
import pathlib
import re

from pacgp_ref import __version__

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOMS = ["pacgp_ref", "predictive", "online",
         *sorted(f"beyond/{path.stem}" for path in ROOT.glob("beyond/*.py"))]


def names_in(code):
    """The names that compiled code, with the functions in it, looks up outside itself.

    An attribute is a name that begins with a point.
    """
    names = {one.argval for one in dis.get_instructions(code)
             if "GLOBAL" in one.opname or one.opname == "LOAD_NAME"}
    names |= {f".{one.argval}" for one in dis.get_instructions(code)
              if one.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    inner = [part for part in code.co_consts if isinstance(part, type(code))]
    return names.union(*map(names_in, inner))


def definitions(room):
    """Of a file: name -> (source, names it needs); name -> a room or a statement, of imports.

    The name of a statement f.start = g is "f.start".
    """
    path = ROOT / f"{room}.py"
    text = path.read_text(encoding="utf-8")
    lines = [*text.splitlines(), ""]
    own, taken = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            source = getattr(node, "module", "").replace(".", "/")
            for alias in node.names:
                node.names = [alias]
                taken[alias.asname or alias.name] = source if source in ROOMS else ast.unparse(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            first, *_ = getattr(node, "decorator_list", None) or [node]
            start, end = first.lineno - 1, node.end_lineno
            constant = isinstance(node, ast.Assign)
            while constant and lines[start - 1].startswith("#"):
                start -= 1                                               # a comment above it
            while lines[end].startswith(" "):
                end += 1                                                 # the rest of one beside it
            code = compile(ast.Module([node], []), str(path), "exec")
            name = ast.unparse(node.targets[0]) if constant else node.name
            own[name] = "\n".join(["\n"] * (not constant) + lines[start:end]), names_in(code)
    return own, taken


def head(rooms):
    """Comments that say whose the copy is: its files, and the authors that CITATION.cff names."""
    path = ROOT / "CITATION.cff"
    about = path.read_text(encoding="utf-8") if path.exists() else ""
    about, *_ = about.split("references:")
    year, authors, title = (", ".join(re.findall(rf'(?m)^{key}: "?(.*?)"?$', about))
                            for key in ("date-released", "  - name", "title"))
    files = ", ".join(f"{room}.py" for room in ROOMS if room in rooms)
    return [f"# {files} {__version__}, SPDX-License-Identifier: MIT, (c) {year[:4]} {authors}",
            f"# {title}", "# R: Reeb et al. 2018, J: Jankowiak et al. 2020, L: Liu et al. 2022"]


def copied(*names):
    """The source of functions of the papers' modules and of beyond/, with all that they need.

    A name that several files have is the first one's, or is written online.predict. With f_grad or
    f_back comes f. ValueError for a name that is not there, or needed from two files.
    """
    known = {room: definitions(room) for room in ROOMS}
    wanted, found, imports, parts = [], set(), set(), {}
    for name in names:
        *rooms, name = name.replace("beyond.", "beyond/").split(".")
        homes = [room for room in rooms or ROOMS if name in known.get(room, ({},))[0]]
        if not homes:
            raise ValueError(f"no function {name} in {', '.join(rooms or ROOMS)}")
        wanted += [(homes[0], name), (homes[0], name.removesuffix("_back").removesuffix("_grad"))]
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
    text = "\n".join([*head(rooms), *sorted(imports), "", *parts.values(), ""])
    return re.sub("\n{4,}", "\n\n\n", text)
