#!/usr/bin/env python3
"""Checks the house's shape: layering.py ROOT [libquern_internal.a libquern.a]

* an include points to a lower floor or sideways, never up, and to no room of a device from above;
* headers include each other in no circle, nor do the files of a room, as far as they are not listed here;
* no name of a device's room is used outside it;
* nothing above the door to array work (jit/run/door.h) goes past it, and only the recorder's own files touch a VM's recording;
* the top level holds the agreed entries only, and no file of the source tree is longer than 1,500 lines;
* with the archives: every symbol that shared objects would export begins with qn_, there is no mutable global data, and hosts
  that link libquern.a meet no other global name at all, hidden or not.

Prints each violation and ends with status 1 if there is one.

layering.py --includes ROOT [ROOM] prints the table of includes: the rooms with what each sees of the others, then room by room (or of one)
every file with what it includes of its own room, and the circles.
"""
import collections
import os
import re
import subprocess
import sys

# The rooms of devices, from the table of devices: reached through that table alone (jit/run/device.h), so nobody above includes their
# headers.
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "jit/run/devices.def"), encoding="utf-8") as table:
    DEVICES = tuple("jit/" + name for name in re.findall(r"^DEVICE\((\w+)", table.read(), re.M))
# Lowest first; folders in one row are neighbours that do not see each other.
FLOORS = [
    ("lang",),
    ("parser",),
    ("jit/graph",),
    ("jit/kernel",),
    ("jit/run",),
    DEVICES,
    ("jit/trace",),
    ("interp",),
    ("stdlib",),
    ("interp/prompt",),
]
TOP = re.compile(r"lang|parser|interp|jit|stdlib|examples|tests|CMakeLists\.txt|README\.md|CONTRIBUTING\.md|CHANGELOG\.md|dev|LICENSE|\..*")
MAX_LINES = 1500
COUNTED = (".c", ".h", ".def", ".re", ".y", ".qn", ".py", ".cmake")

# Mutable data that may exist, each with its reason.
MUTABLE = {
    "yyTraceFILE": "Lemon's debug output, compiled in by its template without NDEBUG; never set",
    "yyTracePrompt": "Lemon's debug output, as above",
    "stack": "the bounds of a thread's C stack, its own and constant (lang/vm.c)",
    "DW.ref.__gcc_personality_v0": "the compiler's, constant: where exceptions of a host pass",
    "default_engine": "the process's default engine, made at first use under a once-flag (quern.h)",
    "default_engine_once": "the once-flag of the default engine",
    "default_engine_lock": "the lock of the default engine",
}


def floor_of(path):
    """The index of a path's floor and its row entry; None for what is on no floor (tests, system headers)."""
    best = None
    for level, names in enumerate(FLOORS):
        for name in names:
            if path == name or path.startswith(name + "/"):
                if best is None or len(name) > len(best[1]):
                    best = (level, name)
    return best


def includes(root):
    """Every (file, line number, included path) of the source tree."""
    for top in ("lang", "parser", "jit", "interp", "stdlib"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if not name.endswith((".c", ".h", ".def", ".re", ".y")):
                    continue
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    for number, line in enumerate(f, 1):
                        found = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
                        if found:
                            yield os.path.relpath(path, root), number, found.group(1)


def included(root, path, target):
    """What an include names, from the root. A header beside the file may be named without its folder."""
    return os.path.normpath(target if os.path.exists(os.path.join(root, target)) else os.path.join(os.path.dirname(path), target))


def check_includes(root):
    for path, number, target in includes(root):
        here, full = floor_of(path), included(root, path, target)
        there = floor_of(full)
        if here and full.startswith(("tests/", "examples/")):
            yield f"{path}:{number}: {here[1]} includes {target}, which is no part of the library"
        if not here or not there:
            continue
        if there[0] > here[0]:
            yield f"{path}:{number}: {here[1]} includes {target}, which is a floor above"
        elif there[0] == here[0] and there[1] != here[1]:
            yield f"{path}:{number}: {here[1]} includes {target} of its neighbour"
        elif there[1] in DEVICES and here[1] != there[1]:
            yield f"{path}:{number}: {here[1]} includes {target}, where devices are known by the table of jit/run alone"


# What the table of devices has instead of names: FAMILY_NAME and device_NAME of other families than the CPU, and whatever begins with NAME_.
DEVICE_NAMES = re.compile(r"\b(?:(?:cpu|gpu|ref|bvm)_[a-z]\w*|(?:FAMILY|device)_(?:gpu|ref))\b")


def check_devices(root):
    for path in tracked(root):
        here = floor_of(path)
        if not here or here[1] in DEVICES or not path.endswith((".c", ".h", ".def")) or path == "lang/tunables.def":
            continue
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                for name in DEVICE_NAMES.findall(line):
                    yield f"{path}:{number}: {name} is a name of a device's room; ask the table of jit/run/device.h"


# Subjects (NAME.c, NAME.h and what is NAME_impl.h) that include each other's headers, over whatever detour, each part with its reason;
# the list only gets shorter.
CIRCLES = {
    "values, errors and the VM are made of each other":
        "lang/array lang/builtin lang/device lang/dtype lang/error lang/internal lang/mem lang/op lang/source lang/trace_events lang/value lang/vm",
    "sched_impl.h is shared by the files of schedule.h alone": "jit/kernel/sched jit/kernel/schedule",
    "nodes of index reads lie in node.h": "interp/index interp/node",
    "the terminal asks the command line for its settings": "interp/prompt/cli interp/prompt/terminal",
}


def subject_of(path):
    """The subject that a source file is about; tables of rows are about nothing that could include anything."""
    stem, ending = os.path.splitext(path)
    return None if ending == ".def" else re.sub(r"_impl$", "", stem)


def circles(edges):
    """The strongly connected parts of more than one node of {node: {node...}}, each sorted."""
    number, low, open_nodes, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        open_nodes.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
            if other in open_nodes:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = open_nodes.index(node)
            part, open_nodes[at:] = open_nodes[at:], []
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found


def include_edges(root, named):
    """{named(file): {named(what it includes)}} within the library, without what `named` has no name for."""
    edges = collections.defaultdict(set)
    for path, _, target in includes(root):
        a, full = named(path), included(root, path, target)
        b = named(full) if os.path.exists(os.path.join(root, full)) else None
        if a and b and a != b:
            edges[a].add(b)
    return edges


def check_circles(root):
    for part in circles(include_edges(root, lambda path: path if path.endswith(".h") else None)):
        yield f"{', '.join(part)}: headers that include each other"
    known = [set(names.split()) for names in CIRCLES.values()]
    for part in circles(include_edges(root, subject_of)):
        if not any(names.issuperset(part) for names in known):
            yield f"{', '.join(part)}: files of different subjects that include each other"


def print_includes(root, only):
    rooms = [name for names in FLOORS for name in names]
    lines = collections.Counter(floor_of(path)[1] for path in tracked(root) if floor_of(path) and path.endswith((".c", ".h", ".re", ".y")))
    sees = include_edges(root, lambda path: floor_of(path)[1] if floor_of(path) else None)
    width = max(map(len, rooms)) + 2
    if not only:
        print(f"{'room':{width}}files  includes of")
        for room in rooms:
            print(f"{room:{width}}{lines[room]:5}  {' '.join(other for other in rooms if other in sees[room])}")
    edges, found = include_edges(root, subject_of), circles(include_edges(root, subject_of))
    for room in [only] if only else rooms:
        own = sorted({subject_of(p) for p in tracked(root) if p.endswith((".c", ".h", ".re", ".y")) and (floor_of(p) or (0, ""))[1] == room})
        print(f"\n{room}")
        for subject in own:
            beside = sorted(other[len(room) + 1:] for other in edges[subject] if floor_of(other)[1] == room)
            print(f"  {subject[len(room) + 1:]:24}{' '.join(beside)}")
        for part in found:
            if floor_of(part[0])[1] == room:
                print(f"  circle of {len(part)}: {' '.join(name[len(room) + 1:] for name in part)}")


def check_door(root):
    """Files of interp and stdlib do array work through jit/run/door.h, and know of no eager dispatch, processor or device behind it."""
    for top in ("interp", "stdlib"):
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith((".c", ".h", ".def")) or path.startswith("interp/prompt/"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    for number, line in enumerate(f, 1):
                        found = re.search(r'include "jit/(?:cpu|gpu|ref|run/eager)|\beager_\w+\b(?=[ (;])', line)
                        if found and "eager_is_faster" not in line:
                            yield f"{path}:{number}: {found.group(0)} is behind jit/run/door.h"


# Where a VM's recording is touched: its field, and the recorder's own files. Everybody else asks jit/trace/rec.h.
RECORDER = {
    "lang/vm.c": "the field: empty at first, put aside while a host's function runs",
    "lang/value.c": "functions are equal while recording if they do the same",
    **{f"jit/trace/{name}": "the recorder" for name in ("branches.c", "counts.c", "door.c", "draws.c", "forks.c", "grown.c", "kept_turns.c", "loops.c", "parted.c", "rec.h", "recorder.c", "recording.c", "recording.h", "size_proofs.c", "sizes.c", "states.c", "tries.c", "unrolled.c", "vmap_control.c", "vmap_lanes.c", "ways.c")},
}


def check_recorder(root):
    for path in tracked(root):
        if path.endswith((".c", ".h", ".def")) and floor_of(path) and path not in RECORDER:
            with open(os.path.join(root, path), encoding="utf-8") as f:
                for number, line in enumerate(f, 1):
                    if re.search(r"\bvm->rec\b", line):
                        yield f"{path}:{number}: vm->rec belongs to the recorder; jit/trace/rec.h tells about it"


def tracked(root):
    """The files of the source tree: git's list where there is one, else what is on disk."""
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"],
                          capture_output=True)
    if done.returncode == 0:
        return [p for p in done.stdout.decode().split("\0") if p and os.path.exists(os.path.join(root, p))]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [d for d in folders if not d.startswith((".", "build", "__pycache__"))]
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return found


def check_files(root):
    paths = tracked(root)
    for top in sorted({p.split("/")[0] for p in paths}):
        if not TOP.fullmatch(top):
            yield f"{top}: no entry of the agreed top level"
    for path in paths:
        if path.endswith(COUNTED):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                lines = sum(1 for _ in f)
            if lines > MAX_LINES:
                yield f"{path}: {lines} lines, more than {MAX_LINES}"


def readelf(archive, *flags):
    done = subprocess.run(["readelf", "-W", *flags, archive], capture_output=True, text=True)
    return done.stdout.splitlines()


def members(lines):
    """Splits readelf's output of an archive into (member, its lines)."""
    name, body = "", []
    for line in lines:
        if line.startswith("File: "):
            if body:
                yield name, body
            name, body = line[6:].strip(), []
        else:
            body.append(line)
    if body:
        yield name, body


def check_archive(archive):
    """Exported names and mutable data, read from the members' section and symbol tables."""
    seen = 0
    section_row = re.compile(r"\s*\[\s*(\d+)\]\s+(\S+)")
    for name, body in members(readelf(archive, "-S", "-s")):
        sections = {}
        for line in body:
            row = section_row.match(line)
            if row:
                sections[row.group(1)] = row.group(2)
            parts = line.split()
            if len(parts) < 8 or not parts[0].rstrip(":").isdigit() or not parts[0].endswith(":"):
                continue
            seen += 1
            size, kind, bind, visible, where, symbol = parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]
            if where in ("UND", "ABS"):
                continue
            if bind in ("GLOBAL", "WEAK") and visible == "DEFAULT" and not symbol.startswith("qn_"):
                yield f"{os.path.basename(name)}: exports {symbol}"
            section = "COMMON" if where == "COM" else sections.get(where, "")
            writable = re.match(r"\.(data|bss|tdata|tbss|lbss|ldata)\b(?!\.rel\.ro)|COMMON", section)
            if kind in ("OBJECT", "TLS", "COMMON") and writable and size != "0":
                if re.sub(r"\.\d+$", "", symbol) not in MUTABLE:
                    yield f"{os.path.basename(name)}: mutable global {symbol} in {section}"
    if not seen:
        yield f"{archive}: readelf finds no symbols"


def check_names(archive):
    """The global names that a host's linker sees."""
    done = subprocess.run(["nm", "--defined-only", "--extern-only", "--portability", archive], capture_output=True, text=True)
    names = [line.split()[0] for line in done.stdout.splitlines() if len(line.split()) >= 2]
    if "qn_vm_open" not in names:
        yield f"{archive}: nm does not find qn_vm_open"
    for name in names:
        if not name.startswith("qn_"):
            yield f"{os.path.basename(archive)}: a host's linker sees {name}"


def main():
    if sys.argv[1:2] == ["--includes"] and len(sys.argv) in (3, 4):
        return print_includes(sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else None)
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    root = sys.argv[1]
    bad = [line for check in (check_includes, check_circles, check_devices, check_door, check_recorder, check_files) for line in check(root)]
    if len(sys.argv) == 4:
        bad += list(check_archive(sys.argv[2])) + list(check_names(sys.argv[3]))
    for line in bad:
        print(line)
    print(f"{len(bad)} violations")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
