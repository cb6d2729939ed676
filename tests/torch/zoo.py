"""The models that users bring: nine in plain torch, eight of transformers, small and with random weights.

Dropout is off, so that results can be compared with torch's; tests of dropout have their own models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, TOKENS, BATCH, IMAGE = 99, 8, 2, 16


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.second(functional.relu(self.first(x)))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(16 * (IMAGE // 4) ** 2, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x).flatten(1))


class Residual(nn.Module):
    """Two convolutions beside a way around them; activations in place, as torchvision has them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.around = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Any:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.around(x)
        return self.relu(y)


class ResNet18(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages, channels = [], width
        for stage in range(4):
            out = width << stage
            stages += [Residual(channels, out, 1 if stage == 0 else 2), Residual(out, out, 1)]
            channels = out
        self.stages, self.pool, self.head = nn.Sequential(*stages), nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.pool(self.stages(self.stem(x))).flatten(1))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Any:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a head that shares the embedding's weight."""

    def __init__(self, vocabulary: int = VOCABULARY, context: int = 16, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, layer: Callable[..., nn.Module], layers: int = 1, bidirectional: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.layer = layer(8, 12, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(24 if bidirectional else 12, 5)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layer(self.tokens(ids))[0][:, -1])


class Vit(nn.Module):
    def __init__(self, width: int = 32, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (IMAGE // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.positions
        return self.head(self.norm(self.encoder(tokens)[:, 0]))


class UNetLike(nn.Module):
    """What diffusion models are made of: group norms, SiLU, down, up by both ways, concatenation."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        wide = 2 * channels
        self.enter, self.norm1 = nn.Conv2d(3, channels, 3, padding=1), nn.GroupNorm(4, channels)
        self.down, self.norm2 = nn.Conv2d(channels, wide, 3, 2, 1), nn.GroupNorm(4, wide)
        self.up = nn.ConvTranspose2d(wide, channels, 2, 2)
        self.merge, self.leave = nn.Conv2d(wide, channels, 3, padding=1), nn.Conv2d(channels, 3, 1)

    def forward(self, x: Tensor) -> Any:
        fine = functional.silu(self.norm1(self.enter(x)))
        coarse = functional.silu(self.norm2(self.down(fine)))
        upsampled = functional.interpolate(coarse, scale_factor=2, mode="nearest")[:, : fine.shape[1]]
        return self.leave(functional.silu(self.merge(torch.cat([fine, self.up(coarse) + upsampled], 1))))


@dataclass(frozen=True)
class Case:
    """A model, what it is called with, and the loss of what it returns."""

    model: nn.Module
    arguments: tuple[Any, ...]
    loss: Callable[[Any], Tensor]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def results(self, model: Callable[..., Any]) -> Any:
        return model(*self.arguments, **self.keywords)


def _images(size: int = IMAGE) -> Tensor:
    return torch.randn(BATCH, 3, size, size)


def _ids(vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(0, vocabulary, (BATCH, TOKENS))


def _classes(results: Tensor) -> Tensor:
    return functional.cross_entropy(results, torch.arange(len(results)) % 5)


def _plain(model: nn.Module, x: Tensor) -> Case:
    return Case(model, (x,), _classes)


def _gpt() -> Case:
    ids = _ids()
    return Case(Gpt(), (ids,), lambda y: functional.cross_entropy(y.flatten(0, 1), ids.flatten()))


def _transformers(model: str, config: str, keywords: Callable[[], Mapping[str, Any]], **settings: Any) -> Case:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return Case(made, (), lambda results: results.loss, keywords())


def _language(model: str, config: str, **settings: Any) -> Case:
    ids = _ids()
    return _transformers(model, config, lambda: {"input_ids": ids, "labels": ids}, vocab_size=VOCABULARY, **settings)


DECODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "use_cache": False, "attention_dropout": 0.0,
}  # fmt: skip
ENCODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
LABELS = torch.tensor([0, 1])

OWN: dict[str, Callable[[], Case]] = {
    "mlp": lambda: _plain(Mlp(), torch.randn(4, 16)),
    "cnn": lambda: _plain(Cnn(), _images()),
    "resnet18": lambda: _plain(ResNet18(), _images(64)),
    "gpt": _gpt,
    "lstm": lambda: _plain(Recurrent(nn.LSTM), _ids(20)),
    "bilstm2": lambda: _plain(Recurrent(nn.LSTM, 2, True), _ids(20)),
    "gru": lambda: _plain(Recurrent(nn.GRU), _ids(20)),
    "vit": lambda: _plain(Vit(), _images()),
    "unet": lambda: Case(UNetLike(), (_images(),), lambda y: y.square().mean()),
}
TRANSFORMERS: dict[str, Callable[[], Case]] = {
    "gpt2": lambda: _language(
        "GPT2LMHeadModel", "GPT2Config", n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "llama": lambda: _language("LlamaForCausalLM", "LlamaConfig", **DECODER),
    "bert": lambda: _transformers(
        "BertForSequenceClassification", "BertConfig",
        lambda: {"input_ids": _ids(), "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64), "labels": LABELS},
        vocab_size=VOCABULARY, max_position_embeddings=32, **ENCODER,
    ),
    "hf_vit": lambda: _transformers(
        "ViTForImageClassification", "ViTConfig", lambda: {"pixel_values": _images(), "labels": LABELS},
        image_size=IMAGE, patch_size=4, **ENCODER,
    ),
    "t5": lambda: _language(
        "T5ForConditionalGeneration", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        use_cache=False, decoder_start_token_id=0, dropout_rate=0.0,
    ),
    "qwen2": lambda: _language("Qwen2ForCausalLM", "Qwen2Config", **DECODER),
    "mixtral": lambda: _language("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **DECODER),
    "whisper": lambda: _transformers(
        "WhisperForConditionalGeneration", "WhisperConfig",
        lambda: {"input_features": torch.randn(BATCH, 8, 32), "labels": _ids()},
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=32, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    ),
}  # fmt: skip
ZOO = {**OWN, **TRANSFORMERS}


def build(name: str, seed: int = 0) -> Case:
    """Returns a model of the zoo; the same for the same seed."""
    torch.manual_seed(seed)
    return ZOO[name]()
