"""A portrait from four in a hundred of its pixels.

Keep the pixels of a photograph where its brightness bends, forget the rest, and let the colours that
are left diffuse into the gaps: the filled picture ``u`` solves a sparse linear system with one unknown
a pixel, ``(diag(weight) + L) u = weight * kept``, where ``L`` is the Laplacian of the pixel grid.

SciPy factorises that system; no array framework does. Here the routine becomes an operator.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import matplotlib as mpl
import matplotlib.cbook
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage
import scipy.sparse
import scipy.sparse.linalg

import opwright as ow

SHARE = 0.04  # of the pixels are kept
STRENGTH = 100.0  # how firmly a kept pixel holds its colour, against a pull of 1 from each neighbour
PICTURE = Path(__file__).resolve().parent.parent / "build" / "inpaint.png"


@ow.custom_op("demo::diffuse", mutates_args=())
def diffuse(source: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Solve ``(diag(weight) + L) u = source`` on the pixel grid.

    Parameters
    ----------
    source : array, shape (..., height, width)
        The right-hand side; any number of them.
    weight : array, shape (height, width) or that of ``source``
        Not negative, and positive somewhere in each picture. One without leading axes serves every
        right-hand side with one factorisation.

    Returns
    -------
    array, shape and dtype of ``source``
        The solution ``u``.
    """
    if weight.shape not in (source.shape, source.shape[-2:]):
        raise ValueError(f"weight has shape {weight.shape}, source {source.shape}: give one weight a pixel")
    if source.size == 0:
        return np.empty_like(source)
    pixels = source.shape[-2] * source.shape[-1]
    sources = source.reshape(-1, pixels).astype(np.float64)
    if weight.ndim == 2:
        out = _factorise(weight).solve(sources.T).T
    else:
        weights = weight.reshape(-1, *source.shape[-2:])
        out = np.stack([_factorise(w).solve(s) for w, s in zip(weights, sources, strict=True)])
    return out.reshape(source.shape).astype(source.dtype)


def _factorise(weight: np.ndarray) -> scipy.sparse.linalg.SuperLU:
    return _factors(np.asarray(weight, dtype=np.float64).tobytes(), weight.shape)


@functools.lru_cache(maxsize=2)
def _factors(weight: bytes, shape: tuple[int, int]) -> scipy.sparse.linalg.SuperLU:
    rows, columns = (_second_difference(n) for n in shape)
    laplacian = scipy.sparse.kronsum(columns, rows)
    system = laplacian + scipy.sparse.diags_array(np.frombuffer(weight))
    return scipy.sparse.linalg.splu(
        system.tocsc(),
        permc_spec="MMD_AT_PLUS_A",  # the three that SciPy recommends for a symmetric, definite matrix
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )


def _second_difference(n: int) -> scipy.sparse.sparray:
    """Return the Laplacian of ``n`` pixels in a row, with ends that let nothing through."""
    degree = np.full(n, 2.0)
    degree[0] -= 1.0
    degree[-1] -= 1.0
    return scipy.sparse.diags_array([-np.ones(n - 1), degree, -np.ones(n - 1)], offsets=[-1, 0, 1])


def photograph() -> np.ndarray:
    """Return the portrait of Grace Hopper that matplotlib ships: channels, height, width, in 0 to 1."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        return np.moveaxis(matplotlib.image.imread(file) / 255.0, -1, 0)


def bends(photo: np.ndarray, share: float) -> np.ndarray:
    """Choose about ``share`` of the pixels, most densely where the brightness bends most."""
    bend = np.abs(scipy.ndimage.gaussian_laplace(photo.mean(axis=0), sigma=1.4))
    density = bend + 0.05 * bend.mean()
    for _ in range(20):  # scale to the wished mean; what exceeds 1 is cut off, so a few rounds
        density = np.minimum(density * (share / density.mean()), 1.0)
    return _dither(density)


def _dither(density: np.ndarray) -> np.ndarray:
    """Floyd and Steinberg's error diffusion, back and forth over the rows."""
    height, width = density.shape
    rest = np.pad(density, ((0, 1), (1, 1)))
    dots = np.zeros(density.shape, dtype=bool)
    for y in range(height):
        step = 1 if y % 2 == 0 else -1
        for x in range(width)[::step]:
            dots[y, x] = rest[y, x + 1] > 0.5
            error = rest[y, x + 1] - dots[y, x]
            rest[y, x + 1 + step] += error * 7 / 16
            rest[y + 1, x : x + 3] += error * np.array([3, 5, 1])[::step] / 16
    return dots


def decibels(picture: np.ndarray, photo: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of a picture in 0 to 1; more is better."""
    return float(-10 * np.log10(np.mean((np.clip(picture, 0, 1) - photo) ** 2)))


def save(panels: list[tuple[str, str, np.ndarray]], path: Path) -> None:
    """Save pictures side by side, pixel for pixel, with a closer look at each underneath."""
    ink, paper, gap, header = "#e8e4da", "#14161a", 18, 74
    _, height, width = panels[0][2].shape
    rows, columns = slice(140, 225), slice(150, 365)
    close = round(width * (rows.stop - rows.start) / (columns.stop - columns.start))
    across, up = gap + len(panels) * (width + gap), gap + close + gap + height + header
    figure = plt.figure(figsize=(across / 100, up / 100), dpi=100, facecolor=paper)
    for i, (title, caption, picture) in enumerate(panels):
        left = gap + i * (width + gap)
        for part, y, h in ((picture[:, rows, columns], gap, close), (picture, gap + close + gap, height)):
            axes = figure.add_axes((left / across, y / up, width / across, h / up))
            axes.imshow(np.moveaxis(np.clip(part, 0, 1), 0, -1), interpolation="nearest", aspect="auto")
            axes.set_axis_off()
        figure.text(left / across, 1 - 30 / up, title, color=ink, size=17, family="serif", va="center")
        figure.text(left / across, 1 - 56 / up, caption, color=ink, alpha=0.7, size=11, va="center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Fill in the portrait and say how well it went."""
    mpl.use("agg")
    photo = photograph()
    kept = bends(photo, SHARE)
    weight = STRENGTH * kept

    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        filled = diffuse(weight * photo, weight)
        seconds.append(time.perf_counter() - start)

    scattered = STRENGTH * (np.random.default_rng(0).random(kept.shape) < kept.mean())
    by_chance = diffuse(scattered * photo, scattered)

    share = f"{kept.sum():,} of {kept.size:,} pixels"
    save(
        [
            ("Kept", f"{share}, where the brightness bends", kept * photo),
            ("Filled in", f"one call of demo::diffuse, {decibels(filled, photo):.1f} dB", filled),
            ("The photograph", "Rear Admiral Grace M. Hopper, US Navy", photo),
        ],
        PICTURE,
    )
    print(f"{diffuse.schema}: a sparse solve by SciPy, called on NumPy arrays")
    print(f"  kept      {share} ({kept.mean():.1%})")
    print(f"  solved    {kept.size:,} unknowns for 3 channels in {seconds[0]:.2f} s", end="")
    print(f", then in {seconds[1]:.2f} s")
    print(f"  accuracy  {decibels(filled, photo):.1f} dB", end="")
    print(f"; {decibels(by_chance, photo):.1f} dB from as many pixels chosen by chance")
    print(f"  picture   {os.path.relpath(PICTURE)}")


if __name__ == "__main__":
    main()
