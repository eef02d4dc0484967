#!/usr/bin/env python3
"""Measures what the primitives of kops.def and the functions of mathfns.h cost: the numbers of jit/kernel/costs.def.

    cost.py [--cpu avx512|avx2] [--gpu --nvrtc FOLDER --nvdisasm FILE] [--write] [NAME...]

CPU: cycles of one core for 16 elements (f32) or 8 (f64), from loops over arrays in the first-level cache, compiled by cc with the options of
jit/cpu/compile.c: the least of many runs, less what the loop takes without the function. Cycles, not time: a chain of additions tells how long one is.
GPU: issue slots of a warp for one element, from the instructions that NVRTC makes for sm_90: those on the shortest way through the
function (its slow paths are left out) less those of the same kernel without it (functions: for one element more); arithmetic of f64, whose units are half as wide, counts 2.
--write: all of it, and costs.def is written anew, on a machine with AVX-512.
Needs no GPU, but libnvrtc.so.13 (FOLDER) and nvdisasm (of the packages nvidia-cuda-nvrtc==13.0.88 and nvidia-cuda-nvdisasm).
--file FILE measures functions of another text in the place of math.def (NAMEs are then needed)."""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = ["-std=gnu11", "-O2", "-march=native", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
         "-fno-strict-aliasing", "-w"]
CPUS = {"avx512": ["-mprefer-vector-width=512"], "avx2": ["-mno-avx512f", "-mprefer-vector-width=256"]}
TYPES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, "u32": 4, "u64": 8}


TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")
RARE = ("sin", "cos", "tan", "mod")


def rows():
    """(name, arity, has floats, has ints, is a function) of the tables."""
    out = []
    for line in open(os.path.join(ROOT, "jit/kernel/kops.def")):
        m = re.match(r'KOP\((\w+), (\d), "(\w+)"', line)
        if m and not m[1].startswith("arg"):
            out.append((m[1], int(m[2]), "F" in m[3], "I" in m[3], False))
    for line in open(os.path.join(ROOT, "jit/kernel/mathfns.h")):
        m = re.match(r"\s*X\((\w+), (\d), (REAL|NUM|ALL), (\w+)", line)
        if m:
            out.append((m[1], int(m[2]), True, False, True))
    return out


def expression(name, arity, t):
    """C for name applied to x (and y, z), with a result of type t."""
    as_bits = {"f32": "i32", "f64": "i64", "i32": "u32", "i64": "u64", "u32": "i32", "u64": "i64"}
    if name == "cast":
        other = {"f32": "i32", "f64": "i64", "i32": "f32", "i64": "f64"}[t]
        return f"cast_{other}_{t}(bitcast_{t}_{other}(x))"
    if name in ("cast_f16", "cast_bf16"):
        return f"cast_{name[5:]}_{t}(cast_{t}_{name[5:]}(x))"
    if name == "philox_uniform":
        return f"philox_uniform_{t}({'bitcast_f64_u64(x)' if t == 'f64' else 'cast_u32_u64(bitcast_f32_u32(x))'})"
    if name == "bitcast":
        return f"bitcast_{as_bits[t]}_{t}(bitcast_{t}_{as_bits[t]}(x))"
    if name in TESTS[:6]:
        return f"select_{t}({name}_{t}(x, y), x, z)"
    if name == "select":
        return f"select_{t}(lt_{t}(y, z), x, z)"
    if name in TESTS:
        return f"select_{t}({name}_{t}(x), y, x)"
    return f"{name}{'_fast' if name in RARE and t[0] == 'f' else ''}_{t}({', '.join('xyz'[:arity])})"


def step(t):
    """What stands between the links of a chain, so that a compiler cannot make one of two."""
    return f"x = fma_{t}(x, z, y);" if t[0] == "f" else f"x = add_{t}(xor_{t}(x, z), y);"


def body(name, arity, t, deep):
    """C for a chain of `deep` applications, and for what it stands in."""
    one = f"x = {expression(name, arity, t)};"
    return (one, "") if deep == 1 else ((one + step(t)) * deep, step(t) * deep)


def floats_only(name):
    return name in ("div", "fma", "floor", "ceil", "rint", "trunc", "sqrt")


def cpu(items, kind, extra, text):
    """Cycles for 64 bytes of operands."""
    src = ['#include "%s/jit/kernel/prims.h"' % ROOT if not text else '#include "%s"' % text,
           "#include <stdio.h>\n#include <x86intrin.h>\nenum { N = 1024 };\n"
           "#define LOOP(name, T, ...) __attribute__((noinline)) static void name(T *o, const T *a, const T *b, const T *c) {\\\n"
           " _Pragma(\"omp simd\") for (long i = 0; i < N; i++) { T x = a[i], y = b[i], z = c[i]; __VA_ARGS__; o[i] = x; } }"]
    calls = []
    for t, size in TYPES.items():
        src.append(f"static {t} a_{t}[N] __attribute__((aligned(64))), b_{t}[N] __attribute__((aligned(64))), c_{t}[N] __attribute__((aligned(64))), o_{t}[N] __attribute__((aligned(64)));")
    for name, arity, t, deep in items:
        # the operands are what ordinary data is: positive, near 1
        chain, without = body(name, arity, t, deep)
        src.append(f"LOOP(f_{name}_{t}, {t}, {chain})\nLOOP(base_{name}_{t}, {t}, {without})")
        calls.append(f'  report("{name}", "{t}", least((fn)f_{name}_{t}, a_{t}, b_{t}, c_{t}, o_{t}), least((fn)base_{name}_{t}, a_{t}, b_{t}, c_{t}, o_{t}), {deep}, {TYPES[t]});')
    src.append("""
typedef void (*fn)(void *, const void *, const void *, const void *);
static double ghz; /* cycles of a core a tick of the clock */
static double least(fn f, const void *a, const void *b, const void *c, void *o) {
  double best = 1e30;
  for (int i = 0; i < 400; i++) {
    unsigned long t = __rdtsc();
    for (int k = 0; k < 4; k++) f(o, a, b, c);
    double d = (__rdtsc() - t) / 4.0;
    if (d < best) best = d;
    __asm__ volatile("" ::: "memory");
  }
  return best * ghz;
}
static void report(const char *name, const char *t, double with, double without, int deep, int size) {
  double v = (with - without) / deep / (N * size / 64);
  printf("%s %s %.2f\\n", name, t, v < 0 ? 0 : v);
}
int main(void) {
  unsigned long best = ~0ul;
  for (int i = 0; i < 2000; i++) {
    unsigned long t = __rdtsc(), x = 1;
    for (int k = 0; k < 1000; k++) __asm__ volatile("add $1, %0" : "+r"(x));
    t = __rdtsc() - t;
    if (t < best) best = t;
  }
  ghz = 1000.0 / best;
""")
    for t in TYPES:
        src.append(f"  for (int i = 0; i < N; i++) a_{t}[i] = ({t})(1 + (i * 37 % 101) * 0.01), b_{t}[i] = ({t})(1 + (i * 53 % 97) * 0.01), c_{t}[i] = ({t})(1.5 + (i % 7) * 0.1);")
    src += calls + ["}"]
    with tempfile.TemporaryDirectory() as d:
        open(d + "/c.c", "w").write("\n".join(src))
        subprocess.run(["gcc", *FLAGS, *CPUS[kind], *extra, "-I", ROOT, "-o", d + "/c", d + "/c.c", "-lm"], check=True)
        return {tuple(l.split()[:2]): float(l.split()[2]) for l in subprocess.run([d + "/c"], check=True, capture_output=True, text=True).stdout.splitlines()}


WORDS = """typedef unsigned char b8; typedef unsigned char u8; typedef signed char i8; typedef short i16; typedef unsigned short u16; typedef int i32; typedef unsigned u32;
typedef long long i64; typedef unsigned long long u64; typedef unsigned short f16, bf16; typedef float f32; typedef double f64;
#define FN static __device__ __forceinline__
#define FN_SLOW static __device__ __noinline__
#define FMA32 __fmaf_rn
#define FMA64 __fma_rn
#define FLOOR32 floorf
#define FLOOR64 floor
#define CEIL32 ceilf
#define CEIL64 ceil
#define RINT32 rintf
#define RINT64 rint
#define TRUNC32 truncf
#define TRUNC64 trunc
#define SQRT32 __fsqrt_rn
#define SQRT64 __dsqrt_rn
#define MULHI64(a, b) __umul64hi(a, b)
#define INF32 __int_as_float(0x7f800000)
#define INF64 __longlong_as_double(0x7ff0000000000000ll)
#define NAN32 __int_as_float(0x7fc00000)
#define NAN64 __longlong_as_double(0x7ff8000000000000ll)
"""
TABLES = """#define F32(x) x##f
#define F64(x) x
#define I32(x) x
#define U32(x) x##u
#define U64(x) x##ull
#define PRIM(R, name, params, ...) @FN R name params { __VA_ARGS__ }
#include "jit/kernel/prims.def"
#define HELPER(R, name, params, ...) @FN R name params { __VA_ARGS__ }
#define SLOW(R, name, params, ...) @FN_SLOW R name params { __VA_ARGS__ }
#define MATH1(R, name, T, ...) @FN R name##_##T(T a) { __VA_ARGS__ }
#define MATH2(R, name, T, ...) @FN R name##_##T(T a, T b) { __VA_ARGS__ }
#define MATH_RARE1(name, T) @FN T name##_##T(T a) { return name##_rare_##T(a) ? name##_slow_##T(a) : name##_fast_##T(a); }
#define MATH_RARE2(name, T) @FN T name##_##T(T a, T b) { return name##_rare_##T(a, b) ? name##_slow_##T(a, b) : name##_fast_##T(a, b); }
#include "%s"
"""


def definitions(file):
    """The primitives and functions as CUDA C."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
        f.write(TABLES % file)
        f.flush()
        out = subprocess.run(["gcc", "-E", "-P", "-I", ROOT, f.name], check=True, capture_output=True, text=True).stdout
    own, parts = own_texts(), out.split("@")
    for k, part in enumerate(parts):
        m = re.match(r"FN\w* \w+ (\w+)\s*\([^)]*\) \{", part)
        if m and m[1] in own:
            parts[k] = m[0] + own[m[1]] + " }\n"
    return WORDS + "".join(parts)


def own_texts():
    """The bodies that math.c gives to CUDA in place of those of the tables, by name."""
    text = open(os.path.join(ROOT, "jit/kernel/math.c")).read()
    table = text[text.index("cuda_texts[] = {"):]
    out = {}
    for name, strings in re.findall(r'\{"(\w+)",((?:\s*"(?:[^"\\]|\\.)*")+)\}', table[: table.index("\n};")]):
        out[name] = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', strings)).replace('\\"', '"')
    return out


def nvrtc(folder, text):
    ctypes.CDLL(os.path.join(folder, "libnvrtc-builtins.so.13.0"), mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(os.path.join(folder, "libnvrtc.so.13"))
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None)
    options = ["-arch=sm_90", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-w", "-I" + ROOT]
    rc = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options]))
    if rc:
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode()[:3000])
    size = ctypes.c_size_t()
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def weight(op):
    return 2 if re.match(r"D(ADD|MUL|FMA|SETP|MNMX)", op) else 1


def shortest(lines):
    """The least weight of a way from the first instruction to EXIT."""
    at, code = {}, []
    label = {}
    for l in lines:
        m = re.match(r"\s*(\.L_\w+):", l)
        if m:
            label[m[1]] = len(code)
            continue
        m = re.match(r"\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z0-9_.]+)\s*(.*?);", l)
        if m:
            code.append((m[2], m[3], m[4]))
    n = len(code)
    far = [None] * (n + 1)
    # ways only go forward but for calls, which are slow paths; and the trap at the end
    for i in range(n - 1, -1, -1):
        p, op, args = code[i]
        nexts = []
        if op.startswith("EXIT") and not p:
            far[i] = 1
            continue
        if op.startswith("CALL") or op.startswith("RET"):
            continue
        if op.startswith("BRA"):
            m = re.search(r"(\.L_\w+)", args)
            j = label.get(m[1]) if m else None
            if j is not None and j > i:
                nexts.append(j)
            if p:
                nexts.append(i + 1)
        else:
            nexts.append(i + 1)
        ways = [far[j] for j in nexts if j <= n and far[j] is not None]
        if ways:
            far[i] = min(ways) + (0 if op == "NOP" else weight(op))
    return far[0], sum(c[1].startswith("MUFU") for c in code)


def gpu(items, folder, nvdisasm, text):
    src = [definitions(text or "jit/kernel/math.def")]
    for name, arity, t, deep in items:
        chain, without = body(name, arity, t, deep)
        if deep == 1:  # what a second element takes: constants are in registers then
            without = chain
            chain += " { %s w = x; x = z; %s z = x; x = w; }" % (t, chain)
        for k, text in zip(("f", "base"), (chain, without)):
            src.append(f'extern "C" __global__ void {k}_{name}_{t}({t} *o, const {t} *a, const {t} *b, const {t} *c) {{ int i = blockIdx.x * 64 + threadIdx.x; '
                       f"{t} x = a[i], y = b[i], z = c[i]; {text} o[i] = x; o[i + 64] = y; o[i + 128] = z; }}")
    with tempfile.TemporaryDirectory() as d:
        open(d + "/k.cubin", "wb").write(nvrtc(folder, "\n".join(src)))
        out = subprocess.run([nvdisasm, "-c", d + "/k.cubin"], check=True, capture_output=True, text=True).stdout
    found, name = {}, None
    for l in out.splitlines():
        m = re.match(r"\.text\.(\w+):", l.strip())
        if m:
            name = m[1]
            found[name] = []
        elif name and not l.startswith("\t.section"):
            found[name].append(l)
        elif l.startswith("\t.section"):
            name = None
    got = {}
    for name, arity, t, deep in items:
        got[name, t] = (shortest(found[f"f_{name}_{t}"])[0] - shortest(found[f"base_{name}_{t}"])[0]) / deep
        if os.environ.get("DUMP") == name:
            print("\n".join(found[f"f_{name}_{t}"]))
    return got


HEAD = """/* What the primitives of kops.def and the functions of mathfns.h cost: COST_KOP and COST_MATH(name, six numbers), for operands
 * of 4 bytes and for those of 8, as tests/fit/cost.py has measured it: `cost.py --write` writes this file.
 *
 *   avx512, avx2  cycles of a core for 64 bytes of operands (16 of f32, 8 of f64) in a vector loop with nothing to wait for; functions
 *                 with a form for rare arguments: the fast form
 *   gpu           issue slots of a warp for one element of each thread, on sm_90, where constants lie in registers
 *
 * The CPU was an Intel Xeon with AVX-512 (Sapphire Rapids) and gcc 12. Integers of one or two bytes cost what those of four do for as many bytes,
 * at best. COST_CAST has casts that take more than `cast`: to and from f16 and bf16, both ways together.
 *
 *                     4 bytes: avx512   avx2    gpu    8 bytes: avx512   avx2    gpu */
"""


def write(got):
    def numbers(name, a, b):
        out = []
        for t in (a, b):
            for target in ("avx512", "avx2", "gpu"):
                v = got[target].get((name, t), 0)
                if name in TESTS:  # measured with the select that uses them
                    v -= got[target]["select", t]
                if name not in ("copy", "bitcast") and (name != "neg" and name != "abs" or t[0] != "f"):
                    v = max(v, {"avx512": 0.5, "avx2": 0.7, "gpu": 1 if t[1:] == "32" else 2}[target])
                out.append("%.4g" % (round(v * 4) / 4 if target != "gpu" else round(v)))
        return ", ".join("%6s" % v for v in out)

    text = HEAD
    for name, arity, fl, ints, fn in rows():
        a, b = ("f32", "f64") if fl else ("u32", "u64") if name == "mulhi" else ("i32", "i64")
        text += "COST_%s(%-10s %s)\n" % ("MATH" if fn else "KOP", name + ",", numbers(name, a, b))
    for name in ("f16", "bf16"):
        text += "COST_CAST(%-10s%s)\n" % (name + ",", numbers("cast_" + name, "f32", "f64"))
    open(os.path.join(ROOT, "jit/kernel/costs.def"), "w").write(text)


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("--cpu", action="append", choices=list(CPUS), default=[])
    a.add_argument("--gpu", action="store_true")
    a.add_argument("--nvrtc", default=os.environ.get("QUERN_NVRTC", ""))
    a.add_argument("--nvdisasm", default=os.environ.get("NVDISASM", "nvdisasm"))
    a.add_argument("--types", default="f32,f64,i32,i64")
    a.add_argument("--text", help="a header like prims.h instead of it (CPU)")
    a.add_argument("--file", help="a file like math.def instead of it (GPU)")
    a.add_argument("--write", action="store_true")
    a.add_argument("names", nargs="*")
    o = a.parse_args()
    if o.write:
        o.cpu, o.gpu, o.types, o.names = list(CPUS), True, "f32,f64,i32,i64", []
    items = []
    for name, arity, fl, ints, fn in rows() + [("cast_f16", 1, True, False, False), ("cast_bf16", 1, True, False, False)]:
        if o.names and name not in o.names:
            continue
        for t in o.types.split(","):
            if name == "mulhi":
                if t[0] != "i":
                    continue
                t = "u" + t[1:]
            if (t[0] == "f" and fl) or (t[0] != "f" and ints and not floats_only(name)):
                items.append((name, arity, t, 1 if fn or name in ("idiv", "imod", "ipow", "cast_f16", "cast_bf16") else 8))
    known = {r[0] for r in rows()}
    items += [(n, 1, t, 1) for n in o.names if n not in known for t in o.types.split(",")]
    got = [(c, cpu(items, c, [], o.text)) for c in o.cpu]
    if o.gpu:
        got.append(("gpu", gpu(items, o.nvrtc, o.nvdisasm, o.file)))
    if o.write:
        write(dict(got))
    print("%-16s" % "" + "".join("%10s" % c for c, _ in got))
    for name, arity, t, deep in dict.fromkeys(items):
        print("%-16s" % (name + "_" + t) + "".join("%10.2f" % g[name, t] for _, g in got))
