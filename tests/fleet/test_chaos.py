"""The short run of chaos.py: 80 jobs. (By hand: a thousand; docs/fleet.md has its figures.)"""
import os

import pytest

import chaos
from conftest import SLOW


def test_each_job_is_answered_once_whoever_dies(tmp_path, large):
    seed = int(os.environ.get("MARGAY_CHAOS_SEED", "11"))
    done, times = chaos.run(tmp_path, large, jobs=80, seconds=22, seed=seed, limit=60 * SLOW, pause=1.2, long_tokens=1500)
    assert len(done) == 6, "too short for a kill and a pause of each"
    assert times[-1] < 45 * SLOW
