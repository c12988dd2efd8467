#!/usr/bin/env python3
"""Makes prune.txt: which cells of made-up pictures pruning keeps, computed from the definition in docs/model.md with NumPy.

usage: make_prune.py        (needs NumPy; the result is committed)

Written for clarity and unlike src/image/prune.c: whole reconstructed rasters are kept and compared. The pictures are made
again by tests/unit/image/prune.c from the numbers in a line.
"""
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent


class Random:
    def __init__(self, seed):
        self.x = seed

    def __call__(self, n):
        self.x = (self.x * 1664525 + 1013904223) & 0xffffffff
        return (self.x >> 8) % n


def picture(seed, rows, cols, side, noise):
    """Cells of one colour each: two of five take the left one's, two of five the upper one's, the rest a new one; half of
    them with up to `noise` steps of noise on top."""
    random, colour = Random(seed), np.zeros((rows, cols, 3), int)
    rgb = np.zeros((rows * side, cols * side, 3), np.uint8)
    for r in range(rows):
        for c in range(cols):
            how = random(5)
            if how < 2 and c:
                colour[r, c] = colour[r, c - 1]
            elif 2 <= how < 4 and r:
                colour[r, c] = colour[r - 1, c]
            else:
                colour[r, c] = [random(256) for _ in range(3)]
            rough = random(2)
            for y in range(side):
                for x in range(side):
                    for i in range(3):
                        v = colour[r, c, i] + (random(noise + 1) if rough else 0)
                        rgb[r * side + y, c * side + x, i] = min(v, 255)
    return rgb


def kept(rgb, rows, cols, side, near):
    cell = {(r, c): rgb[r * side:(r + 1) * side, c * side:(c + 1) * side].astype(int)
            for r in range(rows) for c in range(cols)}

    def like(p, q):
        return np.abs(p - q).max() <= near
    seen, out = {}, []
    for r in range(rows):
        for c in range(cols):
            a, b, corner = seen.get((r, c - 1)), seen.get((r - 1, c)), seen.get((r - 1, c - 1))
            if a is None or b is None:
                prediction = b if a is None else a
            else:
                prediction = b if like(corner, a) and not like(corner, b) else a
            if prediction is not None and like(cell[r, c], prediction):
                seen[r, c] = prediction
            else:
                seen[r, c] = cell[r, c]
                out.append(r * cols + c)
    return out


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def main():
    random = Random(8)
    with open(HERE / "prune.txt", "w") as f:
        f.write("# seed rows cols side noise near -> fnv64-of-rgb n-kept fnv64-of-kept-as-u32\n")
        for i in range(200):
            rows, cols, side = 1 + random(12), 1 + random(12), 1 + random(6)
            noise, near = (0, 1, 3, 9, 40)[random(5)], (0, 0, 1, 3, 8, 40, 254, 255)[random(8)]
            rgb = picture(i, rows, cols, side, noise)
            k = kept(rgb, rows, cols, side, near)
            f.write(f"{i} {rows} {cols} {side} {noise} {near} {fnv(rgb.tobytes()):016x} {len(k)} "
                    f"{fnv(np.array(k, '<u4').tobytes()):016x}\n")


if __name__ == "__main__":
    main()
