"""Towers: what turns images and sound into tokens of a text model."""

from dataclasses import dataclass

from rlplan.files.limits import AtLeastOne, NonNegativeInt

# Of a second of sound (Whisper's and Qwen's extractors of features: a frame each 10 ms).
FRAMES_PER_SECOND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTower:
    """Hold the sizes of a vision transformer that turns images into tokens, as far as they say what it computes.

    Attributes:
        patch_values: Values of a patch that its first matrix takes.
        merged_patches: Patches that lie together in one token of the text model.
        joined: Times that merged patches go through two matrices to the text model: once, and once more for each layer of
            the text model that is handed what a layer of the tower gave (deepstack).
        joined_narrow: Whether the first of the two leads to the text model's width already (InternVL).
        window_patches: Patches that attend to one another; None where all of an image do.
        whole_layers: Layers in which all of an image do all the same.
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
        """Return its matrices' parameters, with those that join it to a text model of such a hidden size."""
        width = self.hidden_size
        layer = 4 * width**2 + (3 if self.gated_mlp else 2) * width * self.ffn_size
        together = self.merged_patches * width
        between = hidden_size if self.joined_narrow else together
        joined = self.joined * between * (together + hidden_size)
        return self.num_layers * layer + width * self.patch_values + joined


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundTower:
    """Hold the sizes of a transformer that turns sound into tokens (Whisper; Radford et al. 2022, arXiv:2212.04356).

    Two convolutions over time stand before its layers, of which the second halves it, and two of its positions are one token
    (Qwen2.5-Omni); or three over time and frequency, each of which halves both, and a position is a token (Qwen3-Omni).

    Attributes:
        mel_bins: Frequencies of a frame of 10 ms.
        channels: Of convolutions over time and frequency; None for those over time.
        window_positions: Positions that attend to one another.
        output_size: Of a token, which is handed to the text model.
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
        """Return what stands before and behind its layers as products: rows a token, width of a row and of what it gives."""
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
        """Return its matrices' parameters, with those before and behind its layers."""
        layer = 4 * self.hidden_size**2 + 2 * self.hidden_size * self.ffn_size
        return self.num_layers * layer + sum(size * width for _, size, width in self.products)


def halved(count: int, often: int) -> int:
    """Return a number that is halved so often, upwards."""
    return -(-count >> often)
