"""Towers: encoders that turn images and sound into tokens of a text model."""

from dataclasses import dataclass

from rlplan.files.limits import AtLeastOne, NonNegativeInt

# Of a second of sound (Whisper's and Qwen's extractors of features: a frame each 10 ms).
FRAMES_PER_SECOND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTower:
    """Hold the sizes of a vision transformer that decide its compute.

    Attributes:
        patch_values: Input values of a patch.
        merged_patches: Patches that are merged to one token of the text model.
        joined: Number of two-matrix projections to the text model: one, and one for each layer of the text model that gets
            the output of a layer of the tower (deepstack).
        joined_narrow: Whether the first of the two matrices already gives the text model's width (InternVL).
        window_patches: Patches of an attention window; None where all patches of an image attend to one another.
        whole_layers: Layers that attend to whole images in spite of windows.
    """

    num_layers: AtLeastOne
    hidden_size: AtLeastOne
    num_heads: AtLeastOne
    ffn_size: AtLeastOne
    gated_mlp: bool = False
    patch_values: AtLeastOne
    merged_patches: AtLeastOne = 4
    joined: AtLeastOne = 1
    joined_narrow: bool = False
    window_patches: AtLeastOne | None = None
    whole_layers: NonNegativeInt = 0

    def parameters(self, hidden_size: int) -> int:
        """Return the parameters of its matrices, and of the projections to a text model of this hidden size."""
        width = self.hidden_size
        layer = 4 * width**2 + (3 if self.gated_mlp else 2) * width * self.ffn_size
        together = self.merged_patches * width
        between = hidden_size if self.joined_narrow else together
        joined = self.joined * between * (together + hidden_size)
        return self.num_layers * layer + width * self.patch_values + joined


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundTower:
    """Hold the sizes of a transformer that turns sound into tokens (Whisper; Radford et al. 2022, arXiv:2212.04356).

    Before its layers there are two convolutions over time, of which the second halves the length, and two positions make a
    token (Qwen2.5-Omni); or three convolutions over time and frequency, each of which halves both, and each position is a
    token (Qwen3-Omni).

    Attributes:
        mel_bins: Frequencies of a frame of 10 ms.
        channels: Of convolutions over time and frequency; None for convolutions over time.
        window_positions: Positions of an attention window.
        output_size: Width of a token for the text model.
    """

    num_layers: AtLeastOne
    hidden_size: AtLeastOne
    num_heads: AtLeastOne
    ffn_size: AtLeastOne
    mel_bins: AtLeastOne = 128
    channels: AtLeastOne | None = None
    window_positions: AtLeastOne
    output_size: AtLeastOne

    @property
    def positions_per_token(self) -> int:
        """Return the positions of its layers that make one token."""
        return 2 if self.channels is None else 1

    @property
    def tokens_per_second(self) -> int:
        """Return the tokens of a second of sound: 25, or 13 of a second's frames that three convolutions halve."""
        return 25 if self.channels is None else halved(FRAMES_PER_SECOND, 3)

    @property
    def products(self) -> tuple[tuple[float, int, int], ...]:
        """Return the products before and after its layers, each as (rows a token, input width, output width)."""
        width, each = self.hidden_size, self.channels
        if each is None:
            frames = FRAMES_PER_SECOND / self.tokens_per_second
            before = ((frames, 3 * self.mel_bins, width), (frames / 2, 3 * width, width))
            return (*before, (1.0, width, self.output_size))
        places = [
            halved(FRAMES_PER_SECOND, often) * halved(self.mel_bins, often) for often in (1, 2, 3)
        ]
        inputs = (9, 9 * each, 9 * each)
        convolutions = tuple(
            (count / self.tokens_per_second, size, each)
            for count, size in zip(places, inputs, strict=True)
        )
        joined = halved(self.mel_bins, 3) * each
        return (
            *convolutions,
            (1.0, joined, width),
            (1.0, width, width),
            (1.0, width, self.output_size),
        )

    @property
    def parameters(self) -> int:
        """Return the parameters of its matrices, in its layers and before and after them."""
        layer = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.ffn_size
        return self.num_layers * layer + sum(size * width for _, size, width in self.products)


def halved(count: int, often: int) -> int:
    """Return a number halved `often` times, rounded up."""
    return -(-count >> often)
