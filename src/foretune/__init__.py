"""Know before you fine-tune: what fine-tuning a diffusion model needs, costs and yields."""

__version__ = "0.1.0"
