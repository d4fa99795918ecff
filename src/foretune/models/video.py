"""What families of video models share: latents with frames."""

from typing import ClassVar

from foretune.models.transformer import LatentTransformer


class VideoTransformer(LatentTransformer):
    """The first frame is one latent frame, and after it so many frames are one as the autoencoder says."""

    usual_size_px: ClassVar[tuple[int, int]]
    """Height and width its pipeline samples unless told otherwise."""
    usual_num_frames: ClassVar[int]

    def latent_shape(self, height_px: int, width_px: int, num_frames: int = 1) -> tuple[int, ...]:
        factor = self._vae_factor()
        num_latent_frames = (num_frames - 1) // self._vae_frame_factor() + 1
        return (self._vae_channels(), num_latent_frames, height_px // factor, width_px // factor)

    def default_resolution_px(self) -> int:
        return min(self.default_size_px())

    def default_size_px(self) -> tuple[int, int]:
        return self.usual_size_px

    def default_num_frames(self) -> int:
        return self.usual_num_frames

    def _vae_factor(self) -> int:
        return int(self._vae["spatial_compression_ratio"])

    def _vae_frame_factor(self) -> int:
        """Frames to one latent frame."""
        return int(self._vae["temporal_compression_ratio"])
