"""A portrait from four in a hundred of its pixels.

Keep the pixels of a photograph where its brightness bends, forget the rest, and let the colours that
are left diffuse into the gaps: the filled picture ``u`` solves a sparse linear system with one unknown
a pixel, ``(diag(weight) + L) u = weight * kept``, where ``L`` is the Laplacian of the pixel grid.

SciPy factorises that system; no array framework does. Here the routine becomes an operator with all its
rules, and its gradient finds better colours for the pixels that are kept.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.cbook
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage
import scipy.optimize
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


# The rules. They use operators and ``ow.array_namespace`` only, so they serve every framework's arrays.


@diffuse.register_fake
def _(source, weight):
    return ow.empty_like(source)


def _setup_context(ctx, inputs, output):
    _, weight = inputs
    ctx.save_for_backward(weight, output)


@diffuse.register_autograd(setup_context=_setup_context)
def _(ctx, grad):
    weight, u = ctx.saved_tensors
    adjoint = diffuse(grad, weight)  # the system is symmetric: its adjoint is itself, factors and all
    slope = -adjoint * u
    if slope.ndim > weight.ndim:
        slope = ow.array_namespace(slope).sum(slope, axis=tuple(range(slope.ndim - 2)))
    return adjoint, slope


@diffuse.register_jvp
def _(ctx, source_tangent, weight_tangent):
    weight, u = ctx.saved_tensors
    if weight_tangent is None:
        return diffuse(source_tangent, weight)
    pull = -weight_tangent * u
    return diffuse(pull if source_tangent is None else source_tangent + pull, weight)


@diffuse.register_vmap
def _(info, in_dims, source, weight):
    xp = ow.array_namespace(source)
    source_dim, weight_dim = in_dims
    if source_dim is None:
        source = xp.broadcast_to(source, (info.batch_size, *source.shape))
    else:
        source = xp.moveaxis(source, source_dim, 0)
    if weight_dim is not None:
        weight = xp.moveaxis(weight, weight_dim, 0)
        gap = (1,) * (source.ndim - weight.ndim)
        weight = xp.reshape(weight, (info.batch_size, *gap, *weight.shape[1:]))
    if weight.ndim > 2:
        weight = xp.broadcast_to(weight, source.shape)
    return diffuse(source, weight), 0


@diffuse.register_samples
def _():
    random = np.random.default_rng(0)
    for batch, own_weights in (((), False), ((2,), False), ((2,), True)):
        shape = (*batch, 5, 4)
        yield random.standard_normal(shape), random.uniform(0.1, 2.0, shape if own_weights else shape[-2:])


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


def fit(photo: np.ndarray, kept: np.ndarray, weight: np.ndarray, steps: int) -> np.ndarray:
    """Find the colours of the kept pixels from which the filled picture is nearest to the photograph.

    The loss is half the sum of squares; its gradient is one pull of ``ow.vjp``.
    """

    def loss(colours: np.ndarray) -> tuple[float, np.ndarray]:
        picture, pull = ow.vjp(diffuse, weight * _on(kept, colours), weight)
        error = picture - photo
        by_source, _ = pull(error)
        return 0.5 * float(np.sum(error**2)), (weight * by_source)[:, kept].ravel()

    start = photo[:, kept].ravel()
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return _on(kept, best.x)


def _on(kept: np.ndarray, colours: np.ndarray) -> np.ndarray:
    picture = np.zeros((3, *kept.shape))
    picture[:, kept] = colours.reshape(3, -1)
    return picture


def main() -> None:
    """Fill in the portrait, fit it through the operator's gradient, and check the operator."""
    mpl.use("agg")
    photo = photograph()
    kept = bends(photo, SHARE)
    weight = STRENGTH * kept

    filled, first = timed(lambda: diffuse(weight * photo, weight))
    _, again = timed(lambda: diffuse(weight * photo, weight))
    scattered = STRENGTH * (np.random.default_rng(0).random(kept.shape) < kept.mean())
    by_chance = diffuse(scattered * photo, scattered)

    colours, fitting = timed(lambda: fit(photo, kept, weight, steps=10))
    batched = ow.vmap(diffuse, in_dims=(0, None))
    fitted, batch = timed(lambda: batched(weight * colours, weight))
    loop = np.stack([diffuse(channel, weight) for channel in weight * colours])

    count = f"{kept.sum():,} of {kept.size:,} pixels"
    save(
        [
            ("Kept", f"{count}, where the brightness bends", kept * photo),
            ("Filled in", f"one call of demo::diffuse, {decibels(filled, photo):.1f} dB", filled),
            ("Fitted", f"through its gradient, {decibels(fitted, photo):.1f} dB", fitted),
            ("The photograph", "Rear Admiral Grace M. Hopper, US Navy", photo),
        ],
        PICTURE,
    )
    chance, best, away = decibels(by_chance, photo), decibels(fitted, photo), np.abs(fitted - loop).max()
    print(f"""\
{diffuse.schema}: a sparse solve by SciPy, called on NumPy arrays
  kept      {count} ({kept.mean():.1%})
  solved    {kept.size:,} unknowns for 3 channels in {first:.2f} s, then in {again:.2f} s
  accuracy  {decibels(filled, photo):.1f} dB; {chance:.1f} dB from as many pixels chosen by chance
  fitted    {best:.1f} dB from the same pixels in better colours, in {fitting:.1f} s through ow.vjp
  batched   3 channels by ow.vmap in {batch:.2f} s, {away:.0e} away from a loop
  picture   {os.path.relpath(PICTURE)}
""")
    print(ow.opcheck(diffuse))


def timed(call: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """Return what a call returns, and its seconds."""
    start = time.perf_counter()
    out = call()
    return out, time.perf_counter() - start


if __name__ == "__main__":
    main()
