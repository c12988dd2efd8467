"""Runs margay as a container would: the same limits by the kernel's own means, since no container engine is at hand where tests run.

    root(folder)       a root folder: the program, the libraries that it links, the demo model, nothing else (no shell, no /tmp)
    Contained(...)     a process in it: read-only root, its own PIDs (it is PID 1), mounts, IPC and host name, user and group 10001, no
                       capabilities (bounding set empty), no_new_privs, an environment of what is given and nothing else
    filter_of(unit)    the system calls that a systemd unit's SystemCallFilter allows, as a BPF program for seccomp

As a program (contained.py JSON) it is the part that runs inside the new namespaces.
"""
import ctypes, json, os, pathlib, re, shutil, struct, subprocess, sys

USER = 10001
NAMESPACES = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
DEVICES = ("null", "zero", "full", "random", "urandom")
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_MDWE = 24, 38, 22, 65


def possible():
    """None, or why it isn't."""
    if os.geteuid() != 0:
        return "only root may make such a container"
    p = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True) if shutil.which("unshare") else None
    return None if p and p.returncode == 0 else "no new namespaces here"


def libraries(program):
    text = subprocess.check_output(["ldd", program], text=True)
    return [m for line in text.splitlines() for m in re.findall(r"(/\S+)", line)]


def root(folder, program, model, more=()):
    """`program` at /usr/local/bin/margay, the demo model where it looks for it; `more`: further files, at their own places."""
    for d in ("usr/local/bin", "usr/local/share/margay", "proc", "sys", "dev", "model", "var/cache/margay", "tmp", "etc", "data"):
        (folder / d).mkdir(parents=True)
    shutil.copy(program, folder / "usr/local/bin/margay")
    shutil.copytree(model, folder / "usr/local/share/margay/demo")
    for f in [*libraries(program), *more]:
        to = folder / f.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy(os.path.realpath(f), to)
    for d in DEVICES:
        (folder / "dev" / d).touch()
    subprocess.run(["chmod", "-R", "a+rX,go-w", folder], check=True)
    return folder


class Contained:
    """volumes: {place in the container: (folder, "ro" or "rw")}. Its process is self.process; killing that kills all within."""

    def __init__(self, folder, *args, env=None, volumes=None, seccomp=None, **more):
        plan = {"root": str(folder), "args": ["/usr/local/bin/margay", *map(str, args)], "env": env or {}, "seccomp": seccomp,
                "volumes": {at: [str(f), mode] for at, (f, mode) in (volumes or {}).items()}}
        self.process = subprocess.Popen([*NAMESPACES, sys.executable, __file__, json.dumps(plan)], **{"text": True, **more})

    def pid(self):
        """Of the program itself, as the host sees it."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])


def run(folder, *args, stdin=b"", **more):
    c = Contained(folder, *args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **{"text": False, **more})
    try:
        out, err = c.process.communicate(stdin, timeout=300)
    except subprocess.TimeoutExpired:
        c.process.kill()
        raise
    return subprocess.CompletedProcess(args, c.process.returncode, out.decode(), err.decode())


# --- system calls ---
def groups():
    """{"@name": {system calls and groups}} as this machine's systemd has them."""
    text, out, now = subprocess.check_output(["systemd-analyze", "syscall-filter"], text=True), {}, None
    for line in text.splitlines():
        if line.startswith("@"):
            now = out.setdefault(line.strip(), set())
        elif line.startswith("    ") and now is not None and not line.strip().startswith("#"):
            now.add(line.strip())
    return out


def spread(names, known):
    out = set()
    for n in names:
        out |= spread(known[n], known) if n.startswith("@") else {n}
    return out


def allowed(unit):
    """The names that the unit's SystemCallFilter= lines let through: the first makes it a list of what is allowed."""
    known, names = groups(), None
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        away, listed = line.startswith("~"), spread(line.lstrip("~").split(), known)
        if names is None:
            assert not away
            names = listed | spread(["@default"], known)
        else:
            names = names - listed if away else names | listed
    return names


def filter_of(unit, library="libseccomp.so.2"):
    """In hexadecimal: what is not allowed fails with EPERM, writable memory that is made executable too (MemoryDenyWriteExecute)."""
    lib = ctypes.CDLL(library)
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_rule_add_exact_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    allow, deny = 0x7FFF0000, 0x00050000 | 1
    ctx = lib.seccomp_init(deny)
    assert ctx
    mask = 7  # SCMP_CMP_MASKED_EQ
    protection = {"mmap": (2, [6]), "mprotect": (2, [4]), "pkey_mprotect": (2, [4])}
    for name in sorted(allowed(unit)):
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            continue  # not on this architecture
        rules = [None]
        if name in protection:  # allowed without these bits: PROT_WRITE and PROT_EXEC together, or PROT_EXEC later on
            arg, (bits,) = protection[name]
            rules = [(arg, mask, bits, value) for value in range(8) if value & bits == value and value != bits]
        for rule in rules:
            data = None
            if rule:
                data = ctypes.create_string_buffer(struct.pack("IIQQ", *rule))
            assert lib.seccomp_rule_add_exact_array(ctx, allow, number, 1 if rule else 0, data) == 0, name
    r, w = os.pipe()
    assert lib.seccomp_export_bpf(ctx, w) == 0
    os.close(w)
    with open(r, "rb") as f:
        return f.read().hex()


# --- inside ---
def inside(plan):
    def mount(*args):
        subprocess.run(["mount", *args], check=True)
    libc = ctypes.CDLL(None, use_errno=True)
    top = plan["root"]
    mount("--make-rprivate", "/")
    mount("--bind", top, top)
    for at, (folder, mode) in plan["volumes"].items():
        mount("--bind", folder, top + at)
        if mode == "ro":
            mount("-o", "remount,bind,ro", top + at)
    for d in DEVICES:
        mount("--bind", f"/dev/{d}", f"{top}/dev/{d}")
    mount("-t", "proc", "proc", f"{top}/proc")
    mount("--rbind", "/sys", f"{top}/sys")
    mount("-o", "remount,bind,ro", top)
    os.chroot(top)
    os.chdir("/")
    for cap in range(64):
        libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)  # the kernel takes the capabilities away
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if plan["seccomp"]:
        code = bytes.fromhex(plan["seccomp"])
        body = ctypes.create_string_buffer(code, len(code))

        class Program(ctypes.Structure):
            _fields_ = [("n", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
        program = Program(len(code) // 8, ctypes.addressof(body))
        assert libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.execve(plan["args"][0], plan["args"], plan["env"])


if __name__ == "__main__":
    inside(json.loads(sys.argv[1]))
