"""Models whose steps take minutes to record. Routine runs record those of others."""

SLOW_MODELS = ("sdxl-unet", "kolors-unet", "sd1.5-unet", "sd2-unet", "hidream-i1")
