"""Facts, nearly all with a source in the row: devices, models, families, prices, published measurements. No logic."""

from foretune.catalog.counts import FlopCount, LoraCount, flop_counts, lora_counts
from foretune.catalog.datasets import Dataset, datasets
from foretune.catalog.devices import Device, device, device_by_driver_name, device_names, devices
from foretune.catalog.families import FAMILY_FACTS, TRAINABLE, FamilyFacts, family_facts, family_of_pipeline
from foretune.catalog.licences import Licence, licences
from foretune.catalog.measurements import Measurement, measurements
from foretune.catalog.models import ModelComponent, component, components, denoiser, denoiser_names, denoisers
from foretune.catalog.rows import CatalogError

__all__ = [
    "FAMILY_FACTS",
    "TRAINABLE",
    "CatalogError",
    "Dataset",
    "Device",
    "FamilyFacts",
    "FlopCount",
    "Licence",
    "LoraCount",
    "Measurement",
    "ModelComponent",
    "component",
    "components",
    "datasets",
    "denoiser",
    "denoiser_names",
    "denoisers",
    "device",
    "device_by_driver_name",
    "device_names",
    "devices",
    "family_facts",
    "family_of_pipeline",
    "flop_counts",
    "licences",
    "lora_counts",
    "measurements",
]
