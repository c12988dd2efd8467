"""Machines made of files, for margay doctor --root: a healthy one, and functions that spoil one thing each.

A machine is a folder that stands for /; `affinity` and `statvfs` in it stand for the system calls (src/cli/doctor.h).
"""
import pathlib

GB = 1 << 20  # in the kB of /proc/meminfo
AMX = ("fpu sse2 avx avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx_vnni amx_bf16 "
       "amx_tile amx_int8")


class Machine:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def write(self, path, text):
        to = self.root / path.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
        return self

    def remove(self, path):
        (self.root / path.lstrip("/")).unlink()
        return self

    def processors(self, n, *, siblings=False, nodes=1, allowed=None):
        """n processors; with siblings i and i + n/2 share a core; the cores are spread over the nodes."""
        self.write("/affinity", (allowed or f"0-{n - 1}") + "\n")
        self.write("/sys/devices/system/cpu/online", f"0-{n - 1}\n")
        cores = n // 2 if siblings else n
        for i in range(n):
            core, cpu = i % cores, f"/sys/devices/system/cpu/cpu{i}"
            self.write(f"{cpu}/topology/core_cpus_list", f"{core},{core + cores}\n" if siblings else f"{i}\n")
            self.write(f"{cpu}/topology/physical_package_id", f"{core * nodes // cores}\n")
            self.write(f"{cpu}/cpufreq/scaling_governor", "performance\n")
            self.write(f"{cpu}/cpufreq/scaling_driver", "acpi-cpufreq\n")
            self.write(f"{cpu}/cpufreq/scaling_max_freq", "3500000\n")
            self.write(f"{cpu}/cpufreq/cpuinfo_max_freq", "3500000\n")
        self.write("/sys/devices/system/node/online", f"0-{nodes - 1}\n" if nodes > 1 else "0\n")
        for k in range(nodes):
            mine = [i for i in range(n) if i % cores * nodes // cores == k]
            self.write(f"/sys/devices/system/node/node{k}/cpulist", ",".join(map(str, mine)) + "\n")
            self.write(f"/sys/devices/system/node/node{k}/meminfo", f"Node {k} MemTotal:  {32 * GB} kB\n")
        return self

    def flags(self, flags, vendor="GenuineIntel"):
        return self.write("/proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: Made Up 9000\n"
                          f"vmx flags\t: vnmi\nflags\t\t: {flags}\n\n")

    def memory(self, total, available, swap_total=0, swap_free=0):
        return self.write("/proc/meminfo", f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n"
                          f"SwapCached: 0 kB\nSwapTotal: {swap_total} kB\nSwapFree: {swap_free} kB\n")

    def files(self, soft, address="unlimited"):
        return self.write(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            f"Max cpu time              unlimited            unlimited            seconds   \n"
            f"Max open files            {soft:<20} 524288               files     \n"
            f"Max address space         {address:<20} unlimited            bytes     \n")

    def mounts(self, *lines):
        return self.write("/proc/self/mountinfo", "".join(f"{20 + i} 1 0:{i} / {line}\n" for i, line in enumerate(
            ("/ rw,relatime - ext4 /dev/x rw", "/sys/fs/cgroup rw - cgroup2 cgroup rw", *lines))))

    def group(self, name, text, version=2):
        """A file of this process' cgroup, at the mount's own folder."""
        if version == 2:
            self.write("/proc/self/cgroup", "0::/\n")
            return self.write(f"/sys/fs/cgroup/{name}", text)
        kind = name.split(".")[0]
        self.write("/proc/self/cgroup", f"4:{kind}:/\n")
        self.mounts(f"/sys/fs/cgroup/{kind} rw - cgroup cgroup rw,{kind}")
        return self.write(f"/sys/fs/cgroup/{kind}/{name}", text)


def healthy(root):
    m = Machine(root)
    m.processors(8).flags(AMX).memory(64 * GB, 60 * GB).files(1 << 16).mounts()
    m.group("cpu.max", "max 100000\n").group("memory.max", "max\n")
    m.write("/proc/stat", "cpu  100 0 100 10000 0 0 0 1 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    m.write("/proc/loadavg", "0.10 0.10 0.10 1/100 1234\n")
    m.write("/proc/sys/vm/overcommit_memory", "0\n")
    m.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    m.write("/statvfs", f"/tmp {10 << 30} {9 << 30}\n")
    (m.root / "tmp").mkdir()
    return m
