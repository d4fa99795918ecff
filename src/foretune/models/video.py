"""Shared by families of video models: latents with frames."""

from typing import ClassVar

from foretune.models.transformer import LatentTransformer


class VideoTransformer(LatentTransformer):
    """The first frame is one latent frame; after it, the autoencoder compresses a fixed number of frames into one."""

    usual_size_px: ClassVar[tuple[int, int]]
    """Default height and width of its pipeline."""
    usual_num_frames: ClassVar[int]

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        factor = self._vae_factor()
        num_latent_frames = (num_frames - 1) // self.frames_per_latent() + 1
        return (self._vae_channels(), num_latent_frames, height_px // factor, width_px // factor)

    def default_resolution_px(self) -> int:
        return min(self.default_size_px())

    def default_size_px(self) -> tuple[int, int]:
        return self.usual_size_px

    def default_num_frames(self) -> int:
        return self.usual_num_frames

    def _vae_factor(self) -> int:
        return int(self._vae["spatial_compression_ratio"])

    def frames_per_latent(self) -> int:
        return int(self._vae["temporal_compression_ratio"])
