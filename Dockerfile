# Foretune with PyTorch for NVIDIA (CUDA) or AMD (ROCm) GPUs.
#
#   make build_and_launch_docker                      CUDA
#   make build_and_launch_docker ACCELERATOR=rocm     ROCm
#
# CUDA: the wheel of torch brings the CUDA libraries; the host needs the driver and the NVIDIA container toolkit.
# ROCm: torch comes with AMD's image. It must be torch 2.13 or newer; ROCM_IMAGE chooses another tag.
ARG ACCELERATOR=cuda
ARG PYTHON_VERSION=3.12
ARG ROCM_IMAGE=rocm/pytorch:latest

FROM python:${PYTHON_VERSION}-slim-bookworm AS cuda
ARG TORCH=torch==2.13.0
RUN pip install --no-cache-dir "${TORCH}"

# hadolint ignore=DL3006
FROM ${ROCM_IMAGE} AS rocm

# hadolint ignore=DL3006
FROM ${ACCELERATOR} AS foretune
LABEL org.opencontainers.image.title="foretune" \
      org.opencontainers.image.description="Know before you fine-tune diffusion models" \
      org.opencontainers.image.licenses="Apache-2.0"
# A compiler: torch.compile builds kernels on the host, too.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /workspace/foretune
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# The torch of the stage above stays, whatever a package would rather have.
RUN python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > /torch.txt \
    && pip install --no-cache-dir --constraint /torch.txt '.[all]' \
    && python -m compileall -q src
COPY . .

# An ordinary user. `make launch_docker` takes the user's own number instead, so that files in the mounted folder stay
# theirs; whoever it is can write to /workspace.
RUN useradd --no-create-home --uid 10001 --home-dir /workspace --shell /bin/bash foretune \
    && mkdir -p /workspace/huggingface /workspace/runs \
    && chmod 1777 /workspace /workspace/huggingface /workspace/runs
USER foretune
WORKDIR /workspace
ENV HOME=/workspace \
    HF_HOME=/workspace/huggingface \
    PYTHONUNBUFFERED=1
CMD ["foretune", "doctor"]
