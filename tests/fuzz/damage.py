#!/usr/bin/env python3
"""Random damage of the files that Quern reads: data files, and the kernel cache.

  damage.py [--quern build/quern] [--seed N|random] [--count N] [--seconds 10] npy | npz | safetensors | csv | png | qnx | cache

npy ...    Good files are changed at random: bits and bytes, cuts, repeats, splices, header numbers that lie; for .npz also
           members that are damaged inside a sound archive, for .png also chunks whose checksums are right again, for .safetensors
           the header's text, for .qnx anything under a hash that is right again; what still loads is called. A script loads them one after the other and catches what happens: each must load or give one of
           the errors that say what is wrong; the process must live.
cache      Files of a filled kernel cache are changed, cut, exchanged, or replaced by folders, links and pipes. The program
           must print what it prints without a cache.

File i (or damage i of the cache) has the seed N + i; what failed is described, with its seed.
"""
import argparse
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib

import numpy as np

LOAD = """
fn told(path) = try {
  let v = load(path)
  let text = "{v}"
  if len(text) > 0 { "fine" } else { "empty" }
} catch e { e.id }
for path in args { print(told(path)) }
"""
LOAD_AND_CALL = """
fn called(f) = try {
  f()
  nil
} catch e {
  assert(e.id != "E802" and e.id != "E803", e.message)
  e.id
}
fn told(path) {
  let g = try { load(path) } catch e { return e.id }
  assert(str(g) == str(graph(str(g))), "the text of a graph is not that of its parse")
  let floats = map(g.inputs, fn(i) i)
  for args in ((ones(4, 9),), (ones(3),), (ones(5), [1, 2]), (ones(90),), (2.0,), (ones(2), 3), (ones(2),), ([1.0], [2.0]), (ones(5), [7, -9])) {
    called(fn() g(..args))
    called(fn() grad(fn(x) tree_leaves(g(x, ..args[1:]))[0].sum())(args[0]))
    called(fn() vmap(g, in_axes: nil)(..args))
  }
  "fine"
}
for path in args { print(told(path)) }
"""
ALLOWED = {"fine", "E201", "E205", "E206", "E502", "E601", "E605"}
NUMBERS = [0, 1, 2, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**48 + 1, 2**62, 2**63 - 1, 2**63,
           2**64 - 1, 2**64, 10**30, -1, -2**63]
BATCH = 100


# ---- changing bytes --------------------------------------------------------------------------------------------------
def change(r, data, others):
    """One random change of some bytes."""
    data = bytearray(data)
    n = len(data)
    at = r.randrange(n) if n else 0
    kind = r.randrange(9)
    if kind == 0 and n:
        data[at] ^= 1 << r.randrange(8)
    elif kind == 1 and n:
        data[at] = r.choice([0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)])
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        del data[at:at + r.randrange(1, 40)]
    elif kind == 4:
        data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 20)))
    elif kind == 5:
        data[at:at] = data[at:at + r.randrange(1, 200)] * r.randrange(1, 50)
    elif kind == 6:
        other = r.choice(others)
        data[at:] = other[r.randrange(len(other) + 1):]
    elif kind == 7 and n >= 8:  # a field of 2, 4 or 8 bytes
        size = r.choice([2, 4, 8])
        at = r.randrange(n - size + 1)
        data[at:at + size] = (r.choice(NUMBERS) % 2**(8 * size)).to_bytes(size, "little")
    else:
        data += bytes(r.randrange(256) for _ in range(r.randrange(1, 100)))
    return bytes(data)


def change_header(r, data):
    """A .npy file whose header's text is changed; its length may still be right."""
    size = int.from_bytes(data[8:10], "little")
    text = data[10:10 + size].decode("latin-1")
    for _ in range(r.randrange(1, 4)):
        kind = r.randrange(6)
        if kind == 0:
            shape = ", ".join(str(r.choice(NUMBERS)) for _ in range(r.randrange(0, 12)))
            text = text[:text.find("(")] + "(" + shape + ("," if r.random() < 0.5 else "") + text[text.find(")"):]
        elif kind == 1:
            text = text.replace("<f4", r.choice(["<f8", ">f4", "<i8", "|b1", "<u8", "<c16", "|S5", "O", "", "<f", "<f44", "[('a', '<f4')]"]))
        elif kind == 2:
            text = text.replace("False", r.choice(["True", "0", "None", "Fals"]))
        elif kind == 3:
            at = r.randrange(len(text) + 1)
            text = text[:at] + r.choice(["(", ")", "{", "}", "'", '"', ",", ":", "\\", "\0", "[", "{" * 2000, "(" * 2000]) + text[at:]
        elif kind == 4:
            at = r.randrange(len(text) + 1)
            text = text[:at] + text[at + r.randrange(1, 8):]
        else:
            text = text.replace("descr", r.choice(["shape", "descr' : '<f4', 'descr", "x" * 500]))
    body = text.encode("latin-1", "replace")
    return data[:8] + (len(body) % 65536).to_bytes(2, "little") + body + data[10 + size:]


# ---- good files ------------------------------------------------------------------------------------------------------
def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def good_npy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5))
    files = [npy(x.astype("<f4")), npy(x.astype(">f8")), npy(np.asfortranarray(x.astype("<f4"))), npy(np.arange(7)), npy(x > 0),
             npy(np.float32(3)), npy(np.zeros((0, 5), "<f4")), npy((x * 9).astype("<u2")), npy((x * 9).astype("<i1")),
             npy(np.arange(9, dtype="<u8")), npy(x.astype("<f2")), npy(x.astype("<f4"), (2, 0)), npy(np.ones((1,) * 8, "<f4"))]
    return files


def archive(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(name, data)
    return out.getvalue()


def damaged_npy(r, good):
    data = r.choice(good)
    if r.random() < 0.5:
        data = change_header(r, data)
    for _ in range(r.choice([0, 1, 1, 2, 5])):
        data = change(r, data, good)
    return data


def damaged_npz(r, good):
    method = r.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    if r.random() < 0.4:  # damage inside a sound archive
        names = ["a.npy", "b.npy", "a.b.npy", "c", ".npy", "x" * 300 + ".npy", "\u00e9.npy", "../a.npy"]
        return archive([(name, damaged_npy(r, good)) for name in r.sample(names, r.randrange(0, 4))], method)
    data = archive([("a.npy", r.choice(good)), ("b.npy", r.choice(good)), ("zeros.npy", npy(np.zeros(50000)))][:r.randrange(1, 4)], method)
    others = [data, good[0]]
    for _ in range(r.choice([1, 1, 2, 5])):
        if r.random() < 0.5:  # near the directory, where all the numbers are
            at = max(data.find(b"PK\x01\x02"), 0)
            data = data[:at] + change(r, data[at:], others)
        else:
            data = change(r, data, others)
    return data


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def good_safetensors():
    entry = lambda dtype, shape, a, b: {"dtype": dtype, "shape": shape, "data_offsets": [a, b]}
    return [safetensors({"__metadata__": {"a": "b\u00e9\n"}, "w": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [3], 24, 30)}, bytes(range(30))),
            safetensors({"x": entry("U64", [2], 0, 16), "y": entry("BOOL", [], 16, 17), "z": entry("I8", [0, 5], 17, 17)}, bytes(17)),
            safetensors({f"layer.{i}": entry("F64", [1, 1], 8 * i, 8 * i + 8) for i in range(9)}, bytes(72)), safetensors({}, b"")]


def damaged_safetensors(r, good):
    data = r.choice(good)
    if r.random() < 0.7:
        size = int.from_bytes(data[:8], "little")
        text, rest = data[8:8 + size], data[8 + size:]
        for _ in range(r.randrange(1, 4)):
            at = r.randrange(len(text) + 1)
            kind = r.randrange(5)
            if kind == 0:
                text = text[:at] + r.choice([b"{", b"[" * 3000, b'{"a":' * 3000, b'"', b"\\u", b"\\ud800", b",", b"1e5", b"null", b"\xff", b"\0"]) + text[at:]
            elif kind == 1:
                numbers = list(re.finditer(rb"\d+", text))
                if numbers:
                    found = r.choice(numbers)
                    text = text[:found.start()] + str(r.choice(NUMBERS)).encode() + text[found.end():]
            elif kind == 2:
                text = text.replace(r.choice([b"F32", b"BF16", b"U64", b"shape"]), r.choice([b"F64", b"F8_E4M3", b"I8", b"dtype", b""]))
            elif kind == 3:
                text = text[:at] + text[at + r.randrange(1, 20):]
            else:
                text = text[:at] + text[at - r.randrange(at + 1):]
        data = safetensors(text, rest)
    for _ in range(r.choice([0, 0, 1, 3])):
        data = change(r, data, good)
    return data


def good_csv():
    return [b"1,2\n3,4\n", b"a,b,c\n1,x,\n2.5,\"y \"\"z\"\"\n\",true\n", "\ufeffn;\u00e9\r\n1;2\r\n;nan\r\n".encode(),
            b"\n".join(b"%d,%f,inf" % (i, i / 7) for i in range(200)), b'"a\n', b"\t\t\n"]


def damaged_csv(r, good):
    data = r.choice(good)
    for _ in range(r.randrange(1, 5)):
        if r.random() < 0.5:
            at = r.randrange(len(data) + 1)
            data = data[:at] + r.choice([b",", b'"', b"\n", b"\r", b";", b"1e999", b"-", b"9" * 40, b"\xc3", b"\0", b" ", b"nan", b"," * 5000]) + data[at:]
        else:
            data = change(r, data, good)
    return data


def chunk(name, data):
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def png(width, height, bits, color, raw, interlaced=0, more=()):
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([bits, color, 0, 0, interlaced])
    return [(b"IHDR", head), *more, (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]


def good_png():
    """Lists of chunks."""
    rows = lambda n, height: b"".join(bytes([y % 5]) + bytes(range(n)) for y in range(height))
    return [png(8, 4, 8, 0, rows(8, 4)), png(5, 7, 8, 2, rows(15, 7)), png(3, 3, 16, 6, rows(24, 3)), png(9, 3, 1, 0, rows(2, 3)),
            png(4, 4, 4, 3, rows(2, 4), more=[(b"PLTE", bytes(range(48))), (b"tRNS", b"\1\2\3")]), png(8, 8, 8, 0, rows(1, 200)[:79], 1),
            png(300, 300, 8, 0, bytes(301 * 300)), png(6, 2, 16, 2, rows(36, 2), more=[(b"tRNS", bytes(6))])]


def damaged_png(r, good):
    chunks = [*r.choice(good)]
    for _ in range(r.randrange(0, 3)):
        at = r.randrange(len(chunks))
        name, data = chunks[at]
        kind = r.randrange(7)
        if kind == 0:
            chunks[at] = (name, change(r, data, [b"", data]))
        elif kind == 1 and name == b"IHDR" and len(data) > 12:
            data = bytearray(data)
            data[r.choice([8, 9, 12])] = r.choice([0, 1, 2, 3, 4, 6, 8, 16, 32])
            chunks[at] = (name, bytes(data))
        elif kind == 2 and name == b"IHDR":
            at4 = r.choice([0, 4])
            chunks[at] = (name, data[:at4] + (r.choice(NUMBERS) % 2**32).to_bytes(4, "big") + data[at4 + 4:])
        elif kind == 3 and name == b"IDAT":
            try:
                chunks[at] = (name, zlib.compress(change(r, zlib.decompress(data), [b"", data])))
            except zlib.error:
                pass
        elif kind == 4:
            chunks[at:at] = [r.choice(chunks)]
        elif kind == 5:
            del chunks[at]
            chunks = chunks or [(b"IEND", b"")]
        else:
            chunks[at] = (r.choice([b"PLTE", b"tRNS", b"IDAT", b"IEND", b"IHDR", b"ABCD", b"aBCD"]), data)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks)
    for _ in range(r.choice([0, 0, 0, 1, 2])):
        data = change(r, data, [data])
    return data


QNX = """
seed(3)
let w = {a: randn(9, 40), b: f16(randn(40)), c: (arange(300) > 7), k: 2}
let table = arange(300)
fn mlp(x, scale = 2.0, how = "tanh") = {y: if how == "tanh" { tanh(x @ w.a + w.b) * scale } else { x }, z: (x[0], nil, 1..3, table[:3] + i32(x[0, 0]))}
fn ruled(x) = sum(custom_grad(fn(p, n) p.v ** n, fn(ct, p, n) ({v: ct * n}, nil))({v: x}, 3) + checkpoint(fn(v) tanh(exp(v)))(x))
fn indexed(x, i) = take(x, i) + rand(2)
fn literal(x) = x + stack(map(range(90), fn(i) f32(i)))
let (y, back) = vjp(fn(p, x) p.w * sum(x), {w: 2.0}, ones(3))
let graphs = (graph(mlp, ones(4, 9), 3.0, "tanh"), graph(ruled, ones(3)), graph(indexed, ones(5), [1, 2]), graph(literal, ones(90)), back,
  graph(fn(x, n) if n > 2 { x * n } else { x + n }, ones(2), 3), graph(fn(x) vjp(exp, x), ones(2)), graph(fn(x, ..xs) x + xs[0], [1.0], [2.0]),
  graph(fn(x, i) grad(fn(x) sum(x[i] ** 2))(x), ones(5), [1, 2]), graph(grad(ruled), ones(3)))
for (i, g) in enumerate(graphs) { save("{args[0]}/good{i}.qnx", g) }
"""
HEADER = 64


def good_qnx(quern, folder):
    script = os.path.join(folder, "good.qn")
    with open(script, "w", encoding="utf-8") as f:
        f.write(QNX)
    status, out, err = run(quern, [script, folder], folder)
    if status != 0:
        raise SystemExit(f"FAILED to make good files: {err}")
    files = []
    for i in range(10):
        with open(os.path.join(folder, f"good{i}.qnx"), "rb") as f:
            files.append(f.read())
    return files


def damaged_qnx(r, good):
    data = r.choice(good)
    size = int.from_bytes(data[16:24], "little")
    start = HEADER + (size + 63) // 64 * 64
    text, elements = data[HEADER:HEADER + size], data[start:]
    if r.random() < 0.85:  # changes that the hash does not show
        for _ in range(r.choice([1, 1, 1, 2, 4])):
            kind = r.randrange(8)
            numbers = list(re.finditer(rb"\d+", text))
            if kind < 2 and numbers:  # in the graph's text, whose length stays
                found = r.choice(numbers)
                new = str(r.choice([*range(12), *NUMBERS]) if r.random() < 0.5 else r.randrange(30)).encode()
                width = found.end() - found.start()
                text = text[:found.start()] + (new[:width] if len(new) > width else new.rjust(width, b" ")) + text[found.end():]
            elif kind == 2:
                names = [b"mul", b"add", b"sub", b"exp", b"dot", b"sum", b"f32", b"f16", b"i64", b"fit", b"cos", b"any", b"min", b"i32"]
                text = text.replace(r.choice(names), r.choice(names), r.choice([1, 1, 2, -1]))
            elif kind == 3 and len(text) > 4:  # a number of the structure
                at = r.randrange(len(text) - 4)
                text = text[:at] + (r.choice([*range(9), *NUMBERS]) % 2**32).to_bytes(4, "little") + text[at + 4:]
            elif kind == 4 and text:
                at = r.randrange(len(text))
                text = text[:at] + r.choice(b"aidbevlrgopsnty\0\1\2\3").to_bytes(1, "little") + text[at + 1:]
            elif kind == 5:
                text = change(r, text, [text])
            elif kind == 6:
                elements = change(r, elements, [elements])
            elif text:
                other = r.choice(good)
                at = r.randrange(len(text))
                text = text[:at] + other[HEADER + at:HEADER + at + r.randrange(1, 200)] + text[at + r.randrange(1, 200):]
    body = text + bytes(-len(text) % 64) + elements
    head = data[:8] + (1).to_bytes(4, "little") + bytes(4) + len(text).to_bytes(8, "little") + len(elements).to_bytes(8, "little")
    data = head + hashlib.sha256(head + body).digest() + body
    for _ in range(r.choice([0, 0, 0, 0, 0, 1, 2])):
        data = change(r, data, good)
    return data


KINDS = {"npy": (damaged_npy, good_npy), "npz": (damaged_npz, good_npy), "safetensors": (damaged_safetensors, good_safetensors),
         "csv": (damaged_csv, good_csv), "png": (damaged_png, good_png), "qnx": (damaged_qnx, good_qnx)}


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))


def sanitized(quern):
    with open(quern, "rb") as f:
        return b"__asan_init" in f.read()


def run(quern, args, folder, timeout=120, **how):
    env = dict(os.environ, QUERN_CACHE=os.path.join(folder, "cache"), HOME=folder)
    try:
        done = subprocess.run([quern, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=env, **how)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return None, "", "it does not end"


def fuzz_files(kind, quern, seed, count, end, folder):
    make, good = KINDS[kind][0], KINDS[kind][1](quern, folder) if kind == "qnx" else KINDS[kind][1]()
    script = os.path.join(folder, "load.qn")
    with open(script, "w", encoding="utf-8") as f:
        f.write(LOAD_AND_CALL if kind == "qnx" else LOAD)
    limits = {} if sanitized(quern) else {"preexec_fn": limit_memory}
    number, counts = 0, {}
    while time.monotonic() < end and number < count:
        paths, batch = [], min(BATCH, count - number)
        for i in range(batch):
            paths.append(os.path.join(folder, f"{i}.{kind}"))
            with open(paths[-1], "wb") as f:
                f.write(make(random.Random(f"{kind} {seed + number + i}"), good))
        status, out, err = run(quern, ["--jit", "off", script, *paths], folder, **limits)
        lines = out.splitlines()
        bad = next((i for i, line in enumerate(lines) if line not in ALLOWED), None)
        if bad is None and (status != 0 or len(lines) != batch):
            bad = len(lines)
        if bad is not None:
            with open(paths[min(bad, batch - 1)], "rb") as f:
                data = f.read()
            print(f"FAILED seed {seed + number + bad}: status {status}, said {lines[bad:bad + 1]}\n{err[-3000:]}\n{data[:2000].hex()}")
            return False
        for line in lines:
            counts[line] = counts.get(line, 0) + 1
        number += batch
    print(f"{number} damaged .{kind} files: {counts}")
    return number > 0


# ---- the cache ---------------------------------------------------------------------------------------------------------
PROGRAM = """
fn f(x) = tanh(x * 2 + 1) * x
fn g(x) = softmax(x.reshape(10, -1), axis: -1)
fn h(x, y) = sum(exp(x) - y ** 2)
fn p(x) = x.reshape(25, 40) @ x.reshape(40, 25)
let x = arange(1000) / 100
let s = 0.0
for _ in 0..3 { s += float(sum(f(x))) + float(max(g(x))) + float(h(x, x + 1)) + float(sum(p(x))) }
print(s)
"""


def damage_cache(r, names):
    """Damages some files; says what it did."""
    did = []
    for name in r.sample(names, r.randrange(1, len(names) + 1)):
        with open(name, "rb") as f:
            data = f.read()
        kind = r.randrange(9)
        did.append(f"{os.path.basename(name)[:8]}: {kind}")
        if kind == 0:
            other = r.choice(names)
            if os.path.isfile(other):
                with open(other, "rb") as f:
                    data = f.read()
        elif kind == 1:
            data = b""
        elif kind == 2:
            os.remove(name)
            os.mkdir(name)
            continue
        elif kind == 3:
            os.remove(name)
            os.symlink(r.choice([name, "/dev/zero", "/nowhere"]), name)
            continue
        elif kind == 4:
            os.remove(name)
            os.mkfifo(name)
            continue
        else:
            for _ in range(r.choice([1, 1, 3])):
                data = change(r, data, [data, b"\x7fELF"])
        with open(name, "wb") as f:
            f.write(data)
    return ", ".join(did)


def fuzz_cache(quern, seed, count, end, folder):
    script, cache, pristine = (os.path.join(folder, name) for name in ("program.qn", "cache", "pristine"))
    with open(script, "w", encoding="utf-8") as f:
        f.write(PROGRAM)
    flags = ["--jit", "sync", "--set", "jit.hot=1", "--threads", "1"]
    want = run(quern, ["--jit", "off", script], folder)[1]
    status, out, err = run(quern, [*flags, script], folder)
    if status != 0 or out != want or not want:
        print(f"FAILED before any damage: status {status}\n{out}{err}")
        return False
    shutil.copytree(cache, pristine)
    number = 0
    while time.monotonic() < end and number < count:
        shutil.rmtree(cache)
        shutil.copytree(pristine, cache)
        files = sorted(os.path.join(d, f) for d, _, names in os.walk(cache) for f in names)
        did = damage_cache(random.Random(f"cache {seed + number}"), files)
        status, out, err = run(quern, [*flags, script], folder)
        if status != 0 or out != want:
            print(f"FAILED seed {seed + number} ({did}): status {status}\n{out}{err[-3000:]}")
            return False
        number += 1
    print(f"{number} damaged caches of {len(files)} files")
    return number > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=[*KINDS, "cache"])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", default="1", help="of the first file, or random")
    parser.add_argument("--count", type=int, default=10000000, help="files or caches at most")
    options = parser.parse_args()
    seed = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    quern, end = os.path.abspath(options.quern), time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="quern-damage-") as folder:
        if options.kind == "cache":
            good = fuzz_cache(quern, seed, options.count, end, folder)
        else:
            good = fuzz_files(options.kind, quern, seed, options.count, end, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
