"""What every trial imports. A process imports this once, and each trial is a copy of it."""

from foretune.core.importing import imported_at_use
from foretune.core.library_noise import hush

hush()
# diffusers and peft import bitsandbytes wherever it is installed, which takes about as long as torch.
with imported_at_use("bitsandbytes"):
    import torch  # noqa: F401
    from diffusers.models import modeling_utils  # noqa: F401

    import foretune.sweeps.trial_worker  # noqa: F401
