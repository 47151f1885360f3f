"""The same bits whatever CPU kernels are compiled for: logits and tokens of whole models, each in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = [("olmoe", "q8"), ("olmoe", "native"), ("qwen3_moe-int4", "auto"), ("qwen3_moe-yarn", "q4")]
PROGRAM = """
import json, sys
from blake3 import blake3
from pathlib import Path
from engine.generate import greedy, logits
from tests.engine.reference import golden, opened
found = {}
for name, weights in json.loads(sys.argv[2]):
    engine, answers = opened(Path(sys.argv[1]) / name, weights), golden(Path(sys.argv[1]) / name)
    engine.bank.preload()
    rows = logits(engine.model, engine.experts, answers.prompt)
    tokens, steps = greedy(engine.model, engine.experts, answers.prompt, 24)
    found[f"{name} {weights}"] = [tokens, blake3(rows.tobytes()).hexdigest(), blake3(steps.tobytes()).hexdigest()]
print(json.dumps(found))
"""


def answers_on(oracle: Path, cpu: str | None) -> object:
    """Tokens and digests of logits from a process whose kernels are compiled for `cpu` (None: this machine)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_CPU")}
    if cpu is not None:
        environment |= {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": FEATURES[cpu]}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(oracle), json.dumps(RUNS)],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


FEATURES = {"generic": "", "haswell": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2"}


@pytest.mark.slow
@pytest.mark.parametrize("cpu", FEATURES)
def test_models_give_the_same_bits_on_other_cpus(oracle: Path, cpu: str) -> None:
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "AMD64"):
        pytest.skip("these targets are of x86-64")
    assert answers_on(oracle, cpu) == answers_on(oracle, None)
