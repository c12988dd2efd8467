#!/usr/bin/env python3
"""The project's own rules, checked: design.md's table of includes, symbols, vector registers, headers, sizes, calls.

usage: lint.py [--build FOLDER]    (objects are looked at only with a build folder)

Every lint is a function from a tree (and a build folder) to complaints. Each one is first run on a bad sample that it
must complain about, since a lint that never speaks is worth nothing. Prints "ok - NAME" or "not ok - NAME" with
the complaints above it, and "N passed, N failed" at the end.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]

# folder of src -> folders whose headers it may include besides its own; margay/status.h is everyone's.
MAY_INCLUDE = {
    "base": set(),
    "cpu": {"base"},
    "kernels": {"base", "cpu"},
    "weights": {"base", "cpu", "kernels"},
    "text": {"base"},
    "image": {"base", "kernels"},
    "model": {"base", "cpu", "kernels", "weights"},
    "store": {"base"},
    "engine": {"base", "cpu", "kernels", "weights", "text", "image", "model", "store", "margay"},
    "net": {"base"},
    "api": {"base", "net", "text", "margay"},
    "server": {"base", "net", "api", "text", "store", "engine", "margay"},
    "cli": {"base", "cpu", "kernels", "weights", "text", "image", "model", "store", "engine", "net", "api", "server", "margay"},
}
TIERS = ("_avx2", "_avxvnni", "_avx512", "_vnni", "_bf16", "_amx")
BANNED = {
    "strcpy", "strcat", "sprintf", "vsprintf", "gets", "atoi", "atol", "atoll", "atof", "strtok", "scanf",
    "alloca", "system", "popen", "rand", "srand", "tmpnam", "mktemp", "exit", "abort", "_Exit", "quick_exit",
}
MAY_EXIT = {"src/cli/main.c"}
MAX_FILE, MAX_FUNCTION, MAX_KERNEL, MAX_COLUMN = 1000, 120, 200, 100


def c_files(root, *folders):
    for folder in folders or ("src", "include", "tests", "examples", "bench"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h") and path.is_file():
                yield path


def rel(root, path):
    return path.relative_to(root).as_posix()


def code_of(text):
    """The text with comments and the insides of strings blanked, lines kept."""
    def blank(m):
        s = m.group()
        return re.sub(r"[^\n]", " ", s) if s.startswith("/") else s[0] + re.sub(r"[^\n]", " ", s[1:-1]) + s[-1]
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.S)


def includes(path):
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)


def resolve(root, path, name):
    for base in (root / "include", root / "src", path.parent):
        if (base / name).is_file():
            return (base / name).resolve()
    return None


def lint_include_direction(root, build):
    for path in c_files(root, "src"):
        folder = rel(root, path).split("/")[1]
        if folder not in MAY_INCLUDE:
            yield f"{rel(root, path)}: folder src/{folder} is not in the table"
            continue
        for name in includes(path):
            to = resolve(root, path, name)
            if to is None:
                yield f"{rel(root, path)}: no header {name}"
                continue
            parts = rel(root.resolve(), to).split("/")
            target = "margay" if parts[0] == "include" else parts[1]
            if to.suffix == ".c":
                yield f"{rel(root, path)}: includes the source {name}"
            if target not in MAY_INCLUDE[folder] | {folder} and name != "margay/status.h":
                yield f"{rel(root, path)}: src/{folder} may not include {name}"
    for path in c_files(root, "include"):
        for name in includes(path):
            if not name.startswith("margay/"):
                yield f"{rel(root, path)}: a public header may not include {name}"


def lint_include_circle(root, build):
    edges = {p.resolve(): [t for t in (resolve(root, p, n) for n in includes(p)) if t]
             for p in c_files(root, "src", "include") if p.suffix == ".h"}
    done, path = set(), []

    def visit(node):
        if node in path:
            names = [n.name for n in path[path.index(node):] + [node]]
            yield "headers in a circle: " + " -> ".join(names)
        elif node not in done:
            path.append(node)
            for to in edges.get(node, []):
                yield from visit(to)
            path.pop()
            done.add(node)
    for node in edges:
        yield from visit(node)


def lint_tests_by_header(root, build):
    for path in c_files(root, "tests", "examples"):
        for name in includes(path):
            if name.endswith(".c"):
                yield f"{rel(root, path)}: includes the source {name}; tests use headers"
            if rel(root, path).startswith("examples/") and not name.startswith("margay/"):
                yield f"{rel(root, path)}: an example may include only public headers"


def objects(build, *skip):
    """Objects of the library's own sources in a build folder."""
    for path in sorted((build / "src").rglob("*.o")):
        yield path


def lint_global_symbols(root, build):
    for path in objects(build):
        if "/src/cli/" in path.as_posix() or "libmargay_core" not in path.as_posix() and path.parent.suffix != ".p":
            continue
        out = subprocess.run(["nm", "-g", "--defined-only", str(path)], capture_output=True, text=True).stdout
        for line in out.splitlines():
            symbol = line.split()[-1]
            if not symbol.startswith(("mg_", "__", ".")) and " W " not in line and " V " not in line:
                yield f"{path.name}: global symbol {symbol} does not begin with mg_"


def lint_vector_registers(root, build):
    for path in objects(build):
        stem = path.name.split(".")[0]
        if stem.endswith(TIERS):
            continue
        out = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True).stdout
        if re.search(r"%[yz]mm\d|%k[1-7]\b|%tmm\d", out):
            yield f"{path.name}: wide vector registers in an object without a tier in its name"


def lint_header_alone(root, build):
    cc = shutil.which("cc") or "cc"
    for path in c_files(root, "src", "include", "tests"):
        if path.suffix != ".h":
            continue
        cmd = [cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wno-unused-function", "-Werror", "-fsyntax-only", "-x", "c",
               f"-I{root}/include", f"-I{root}/src", f"-I{path.parent}", "-include", str(path), "/dev/null"]
        if "/x86/" in path.as_posix():
            cmd[1:1] = ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
        p = subprocess.run(cmd, capture_output=True, text=True)
        if p.returncode:
            yield f"{rel(root, path)}: does not compile alone: {p.stderr.strip().splitlines()[0]}"


def lint_header_guard(root, build):
    for path in c_files(root, "src", "include", "tests"):
        if path.suffix == ".h" and not re.search(r"^#ifndef (\w+)\n#define \1$", path.read_text(), re.M):
            yield f"{rel(root, path)}: no include guard"


def is_table(path):
    return path.stem.endswith("_tables")


def lint_file_length(root, build):
    for path in c_files(root):
        n = path.read_text().count("\n")
        if n > MAX_FILE and not is_table(path):
            yield f"{rel(root, path)}: {n} lines, at most {MAX_FILE}"


def lint_function_length(root, build):
    for path in c_files(root):
        start = None
        limit = MAX_KERNEL if "kernels" in rel(root, path) else MAX_FUNCTION
        for i, line in enumerate(code_of(path.read_text()).splitlines(), 1):
            if re.match(r"[A-Za-z_].*[({,]\s*$|[A-Za-z_].*\)\s*\{", line) and start is None and "=" not in line and not line.startswith("enum"):
                start = i
            if line.startswith("}") or line.rstrip().endswith(";") and not line.startswith((" ", "\t")):
                if start is not None and line.startswith("}") and i - start + 1 > limit and not is_table(path):
                    yield f"{rel(root, path)}:{start}: a function of {i - start + 1} lines, at most {limit}"
                start = None


def lint_text(root, build):
    for path in c_files(root):
        text = path.read_text()
        if text and not text.endswith("\n"):
            yield f"{rel(root, path)}: no newline at the end"
        for i, line in enumerate(text.splitlines(), 1):
            if "\t" in line:
                yield f"{rel(root, path)}:{i}: a tab"
            if line != line.rstrip():
                yield f"{rel(root, path)}:{i}: blanks at the end of the line"


def lint_line_length(root, build):
    for path in c_files(root):
        for i, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > MAX_COLUMN and not is_table(path):
                yield f"{rel(root, path)}:{i}: {len(line)} columns, at most {MAX_COLUMN}"


def lint_head_comment(root, build):
    for path in c_files(root, "src", "include"):
        if not path.read_text().startswith("/* "):
            yield f"{rel(root, path)}: does not begin with a comment that says what it is"


def lint_banned_calls(root, build):
    for path in c_files(root, "src", "include", "examples"):
        for i, line in enumerate(code_of(path.read_text()).splitlines(), 1):
            for name in re.findall(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(", line):
                if name in BANNED and not (name == "exit" and rel(root, path) in MAY_EXIT):
                    yield f"{rel(root, path)}:{i}: {name} is banned"


def lint_outside(root, build):
    for path in [*c_files(root), *sorted(root.rglob("meson.build")), *sorted((root / "tests").rglob("*.py"))]:
        if "build" in path.relative_to(root).parts[0] and path.parent != root:
            continue
        if re.search(r"\.\./shared|/work/", path.read_text()):
            yield f"{rel(root, path)}: depends on something beside the project"


# name -> (lint, {file: text} it must complain about). Objects are compiled from .c files below build/src.
LONG = "".join(f"    x += {i};\n" for i in range(130))
LINTS = {
    "include direction": (lint_include_direction, {"src/base/a.c": '#include "model/m.h"\n', "src/model/m.h": ""}),
    "include circle": (lint_include_circle, {"src/base/a.h": '#include "base/b.h"\n',
                                             "src/base/b.h": '#include "base/a.h"\n'}),
    "tests by header": (lint_tests_by_header, {"tests/unit/a.c": '#include "base/a.c"\n'}),
    "global symbols": (lint_global_symbols, {"build/src/x.a.p/a.c": "int bare(void) { return 1; }\n"}),
    "vector registers": (lint_vector_registers, {
        "build/src/x.a.p/a.c": '#pragma GCC target("avx2")\ntypedef float v8 __attribute__((vector_size(32)));\n'
                               "v8 mg_f(v8 *a) { return *a + *a; }\n"}),
    "header alone": (lint_header_alone, {"src/base/a.h": "size_t f(void);\n"}),
    "header guard": (lint_header_guard, {"src/base/a.h": "int f(void);\n"}),
    "file length": (lint_file_length, {"src/base/a.c": "int a;\n" * 1001}),
    "function length": (lint_function_length, {"src/base/a.c": "static int f(int x) {\n" + LONG + "}\n"}),
    "text": (lint_text, {"src/base/a.c": "int a; \n"}),
    "tabs": (lint_text, {"src/base/a.c": "\tint a;\n"}),
    "line length": (lint_line_length, {"src/base/a.c": "/* " + "x" * 100 + " */\n"}),
    "head comment": (lint_head_comment, {"src/base/a.c": "int a;\n"}),
    "banned calls": (lint_banned_calls, {"src/base/a.c": "int f(void) { return atoi(\"1\"); }\n"}),
    "exit": (lint_banned_calls, {"src/cli/ask.c": "void f(void) { exit(1); }\n"}),
    "nothing outside": (lint_outside, {"tests/unit/a.c": '/* ../shared/x */\n'}),
}
GOOD = {
    "src/base/a.h": "/* base/a.h - fine. */\n#ifndef A_H\n#define A_H\nint mg_a(void);\n#endif\n",
    "src/base/a.c": "/* base/a.c - fine: atoi(x) and exit(1) in words. */\n#include \"base/a.h\"\n\n"
                    "int mg_a(void) {\n    return sizeof \"gets(\";\n}\n",
    "build/src/x.a.p/a.c": "int mg_b(void) { return 1; }\nstatic int c = 2;\nint *mg_c(void) { return &c; }\n",
}


def make(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.startswith("build/"):
            subprocess.run(["cc", "-O2", "-c", str(path), "-o", str(path) + ".o"], check=True)
            path.unlink()


def self_test(name):
    """A complaint about the self-test, or None."""
    lint, bad = LINTS[name]
    for files, wanted in ((bad, True), (GOOD, False)):
        with tempfile.TemporaryDirectory() as tmp:
            root = pathlib.Path(tmp)
            make(root, files)
            found = list(lint(root, root / "build"))
            if bool(found) != wanted:
                return f"self-test: {'silent on the bad sample' if wanted else f'complains about good code: {found}'}"
    return None


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", type=pathlib.Path)
    o = ap.parse_args()
    needs_objects = {"global symbols", "vector registers"}
    n_failed = n_skipped = 0
    done = set()
    for name, (lint, _) in LINTS.items():
        problem = self_test(name)
        if name in needs_objects and not o.build:
            print(f"ok - {name} # SKIP no build folder")
            n_skipped += 1
            continue
        complaints = [problem] if problem else []
        if lint not in done:  # a second entry is only another bad sample
            done.add(lint)
            complaints += lint(ROOT, o.build)
        for c in complaints:
            print(f"  {c}")
        print(f"{'not ok' if complaints else 'ok'} - {name}")
        n_failed += bool(complaints)
    print(f"{len(LINTS) - n_failed - n_skipped} passed, {n_failed} failed, {n_skipped} skipped")
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
