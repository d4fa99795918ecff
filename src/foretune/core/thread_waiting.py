"""How OpenMP threads wait for each other: asleep, not spinning, in every process that Foretune starts.

torch's CPU operators end at a barrier. By default the threads that arrive first spin there, which is fastest on an idle
machine and ruinous on a shared one: a spinning thread keeps the core that the thread it waits for needs. A step of a
small model passes hundreds of barriers.

`OMP_WAIT_POLICY` is OpenMP's own variable and works with every runtime that torch is built with: GNU's libgomp (Linux
wheels), LLVM's libomp (macOS) and Intel's libiomp5 (Windows, conda). The runtime reads it once, when it is loaded, so
it must be set before torch is imported. `import foretune` changes nothing: only the command line and the processes that
Foretune starts wait this way, and only where the user has not decided it.
"""

import os
import sys
from collections.abc import Mapping

WAIT_POLICY = "OMP_WAIT_POLICY"
WAITING_VARIABLES = (WAIT_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Any of these decides how threads wait. The last two are libgomp's and LLVM's own, and win over the first."""
_PASSIVE = "PASSIVE"


def with_passive_waiting(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a new process. What the user has set about waiting stays as it is."""
    if any(environment.get(name) for name in WAITING_VARIABLES):
        return dict(environment)
    return {**environment, WAIT_POLICY: _PASSIVE}


def wait_passively() -> None:
    """Sets the policy for this process and its children; for entry points of programs only.

    Where torch is already imported it is too late for this process, and the environment's fingerprint would name a
    policy that is not in force: nothing is changed then.
    """
    if "torch" not in sys.modules:
        os.environ.update(with_passive_waiting(os.environ))
