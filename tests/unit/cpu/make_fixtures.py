#!/usr/bin/env python3
"""Writes fixtures/: the files of /sys and /proc that cpu/topology.c reads, as other machines have them.

Run it in this folder after a change. What each machine must give stands in topology.c here, by hand.
"""
import pathlib
import shutil

TOP = pathlib.Path(__file__).parent / "fixtures"
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
REST = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n23 22 0:21 / /sys rw - sysfs sysfs rw\n"


def put(name, files):
    for path, text in files.items():
        p = TOP / name / path
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_bytes(text if isinstance(text, bytes) else text.encode())


def machine(name, n_cpu, core=None, package=None, nodes=None, online=None, affinity=None, old_name=False):
    """core, package: what the topology files of processor c say; None leaves them out."""
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/online": (online or f"0-{n_cpu - 1}") + "\n"}
    for c in range(n_cpu):
        kind = "thread_siblings_list" if old_name else "core_cpus_list"
        if core:
            files[f"{cpu}/cpu{c}/topology/{kind}"] = core(c) + "\n"
        if package:
            files[f"{cpu}/cpu{c}/topology/physical_package_id"] = f"{package(c)}\n"
    for i, cpus in enumerate(nodes or [f"0-{n_cpu - 1}"]):
        files[f"sys/devices/system/node/node{i}/cpulist"] = cpus + "\n"
    files["sys/devices/system/node/online"] = f"0-{len(nodes) - 1}\n" if nodes else "0\n"
    if affinity:
        files["affinity"] = affinity + "\n"
    put(name, files)


def cgroup(name, cgroup_text, mounts, files):
    put(name, {"proc/self/cgroup": cgroup_text, "proc/self/mountinfo": REST + mounts})
    put(name, files)


shutil.rmtree(TOP, ignore_errors=True)

machine("no_quota", 4, core=str)
cgroup("no_quota", "0::/user.slice/session-1.scope\n", V2, {
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/session-1.scope/cpu.max": "max 100000\n"})

# docker run --cpus=1.5 -m 4g, own cgroup namespace
machine("v2_quota_1.5", 8)
cgroup("v2_quota_1.5", "0::/\n", V2, {
    "sys/fs/cgroup/cpu.max": "150000 100000\n", "sys/fs/cgroup/memory.max": "4294967296\n"})

# a pod: the limit of processors on the grandparent, that of memory on the parent
machine("v2_grandparent_2", 8)
cgroup("v2_grandparent_2", "0::/kubepods/pod1/ctr\n", V2, {
    "sys/fs/cgroup/kubepods/cpu.max": "100000 50000\n",
    "sys/fs/cgroup/kubepods/memory.max": "17179869184\n",
    "sys/fs/cgroup/kubepods/pod1/cpu.max": "400000 100000\n",
    "sys/fs/cgroup/kubepods/pod1/memory.max": "1073741824\n",
    "sys/fs/cgroup/kubepods/pod1/ctr/cpu.max": "max 100000\n",
    "sys/fs/cgroup/kubepods/pod1/ctr/memory.max": "max\n"})

# docker run --cpus=2.5 -m 2g on cgroup v1: the mount's root is the container's group
machine("v1_quota_2.5", 8, old_name=True)
cgroup("v1_quota_2.5", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n1:name=systemd:/docker/abc\n", "".join(
    f"3{i} 23 0:3{i} /docker/abc /sys/fs/cgroup/{c} ro,nosuid - cgroup cgroup rw,{c}\n"
    for i, c in enumerate(["cpu,cpuacct", "memory", "cpuset"])), {
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n"})

# v1 outside a container, nothing on the group itself (-1), a quota on its parent
machine("v1_parent_3", 8)
cgroup("v1_parent_3", "4:cpu,cpuacct:/a/b\n5:memory:/a/b\n0::/\n",
       "31 23 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
       "32 23 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
       "33 23 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", {
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n"})

# the process was moved into another namespace's group: its path begins with /..
machine("v2_outside", 8)
cgroup("v2_outside", "0::/../other\n", V2.replace("/sys/fs/cgroup", "/odd\\040place"), {
    "odd place/cpu.max": "600000 100000\n"})

# the root of the mount is a group itself (bind mount without a namespace)
machine("v2_bind", 8)
cgroup("v2_bind", "0::/system.slice/docker-1.scope/inner\n",
       V2.replace(" / /sys", " /system.slice/docker-1.scope /sys"), {
    "sys/fs/cgroup/cpu.max": "500000 100000\n", "sys/fs/cgroup/inner/cpu.max": "450000 100000\n"})

machine("quota_below_one", 4)
cgroup("quota_below_one", "0::/\n", V2, {"sys/fs/cgroup/cpu.max": "20000 100000\n"})

machine("cpuset_0-1_of_16", 16, core=str, affinity="0-1")
machine("smt_4c8t", 8, core=lambda c: f"{c % 4},{c % 4 + 4}")
machine("smt_part", 8, core=lambda c: f"{c // 2 * 2}-{c // 2 * 2 + 1}", affinity="1-3,6", old_name=True)
machine("two_nodes", 16, core=lambda c: f"{c % 8},{c % 8 + 8}", package=lambda c: c % 8 // 4,
        nodes=["0-3,8-11", "4-7,12-15"])
machine("two_nodes_part", 16, core=lambda c: f"{c % 8},{c % 8 + 8}", package=lambda c: c % 8 // 4,
        nodes=["0-3,8-11", "4-7,12-15"], affinity="3-7,11-15")
# two sockets of two nodes each, numbered across
machine("four_nodes", 8, package=lambda c: c % 2, nodes=["0,4", "1,5", "2,6", "3,7"])
machine("offline", 8, online="0-2,5-7", affinity="0-7")

put("no_sysfs", {"affinity": "0-2\n"})
put("nothing", {"README": "A system without any of the files.\n"})
machine("contradiction", 4, affinity="8-9")

junk = bytes(range(256))
machine("garbage", 4)
cgroup("garbage", "0\n0:\n0::\n::/\n:::::\n0::/../../../../etc\n4:cpu:/" + "a/" * 600 + "\n5:memory:x\n\n0::/ok\n",
       "1 2 3\n - - -\n1 2 3 / \\000 rw - cgroup2 x rw\n1 2 3 / /sys/fs/cgroup\\04 rw - cgroup2 x rw\n"
       + "x " * 200 + "\n30 23 0:1 / /" + "b" * 2000 + " rw - cgroup2 x rw\n"
       + "31 23 0:1 / relative rw - cgroup2 x rw\n" + V2, {
    "sys/fs/cgroup/cpu.max": "99999999999999999999999 0\n",
    "sys/fs/cgroup/ok/cpu.max": "-5 100000\n",
    "sys/fs/cgroup/memory.max": "12 monkeys\n",
    "sys/fs/cgroup/ok/memory.max": junk,
    "sys/devices/system/cpu/online": "3-1,0\n",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-4294967296000000000000\n",
    "sys/devices/system/cpu/cpu1/topology/core_cpus_list": junk,
    "sys/devices/system/cpu/cpu2/topology/core_cpus_list": "0\n",
    "sys/devices/system/cpu/cpu3/topology/core_cpus_list": "-1,,3\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "-1\n",
    "sys/devices/system/cpu/cpu2/topology/physical_package_id": "99999999999999\n",
    "sys/devices/system/node/online": "0-9999999\n",
    "sys/devices/system/node/node0/cpulist": b"\0\0\0",
    "affinity": "0-3\n"})
