"""Commands that talk to a hub on this machine. Each is a process: the hub's client reads its address when imported."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.hub.hub_server import HubServer
from tests.waiting import HANG_S

TOKEN = "hf_VerySecretToken123"


@dataclass(frozen=True)
class Client:
    """Someone with a home of their own and an address of a hub."""

    home: Path
    hub: HubServer

    def environment(self, **variables: str) -> dict[str, str]:
        """That of a user who has set nothing but where the hub is."""
        others = ("HF_", "HUGGING", "TRANSFORMERS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        own = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home), "HF_HUB_DISABLE_XET": "1", "NO_COLOR": "1"}
        return {**kept, **own, **variables}

    def foretune(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Types a command."""
        return self._run("-m", "foretune", *arguments, **variables)

    def python(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program."""
        return self._run("-c", program, *arguments, **variables)

    def _run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )


def write_repository(root: Path, repo: str, files: dict[str, bytes]) -> Path:
    """A repository with a FLUX pipeline whose weights are any bytes, and further files."""
    parts = {"transformer": "FluxTransformer2DModel", "vae": "AutoencoderKL", "tokenizer": "CLIPTokenizer"}
    index = {"_class_name": "FluxPipeline", **{part: ["diffusers", name] for part, name in parts.items()}}
    folder = root / repo
    content = {
        "model_index.json": json.dumps(index).encode(),
        "transformer/config.json": b"{}",
        "transformer/diffusion_pytorch_model.safetensors": b"weights of the transformer" * 1000,
        "vae/diffusion_pytorch_model.safetensors": b"weights of the autoencoder" * 100,
        "tokenizer/merges.txt": b"a b",
        **files,
    }
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
