#!/bin/bash
# tests/fuzz/run.sh [SECONDS] [NAME...]: fuzzes each target (all by default) for SECONDS (60) with
# libFuzzer under ASan and UBSan, then adds inputs with new coverage to the committed corpus. See
# README.md.
#   FUZZ_BUILD  build folder (build-fuzz in the project)
#   FUZZ_WORK   growing corpora, logs and crashes (/tmp/margay-fuzz)
#   FUZZ_ADD=0  leave the committed corpus alone
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/fuzz
build=${FUZZ_BUILD:-$root/build-fuzz}
work=${FUZZ_WORK:-/tmp/margay-fuzz}
seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then seconds=$1; shift; fi
names=("$@")
if [ ${#names[@]} = 0 ]; then
    for f in "$here"/fuzz_*.c; do n=${f##*/fuzz_}; names+=("${n%.c}"); done
fi
max_corpus=300000 # bytes per committed folder

mkdir -p "$work"
if [ ! -f "$build/build.ninja" ]; then
    CC=clang meson setup "$build" "$root" -Dfuzz=true --buildtype=debugoptimized \
        -Db_sanitize=address,undefined -Db_lundef=false \
        -Dc_args="-fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined" \
        >"$work/setup.log" 2>&1 ||
        { tail -20 "$work/setup.log"; exit 1; }
fi
ninja -C "$build" "${names[@]/#/tests/fuzz/fuzz_}" >"$work/build.log" 2>&1 ||
    { grep -E "error|FAILED" -A5 "$work/build.log" | head -40; exit 1; }

bytes() { find "$1" -type f -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }'; }

failed=0
for name in "${names[@]}"; do
    program=$build/tests/fuzz/fuzz_$name
    corpus=$here/corpus/$name
    own=$work/$name
    mkdir -p "$corpus" "$own/corpus" "$own/crashes" "$own/merged"
    dict=()
    [ -f "$here/$name.dict" ] && dict=("-dict=$here/$name.dict")
    before=$(find "$own/crashes" -type f | wc -l)
    "$program" "$own/corpus" "$corpus" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="$own/crashes/" "${dict[@]}" >"$own/log" 2>&1
    code=$?
    runs=$(awk '/^stat::number_of_executed_units:/ { print $2 }' "$own/log")
    cov=$(grep -o 'cov: [0-9]*' "$own/log" | tail -1 | cut -d' ' -f2)
    crashes=$(($(find "$own/crashes" -type f | wc -l) - before))
    [ $code = 0 ] || failed=1

    # What covers something new, smallest first, as long as the folder stays small.
    rm -rf "$own/merged" && cp -r "$corpus" "$own/merged"
    added=0
    if [ "${FUZZ_ADD:-1}" = 1 ] && [ $code = 0 ] &&
        "$program" -merge=1 -use_counters=0 -rss_limit_mb=2048 -timeout=10 \
            "$own/merged" "$own/corpus" >"$own/merge.log" 2>&1; then
        total=$(bytes "$corpus")
        while read -r size file; do
            [ -e "$corpus/$file" ] && continue
            total=$((total + size))
            [ $total -gt $max_corpus ] && break
            cp "$own/merged/$file" "$corpus/$file" && added=$((added + 1))
        done < <(find "$own/merged" -type f -printf '%s %f\n' | sort -n)
    fi
    echo "$name: ${runs:-0} runs, ${cov:-0} cov, $crashes crashes (exit $code, $added inputs" \
        "added, corpus $(find "$corpus" -type f | wc -l) files, $(bytes "$corpus") bytes)"
    if [ $code != 0 ]; then
        grep -E "ERROR:|SUMMARY:|runtime error|Test unit written" "$own/log" | head -5
    fi
done
exit $failed
