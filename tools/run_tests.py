#!/usr/bin/env python3
"""Builds margay in several ways, runs all tests on each, and adds up their cases; ./test calls it.

    gcc     release build, warnings are errors: all tests, those of the web page too, and the lints
    san     ASan + UBSan with leak detection (gcc's warnings there are mostly false, so no errors): C tests, replay of the fuzz corpora, a part of the pytest tests
    tsan    ThreadSanitizer: the thread pool, conversations on it, the scheduler, its caches and the shared one, the HTTP server, metrics, margay serve
    clang   where it is installed: warnings are errors, C tests

A C test program is counted by its closing line "N passed, N failed[, N skipped]" if it prints one, else by its TAP
lines (cmocka), else as one case by its exit status. pytest and vitest are counted by their JUnit files.
Last line: "N passed, N failed, N skipped". Exit status 1 when a case or a build failed.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parents[1]
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1:strict_string_checks=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


class Count:
    def __init__(self):
        self.passed = 0
        self.failed, self.skipped = [], []

    def take(self, name, passed, failed=(), skipped=()):
        """Adds one program's cases and prints its line."""
        self.passed += passed
        self.failed += [f"{name}: {f}" for f in failed]
        self.skipped += [f"{name}: {s}" for s in skipped]
        print(f"{'FAIL' if failed else 'ok  '} {name}: {passed} passed, {len(failed)} failed, {len(skipped)} skipped",
              flush=True)


def tail(text, lines=60):
    return "\n".join(text.splitlines()[-lines:])


def count_output(text, code):
    """(passed, failed names, skipped names) of one C test program's output and exit status."""
    summary = None
    for line in text.splitlines():
        m = re.match(r"(?:[\w./-]+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", line)
        summary = m or summary
    tap = re.findall(r"^(not ok|ok)\b(?: \d+)?(?: -)? ?(.*)$", text, re.M)
    skipped = [rest.replace("# SKIP", "").strip() for _, rest in tap if "# SKIP" in rest.upper()]
    skipped += re.findall(r"^SKIP:? (.*)$", text, re.M)
    failed = [rest for word, rest in tap if word == "not ok" and "# SKIP" not in rest.upper()]
    if summary:
        passed, n_failed, n_skipped = (int(x or 0) for x in summary.groups())
        failed = (failed + ["unnamed"] * n_failed)[:n_failed]
        skipped = (skipped + ["unnamed"] * n_skipped)[:n_skipped]
    elif tap:
        passed = sum(word == "ok" and "# SKIP" not in rest.upper() for word, rest in tap)
    else:
        passed = int(code == 0)
    if code == 77 and not failed:
        return 0, [], ["whole program"]
    if code and not failed:
        failed = [f"exit status {code}"]
    return passed, failed, skipped


def fresh(made, source):
    return made.exists() and made.stat().st_mtime >= source.stat().st_mtime


class Build:
    def __init__(self, count, name, folder, options, env):
        self.count, self.name, self.folder = count, name, ROOT / folder
        self.options = options
        self.env = {**os.environ, **env}
        self.sanitized = name in ("san", "tsan")

    def run(self, cmd, **more):
        return subprocess.run([str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              **{"env": self.env, "cwd": ROOT, **more})

    def build(self, *targets):
        """Everything, or only these targets."""
        start = time.monotonic()
        if (self.folder / "build.ninja").exists():
            p = self.run(["meson", "configure", self.folder, *self.options])
        else:
            p = self.run(["meson", "setup", self.folder, ".", *self.options])
        if p.returncode and self.folder.exists():  # of another Meson, or half made
            shutil.rmtree(self.folder)
            p = self.run(["meson", "setup", self.folder, ".", *self.options])
        if p.returncode == 0:
            p = self.run(["ninja", "-C", self.folder, *targets])
        ok = p.returncode == 0
        if not ok:
            print(tail(p.stdout.decode(errors="replace"), 120))
        self.count.take(f"{self.name} build ({time.monotonic() - start:.0f} s)", int(ok), [] if ok else ["does not build"])
        return ok

    def c_tests(self, only=None):
        listed = json.loads(subprocess.check_output(["meson", "introspect", "--tests", str(self.folder)], cwd=ROOT))
        if not listed:
            self.count.take(f"{self.name} C tests", 0, ["there are none"])
        for t in listed:
            if only and t["name"] not in only:
                continue
            env = {**self.env, "CMOCKA_MESSAGE_OUTPUT": "TAP", **t["env"]}
            limit = (t.get("timeout") or 30) * (10 if self.sanitized else 3)
            try:
                p = subprocess.run(t["cmd"], cwd=t["workdir"] or ROOT, env=env, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=limit, stdin=subprocess.DEVNULL)
                text, code = p.stdout.decode(errors="replace"), p.returncode
            except subprocess.TimeoutExpired as e:
                text, code = (e.stdout or b"").decode(errors="replace"), f"none within {limit} s"
            passed, failed, skipped = count_output(text, code)
            if failed:
                print(tail(text))
            self.count.take(f"{self.name} {t['name']}", passed, failed, skipped)

    def pytest(self, name, *args):
        env = {**self.env, "MARGAY_BIN": str(self.folder / "margay"), "PYTHONDONTWRITEBYTECODE": "1",
               "MARGAY_BUILD": "sanitized" if self.name == "san" else self.name}
        with tempfile.TemporaryDirectory() as tmp:
            xml = pathlib.Path(tmp, "report.xml")
            p = subprocess.run([sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
                                f"--junitxml={xml}", *args], cwd=ROOT, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
            text = p.stdout.decode(errors="replace")
            if not xml.exists():
                print(tail(text))
                self.count.take(f"{self.name} {name}", 0, ["pytest did not run"])
                return
            self.count.take(f"{self.name} {name}", *self.junit(xml, p.returncode, "pytest", text))

    @staticmethod
    def junit(xml, code, program, text):
        """(passed, failed names, skipped names) of a JUnit file; prints the output's end when something failed."""
        passed, failed, skipped = 0, [], []
        for case in ET.parse(xml).getroot().iter("testcase"):
            label = f"{case.get('classname')}.{case.get('name')}"
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failed.append(label)
            elif "skipped" in kinds:
                skipped.append(f"{label} ({case.find('skipped').get('message')})")
            else:
                passed += 1
        if code and not failed and not (program == "pytest" and code == 1):
            failed.append(f"{program}'s exit status {code}")
        if failed:
            print(tail(text, 200))
        return passed, failed, skipped

    def page(self):
        """The web page's tests (tests/page): Node 20.19 or later, a Chromium, the packages of web/package-lock.json."""
        name = f"{self.name} page"
        node, chromium = shutil.which("node"), os.environ.get("CHROMIUM") or shutil.which("chromium")
        version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else ""
        numbers = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
        lacking = ("Node 20.19 or later is not installed" if numbers < (20, 19)
                   else "Chromium is not installed" if not chromium else None)
        web = ROOT / "web"
        with tempfile.TemporaryDirectory() as tmp:
            if not lacking and not fresh(web / "node_modules" / ".package-lock.json", web / "package-lock.json"):
                for pause in (2, 10, 0):
                    p = self.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=web)
                    if p.returncode == 0:
                        break
                    time.sleep(pause)
                if p.returncode:
                    lacking = "npm ci failed: " + tail(p.stdout.decode(errors="replace"), 3)
            if lacking:  # skipped by name; where everything is to be there, it is a failure
                self.count.take(name, 0, [lacking] if os.environ.get("CI") == "true" else [], [lacking])
                return
            p = self.run([node, "node_modules/typescript/bin/tsc"], cwd=web)
            if p.returncode:
                print(tail(p.stdout.decode(errors="replace")))
            self.count.take(f"{self.name} page's types", int(p.returncode == 0), ["tsc"] if p.returncode else [])
            xml = pathlib.Path(tmp, "report.xml")
            env = {**self.env, "MARGAY_BIN": str(self.folder / "margay"), "CHROMIUM": chromium}
            p = self.run([node, "node_modules/vitest/vitest.mjs", "run", "--reporter=default", "--reporter=junit",
                          f"--outputFile.junit={xml}"], cwd=web, env=env)
            text = p.stdout.decode(errors="replace")
            if not xml.exists():
                print(tail(text))
                self.count.take(name, 0, ["vitest did not run"])
                return
            self.count.take(name, *self.junit(xml, p.returncode, "vitest", text))

    def lint(self):
        p = self.run([sys.executable, "tools/lint.py", "--build", self.folder])
        text = p.stdout.decode(errors="replace")
        passed, failed, skipped = count_output(text, p.returncode)
        if failed:
            print(tail(text, 200))
        self.count.take("lints", passed, failed, skipped)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--quick", action="store_true", help="the gcc build only")
    o = ap.parse_args()
    count, start = Count(), time.monotonic()
    gcc = Build(count, "gcc", "build", ["-Dbuildtype=release", "-Dwerror=true"], {})
    if gcc.build():
        gcc.c_tests()
        gcc.pytest("command line", "tests/cli")
        gcc.pytest("HTTP server", "tests/net")
        gcc.pytest("margay serve", "tests/serve")
        gcc.pytest("fleet", "tests/fleet")
        gcc.page()
        gcc.pytest("clients", "tests/clients")
        gcc.pytest("deploy", "tests/deploy")
        gcc.pytest("oracle", "tests/oracle")
        gcc.lint()
    if not o.quick:
        san = Build(count, "san", "build-san", ["-Dbuildtype=debugoptimized", "-Db_lundef=false",
                                                "-Db_sanitize=address,undefined"], SANITIZER_ENV)
        if san.build():
            san.c_tests()
            san.pytest("command line", "tests/cli", "-m", "not slow")
            san.pytest("HTTP server", "tests/net")
            san.pytest("margay serve", "tests/serve")
            san.pytest("fleet", "tests/fleet", "-k", "not costs and not openai")
            san.pytest("deploy", "tests/deploy/test_container.py")
            san.pytest("oracle", "tests/oracle", "-k", "tied and (two_images or multi_turn or gray_tall)")
        tsan = Build(count, "tsan", "build-tsan", ["-Dbuildtype=debugoptimized", "-Db_lundef=false",
                                                   "-Db_sanitize=thread"], {"TSAN_OPTIONS": "halt_on_error=1"})
        if tsan.build("tests/unit/cpu/test_cpu_pool", "tests/unit/engine/test_engine_conversation",
                      "tests/unit/net/test_net_http_server", "tests/unit/net/test_net_remote",
                      "tests/net/http_test_server", "tests/unit/api/test_api_metrics", "src/cli/margay",
                      "tests/unit/engine/test_engine_scheduler", "tests/unit/engine/test_engine_caches",
                      "tests/unit/engine/test_engine_shared", "tests/unit/store/test_store_redis_store",
                      "tests/unit/store/test_store_job_queue"):
            tsan.c_tests({"cpu.pool", "engine.conversation", "engine.scheduler", "engine.caches", "engine.shared", "net.http_server",
                          "net.remote", "api.metrics", "store.redis_store", "store.job_queue"})
            tsan.pytest("HTTP server", "tests/net")
            tsan.pytest("fleet", "tests/fleet/test_fleet.py", "-k", "resumed or leaves or lost or stopped or away or answers_are")
            tsan.pytest("margay serve", "tests/serve", "-k", "several or socket or leaving or crowd or stop or shared")
        if shutil.which("clang"):
            clang = Build(count, "clang", "build-clang", ["-Dbuildtype=release", "-Dwerror=true"], {"CC": "clang"})
            if clang.build():
                clang.c_tests()
        else:
            count.take("clang build", 0, [], ["clang is not installed"])
    print(f"\n{time.monotonic() - start:.0f} s")
    for name in count.skipped:
        print(f"skipped {name}")
    for name in count.failed:
        print(f"FAILED {name}")
    print(f"{count.passed} passed, {len(count.failed)} failed, {len(count.skipped)} skipped", flush=True)
    sys.exit(1 if count.failed or not count.passed else 0)


if __name__ == "__main__":
    main()
