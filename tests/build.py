#!/usr/bin/env python3
"""How the library is configured by those who did not write it: build.py CASE ROOT

types       every usual build type configures, with the flags that it promises: warnings are errors in CI and checked builds alone
subproject  a host that has the sources in a folder of its own, with a build type of its own or none

Nothing is compiled but what CMake tries: hosts that link the library are built beside it.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile


def configure(source, *flags, env=None):
    """Configures in a new folder; the flags of the compiler by file, as compile_commands.json has them."""
    with tempfile.TemporaryDirectory() as folder:
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        command = ["cmake", "-S", source, "-B", folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-Wno-dev", *ninja, *flags]
        clean = {k: v for k, v in os.environ.items() if k != "CI"}
        done = subprocess.run(command, capture_output=True, text=True, env={**clean, **(env or {})})
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as f:
            return {os.path.basename(row["file"]): row["command"].split() for row in json.load(f)}


def optimisation(flags):
    return [f for f in flags if f.startswith("-O")]


def case_types(root):
    wanted = {"": "-O2", "Release": "-O2", "Debug": None, "RelWithDebInfo": "-O2", "MinSizeRel": "-Os", "Checked": "-O2",
              "Sanitize": "-O1"}
    for name, level in wanted.items():
        flags = configure(root, f"-DCMAKE_BUILD_TYPE={name}", "-DQN_TESTS=OFF")["value.c"]
        assert optimisation(flags) == ([level] if level else []), (name, flags)
        assert ("-Werror" in flags) == (name in ("Checked", "Sanitize")), (name, flags)
        assert ("-DQN_CHECKED=1" in flags) == (name in ("Checked", "Sanitize")), (name, flags)
    for compiler in filter(shutil.which, ("gcc", "clang")):
        flags = configure(root, f"-DCMAKE_C_COMPILER={compiler}", "-DQN_TESTS=OFF", env={"CI": "true"})["value.c"]
        assert "-Werror" in flags, flags


HOST = """cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES C)
add_subdirectory({root} quern)
add_executable(host host.c)
target_link_libraries(host PRIVATE quern)
"""


def case_subproject(root):
    with tempfile.TemporaryDirectory() as host:
        with open(os.path.join(host, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write(HOST.format(root=root))
        with open(os.path.join(host, "host.c"), "w", encoding="utf-8") as f:
            f.write('#include "lang/quern.h"\nint main(void) { return qn_vm_open(NULL) == NULL; }\n')
        for name, level in {"": "-O2", "Debug": None, "Release": "-O3", "RelWithDebInfo": "-O2"}.items():
            files = configure(host, f"-DCMAKE_BUILD_TYPE={name}", env={"CI": "true"})
            assert "test_value.c" not in files and "cli.c" in files, sorted(files)
            flags = files["value.c"]
            assert optimisation(flags) == ([level] if level else []), (name, flags)
            assert "-Werror" not in flags, flags
            # The host's own files see the header and none of our flags.
            assert f"-I{root}" in files["host.c"] and "-fvisibility=hidden" not in files["host.c"], files["host.c"]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    globals()["case_" + sys.argv[1]](os.path.realpath(sys.argv[2]))
