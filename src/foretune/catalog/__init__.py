"""Facts with a source in every row: devices, models, prices, published measurements. No logic."""

from foretune.catalog.counts import FlopCount, LoraCount, flop_counts, lora_counts
from foretune.catalog.devices import Device, device, devices
from foretune.catalog.measurements import Measurement, measurements
from foretune.catalog.models import ModelComponent, component, components, denoiser, denoisers
from foretune.catalog.rows import CatalogError

__all__ = [
    "CatalogError",
    "Device",
    "FlopCount",
    "LoraCount",
    "Measurement",
    "ModelComponent",
    "component",
    "components",
    "denoiser",
    "denoisers",
    "device",
    "devices",
    "flop_counts",
    "lora_counts",
    "measurements",
]
