#!/usr/bin/env python3
"""Files between Quern and others: files.py [--quern build/quern] [--seed N|random] [--count N] [--seconds S] npy | safetensors | csv | png

What Python's struct, zlib, json, csv and NumPy write, Quern must read to the same values; what Quern saves, they must read. Each
kind of file is taken apart and put together here by hand, from its specification, in every dtype and with random shapes. The
values are compared through .npy files, which NumPy and Quern share (`npy` tests these). Round i has the seed N + i.
"""
import argparse
import csv
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib

import numpy as np


class Place:
    """A folder, and scripts that run in it."""

    def __init__(self, quern, folder):
        self.quern, self.folder = quern, folder

    def at(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, data):
        with open(self.at(name), "wb") as f:
            f.write(data)

    def get(self, name):
        with open(self.at(name), "rb") as f:
            return f.read()

    def run(self, script):
        env = dict(os.environ, QUERN_CACHE=self.at("cache"))
        done = subprocess.run([self.quern, "--jit", "off", "-e", script], cwd=self.folder, env=env, capture_output=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"FAILED: this script ends with status {done.returncode}:\n{script}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def put_array(self, name, array):
        np.save(self.at(name), array)

    def array(self, name):
        return np.load(self.at(name))


def check(good, *what):
    if not good:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def random_array(r, dtype, shape):
    raw = np.frombuffer(r.randbytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype="u1")
    if dtype == "?":
        return (raw & 1).astype("?").reshape(shape)
    return raw.view(dtype).reshape(shape)


def random_shape(r, ranks):
    return tuple(r.randrange(0, 6) if r.random() < 0.1 else r.randrange(1, 9) for _ in range(r.choice(ranks)))


# What arrays hold of the dtypes that files have.
WIDENED = {"u2": "i4", "u4": "i8", "u8": "i8"}
DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


# ---- .npy -------------------------------------------------------------------------------------------------------------
def test_npy(r, place):
    script = []
    arrays = {}
    for i, dtype in enumerate(DTYPES * 4 + ["u2", "u4"] * 2):
        a = random_array(r, dtype, random_shape(r, [0, 1, 2, 3, 4]))
        if r.random() < 0.3 and dtype != "?":
            a = a.astype(np.dtype(dtype).newbyteorder(">"))
        if r.random() < 0.3:
            a = np.asfortranarray(a)
        arrays[i] = a
        place.put_array(f"{i}.npy", a)
        script.append(f'save("out{i}.npy", load("{i}.npy"))')
    place.run("\n".join(script))
    for i, a in arrays.items():
        want = a.astype(WIDENED.get(a.dtype.str[1:], a.dtype.newbyteorder("=")))
        check(same(np.ascontiguousarray(want).reshape(a.shape), place.array(f"out{i}.npy")), a.dtype, a.shape)


# ---- .safetensors -------------------------------------------------------------------------------------------------------
NAMES = {"?": "BOOL", "u1": "U8", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "f2": "F16", "f4": "F32", "f8": "F64",
         "u2": "U16", "u4": "U32", "u8": "U64"}


def pack_safetensors(r, tensors, metadata=None):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name in r.sample(sorted(tensors), len(tensors)):
        kind, a = tensors[name]
        raw = a.tobytes()
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, ensure_ascii=r.random() < 0.5, indent=r.choice([None, 1])).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def unpack_safetensors(data):
    """{name: (dtype, shape, bytes)}, metadata; checks what the format demands."""
    size = struct.unpack("<Q", data[:8])[0]
    check(size % 8 == 0, "the header's length", size)
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    metadata = header.pop("__metadata__", None)
    at = 0
    for entry in sorted(header.values(), key=lambda e: e["data_offsets"]):
        check(entry["data_offsets"][0] == at, "a gap at", at)
        at = entry["data_offsets"][1]
        width = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}.get(entry["dtype"], 1)
        check(entry["data_offsets"][0] % width == 0, "unaligned elements", entry)
    check(at == len(body), "bytes behind the last array")
    return {name: (e["dtype"], tuple(e["shape"]), body[slice(*e["data_offsets"])]) for name, e in header.items()}, metadata


def test_safetensors(r, place):
    tensors = {}
    names = ["w", "layers.0.w", "ünïcode", 'quote"s', "back\\slash", "tab\t", "\U0001f600", "a b"]
    for i, dtype in enumerate(DTYPES + ["u2", "u4", "u8"] + r.choices(DTYPES, k=8)):
        a = random_array(r, dtype, random_shape(r, [0, 1, 2, 3]))
        if dtype == "u8":
            a = a >> np.uint64(1)
        tensors[names[i] if i < len(names) else f"t{i}"] = (NAMES[dtype], a)
    tensors["half"] = ("BF16", random_array(r, "u2", (3, 5)))
    place.put("in.safetensors", pack_safetensors(r, tensors, {"format": "pt", "note": 'a "b"\n\u00e9'}))
    place.run('let t = load("in.safetensors")\nsave("out.safetensors", t)\nassert(t["__metadata__"].format == "pt")\n'
              'assert(t.half.dtype == bf16)\nsave("half.npy", f32(t.half))')
    out, metadata = unpack_safetensors(place.get("out.safetensors"))
    check(metadata == {"format": "pt", "note": 'a "b"\n\u00e9'}, metadata)
    check(sorted(out) == sorted(tensors), sorted(out))
    for name, (kind, a) in tensors.items():
        dtype = a.dtype.str[1:]
        if kind != "BF16" and dtype in WIDENED:
            a = a.astype(WIDENED[dtype])
            kind = NAMES[WIDENED[dtype]]
        check(out[name] == (kind, a.shape, a.tobytes()), name, out[name][:2], kind, a.shape)
    half = tensors["half"][1]
    check(same((half.astype("u4") << 16).view("f4"), place.array("half.npy")), "bf16")
    place.run('save("tree.safetensors", {layers: ({w: u8([1, 2, 3]), b: 0.5}, {w: ones(2, 2), b: [true]}), n: 3})')
    out, metadata = unpack_safetensors(place.get("tree.safetensors"))
    check(list(out) == ["layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "n"] and metadata is None, list(out))
    check(out["layers.0.b"] == ("F64", (), struct.pack("<d", 0.5)) and out["n"] == ("I64", (), struct.pack("<q", 3)), out)


# ---- .csv ----------------------------------------------------------------------------------------------------------------
def test_csv(r, place):
    rows = r.randrange(1, 30)
    ints = [r.randrange(-2**40, 2**40) for _ in range(rows)]
    floats = [r.choice([float("nan"), float("inf"), 0.1, -1e300, r.uniform(-9, 9)]) for _ in range(rows)]
    texts = ["".join(r.choice('ab ,;"\n\té') for _ in range(r.randrange(9))) + "x" for _ in range(rows)]
    texts = [t.strip(" \t") for t in texts]
    flags = [r.random() < 0.5 for _ in range(rows)]
    out = io.StringIO()
    w = csv.writer(out, quoting=r.choice([csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]), lineterminator=r.choice(["\n", "\r\n"]))
    w.writerow(["i", "f", "a text", "flag"])
    for row in zip(ints, floats, texts, flags):
        w.writerow(["" if v != v else v for v in row])
    place.put("in.csv", out.getvalue().encode())
    place.run('let t = load("in.csv")\nsave("i.npy", t.i)\nsave("f.npy", t.f)\nsave("flag.npy", t.flag)\nsave("out.csv", t)\n'
              'let b = load("out.csv")\nassert(b["a text"] == t["a text"] and all(b.i == t.i) and all(b.flag == t.flag))')
    check(same(place.array("i.npy"), np.array(ints, "i8")), "ints")
    check(np.array_equal(place.array("f.npy"), np.array(floats), equal_nan=True), floats)
    check(same(place.array("flag.npy"), np.array(flags)), "bools")
    back = list(csv.reader(io.StringIO(place.get("out.csv").decode(), newline="")))
    check(back[0] == ["i", "f", "a text", "flag"], back[0])
    check([b[2] for b in back[1:]] == texts, [b[2] for b in back[1:]], texts)
    check([int(b[0]) for b in back[1:]] == ints, "ints written")
    check(np.array_equal([float(b[1]) for b in back[1:]], floats, equal_nan=True), "floats written")
    a = random_array(r, "f4", (7, 3)).copy()
    a[np.isnan(a)] = 1.5
    np.savetxt(place.at("plain.csv"), a, delimiter=",")
    place.put_array("a.npy", a)
    place.run('save("plain.npy", f32(load("plain.csv")))\nsave("a.csv", load("a.npy"))')
    check(np.array_equal(place.array("plain.npy"), a), "of savetxt")
    check(np.array_equal(np.loadtxt(place.at("a.csv"), delimiter=",", dtype="f4"), a), "for loadtxt")


# ---- .png ------------------------------------------------------------------------------------------------------------------
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def paeth(a, b, c):
    return min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]


def predict(filter, row, up, i, step):
    a, b, c = (row[i - step] if i >= step else 0), up[i], (up[i - step] if i >= step else 0)
    return [0, a, b, (a + b) // 2, paeth(a, b, c)][filter]


def pack_rows(r, samples, bits):
    """samples[h, w * channels] as filtered bytes."""
    out, up = b"", None
    for line in samples:
        if bits == 16:
            row = line.astype(">u2").tobytes()
        elif bits == 8:
            row = line.astype("u1").tobytes()
        else:
            text = "".join(format(v, f"0{bits}b") for v in line)
            text += "0" * (-len(text) % 8)
            row = bytes(int(text[i:i + 8], 2) for i in range(0, len(text), 8))
        up = up or bytes(len(row))
        step = max(1, samples.shape[1] and pack_rows.channels * bits // 8)
        kind = r.randrange(5)
        out += bytes([kind]) + bytes((row[i] - predict(kind, row, up, i, step)) & 255 for i in range(len(row)))
        up = row
    return out


def pack_png(r, pixels, bits, color, palette=None, transparent=None, interlaced=False):
    """pixels[h, w, channels]"""
    h, w, c = pixels.shape
    pack_rows.channels = c
    raw = b""
    for x, y, dx, dy in PASSES if interlaced else [(0, 0, 1, 1)]:
        part = pixels[y::dy, x::dx]
        if part.size:
            raw += pack_rows(r, part.reshape(part.shape[0], -1), bits)
    packed = zlib.compress(raw, r.randrange(0, 10))
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, color, 0, 0, interlaced)) + chunk(b"tEXt", b"a\0b")
    if palette is not None:
        out += chunk(b"PLTE", palette.astype("u1").tobytes())
    if transparent is not None:
        out += chunk(b"tRNS", transparent)
    cuts = sorted(r.randrange(len(packed) + 1) for _ in range(r.randrange(4)))
    for a, b in zip([0] + cuts, cuts + [len(packed)]):
        out += chunk(b"IDAT", packed[a:b])
    return out + chunk(b"IEND", b"")


def unpack_png(data):
    """pixels[h, w, channels], bits; of what Quern writes: not interlaced, no palette."""
    check(data[:8] == b"\x89PNG\r\n\x1a\n", "the beginning")
    at, packed, names = 8, b"", []
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        check(struct.pack(">I", zlib.crc32(name + body)) == data[at + 8 + size:at + 12 + size], "a checksum")
        names.append(name)
        if name == b"IHDR":
            w, h, bits, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
        if name == b"IDAT":
            packed += body
        at += 12 + size
    check(names[0] == b"IHDR" and names[-1] == b"IEND" and not interlaced, names)
    raw, c = zlib.decompress(packed), CHANNELS[color]
    step = c * bits // 8
    n, rows, up = w * step, [], bytes(w * step)
    check(len(raw) == h * (n + 1), "the size of the data")
    for y in range(h):
        filter, line = raw[y * (n + 1)], raw[y * (n + 1) + 1:(y + 1) * (n + 1)]
        row = bytearray(n)
        for i in range(n):
            row[i] = (line[i] + predict(filter, row, up, i, step)) & 255
        up = bytes(row)
        rows.append(up)
    return np.frombuffer(b"".join(rows), ">u2" if bits == 16 else "u1").reshape(h, w, c), bits


def test_png(r, place):
    wants, script = [], []
    kinds = [(0, b) for b in (1, 2, 4, 8, 16)] + [(2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (4, 16), (6, 8), (6, 16)]
    for n, (color, bits, interlaced) in enumerate([k + (i,) for k in kinds for i in (False, True)]):
        h, w, c = r.randrange(1, 20), r.randrange(1, 20), CHANNELS[color]
        ncolors = r.randrange(1, 2**min(bits, 8) + 1)
        pixels = np.array([r.randrange(ncolors if color == 3 else 2**bits) for _ in range(h * w * c)]).reshape(h, w, c)
        palette = np.array([r.randrange(256) for _ in range(3 * ncolors)]).reshape(-1, 3) if color == 3 else None
        transparent, want = None, pixels
        if color == 3:
            want = palette[pixels[..., 0]]
            if r.random() < 0.5:
                transparent = r.randbytes(r.randrange(1, ncolors + 1))
                alpha = np.array(list(transparent) + [255] * 256)
                want = np.concatenate([want, alpha[pixels[..., 0]][..., None]], -1)
        else:
            want = want * (255 // (2**bits - 1)) if bits < 8 else want
            if color in (0, 2) and r.random() < 0.5:
                key = pixels[0, 0]
                transparent = key.astype(">u2").tobytes()
                alpha = np.where((pixels == key).all(-1), 0, 65535 if bits == 16 else 255)
                want = np.concatenate([want, alpha[..., None]], -1)
        place.put(f"{n}.png", pack_png(r, pixels, bits, color, palette, transparent, interlaced))
        script.append(f'let x{n} = load("{n}.png")\nsave("{n}.npy", x{n})\nsave("out{n}.png", x{n})')
        wants.append((want.astype("i4" if bits == 16 else "u1"), (color, bits, interlaced)))
    place.run("\n".join(script))
    for n, (want, kind) in enumerate(wants):
        want3 = want
        want = want[..., 0] if want.shape[2] == 1 else want
        check(same(want, place.array(f"{n}.npy")), "reading", kind, want.shape)
        back, bits = unpack_png(place.get(f"out{n}.png"))
        check(np.array_equal(back, want3) and bits == (16 if want.dtype == "i4" else 8), "writing", kind)
    place.run('save("f.png", [[0.0, 0.5, 1.0], [0.25, 0.1, 0.8]])\nsave("b.png", [[true], [false]])')
    check(unpack_png(place.get("f.png"))[0][..., 0].tolist() == [[0, 128, 255], [64, 26, 204]], "floats")
    check(unpack_png(place.get("b.png"))[0][..., 0].tolist() == [[255], [0]], "bools")


TESTS = {name[5:]: f for name, f in globals().items() if name.startswith("test_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(TESTS))
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--seed", default="1", help="a number, or random")
    parser.add_argument("--count", type=int, default=4, help="rounds at most")
    parser.add_argument("--seconds", type=float, default=200, help="time at most")
    options = parser.parse_args()
    first = int(options.seed) if options.seed != "random" else random.SystemRandom().randrange(1 << 32)
    end, done = time.monotonic() + options.seconds, 0
    while done < options.count and (not done or time.monotonic() < end):
        print(f"seed {first + done}", flush=True)
        with tempfile.TemporaryDirectory(prefix="quern-files-") as folder:
            TESTS[options.kind](random.Random(first + done), Place(os.path.abspath(options.quern), folder))
        done += 1
    print(f"{done} rounds, seeds from {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
