"""Hugging Face's `TransfoXLLMHeadModel` as an oracle: the same model in another code base with another layout.

transformers 4.57.6 is of the last release line that has it. There its `forward` needs a shim, because it calls
`Tensor.type_as` with an argument that torch has never had.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

from xltraining.transformer_xl import TransformerXLConfig

SAME = (  # settings with our names
    *("d_model", "n_head", "d_head", "d_inner", "div_val", "pre_lnorm", "n_layer", "mem_len", "clamp_len"),
    *("same_length", "untie_r", "layer_norm_epsilon", "dropout", "dropatt"),
)


@contextlib.contextmanager
def _type_as_takes_dtype() -> Iterator[None]:
    original = Tensor.type_as
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "type_as", lambda x, other=None, dtype=None: x.to(dtype) if dtype else original(x, other))
        yield


@dataclass(frozen=True)
class OracleSegment:
    """The oracle's results for one segment.

    Attributes:
        tokens, targets: (B, S) int64.
        log_probs: (B, S, V) nats of every token of the vocabulary.
        memory: after the segment, n_layer hidden states (B, M, D).
    """

    tokens: Tensor
    targets: Tensor
    log_probs: Tensor
    memory: list[Tensor]

    @property
    def target_log_probs(self) -> Tensor:
        """The log-probabilities of the targets, (B, S), in nats."""
        return self.log_probs.gather(2, self.targets.unsqueeze(2)).squeeze(2)


class Oracle:
    """A Hugging Face model for one of our configurations, with random weights that all have an effect.

    Some behaviour has no setting in Hugging Face. The TensorFlow and NVIDIA codes' window of `mem_len + 1` keys is set
    by a mask made for a memory of one row more than is fed; a cluster without a projection has an identity.
    """

    def __init__(self, config: TransformerXLConfig, seed: int = 0) -> None:
        self.config = config
        width = config.d_embed or config.d_model
        clusters = len(config.cutoffs) + 1
        settings = TransfoXLConfig(
            **{name: getattr(config, name) for name in SAME},
            vocab_size=config.n_token,
            cutoffs=list(config.cutoffs),
            d_embed=width,
            tie_word_embeddings=config.tie_weight,
            tie_projs=list(config.tie_projs) or [False] * clusters,
            trainer_compatible=True,  # keeps it from warning
        )
        self.model: Any = TransfoXLLMHeadModel(settings).eval()
        self.model.transformer.mem_len += config.window_extra  # the mask's; `step` cuts the memory itself
        self.unprojected = {
            index
            for index in range(clusters)
            if config.div_val > 1 and not config.proj_same_dim and width // config.div_val**index == config.d_model
        }
        self._fill(seed)

    @torch.no_grad()
    def _fill(self, seed: int) -> None:
        """Fill all parameters with random numbers, also ones that Hugging Face leaves uninitialised, zero or one.

        Matrices keep the scale of their inputs; for projections (D, E), the scale in the output layer counts. The
        embedding of token 0 is small, so that the epsilon of the normalisation has an effect.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            matrix = parameter.dim() == 2 and not name.endswith("_bias")
            scale = parameter.shape[0 if "_projs" in name else 1] ** -0.5 if matrix else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if name.endswith("layer_norm.weight"):
                parameter.add_(1)
        self.model.transformer.word_emb.emb_layers[0].weight[0] *= 1e-3
        for index in self.unprojected:
            for projections in (self.model.transformer.word_emb.emb_projs, self.model.crit.out_projs):
                torch.nn.init.eye_(projections[index])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights under our names, cut into clusters like ours; tied weights have each of their names."""
        config, transformer, crit = self.config, self.model.transformer, self.model.crit
        edges = [0, *config.cutoffs, config.n_token]
        named: dict[str, Tensor] = {}
        for index, (first, end) in enumerate(itertools.pairwise(edges)):
            embedding, output = f"word_emb.clusters.{index}", f"head.clusters.{index}"
            if config.div_val == 1:  # one table for all clusters
                named[f"{embedding}.table"] = transformer.word_emb.emb_layers[0].weight[first:end]
                named[f"{output}.weight"] = crit.out_layers[0].weight[first:end]
                named[f"{output}.bias"] = crit.out_layers[0].bias[first:end]
            else:
                named[f"{embedding}.table"] = transformer.word_emb.emb_layers[index].weight
                named[f"{output}.weight"] = crit.out_layers[index].weight
                named[f"{output}.bias"] = crit.out_layers[index].bias
            if len(transformer.word_emb.emb_projs) and index not in self.unprojected:
                place = 0 if config.div_val == 1 else index
                named[f"{embedding}.projection"] = transformer.word_emb.emb_projs[place]
                named[f"{output}.projection"] = crit.out_projs[index]
        if config.cutoffs:
            named["head.cluster_weight"], named["head.cluster_bias"] = crit.cluster_weight, crit.cluster_bias
        for index, layer in enumerate(transformer.layers):
            attention, feed_forward = f"layers.{index}.attention", f"layers.{index}.feed_forward"
            named |= {
                f"{attention}.qkv.weight": layer.dec_attn.qkv_net.weight,
                f"{attention}.position.weight": layer.dec_attn.r_net.weight,
                f"{attention}.output.weight": layer.dec_attn.o_net.weight,
                f"{attention}.content_bias": layer.dec_attn.r_w_bias,
                f"{attention}.position_bias": layer.dec_attn.r_r_bias,
                f"{attention}.norm.weight": layer.dec_attn.layer_norm.weight,
                f"{attention}.norm.bias": layer.dec_attn.layer_norm.bias,
                f"{feed_forward}.inner.weight": layer.pos_ff.CoreNet[0].weight,
                f"{feed_forward}.inner.bias": layer.pos_ff.CoreNet[0].bias,
                f"{feed_forward}.outer.weight": layer.pos_ff.CoreNet[3].weight,
                f"{feed_forward}.outer.bias": layer.pos_ff.CoreNet[3].bias,
                f"{feed_forward}.norm.weight": layer.pos_ff.layer_norm.weight,
                f"{feed_forward}.norm.bias": layer.pos_ff.layer_norm.bias,
            }
        return {name: tensor.detach().clone() for name, tensor in named.items()}

    def keys_and_values(self, memory: list[Tensor]) -> dict[str, Tensor]:
        """Hidden states (B, M, D) of each layer as what the rings hold, by input name: (B, H, M, d_head)."""
        config = self.config
        rows: dict[str, Tensor] = {}
        for index, (layer, hidden) in enumerate(zip(self.model.transformer.layers, memory, strict=True)):
            B, M, _ = hidden.shape
            normed = layer.dec_attn.layer_norm(hidden) if config.pre_lnorm else hidden
            heads = layer.dec_attn.qkv_net(normed).view(B, M, 3, config.n_head, config.d_head)
            rows[f"memory_key_{index}"] = heads[:, :, 1].transpose(1, 2)
            rows[f"memory_value_{index}"] = heads[:, :, 2].transpose(1, 2)
        return rows

    def first_memory(self, batch_size: int) -> list[Tensor] | None:
        """Return n_layer tensors (M, B, D) without rows or with mem_len zero rows; None: Hugging Face makes them."""
        config = self.config
        zeros = config.first_memory == "zeros"
        if zeros and not config.window_extra:
            return None
        rows = config.mem_len if zeros else 0
        return [torch.zeros(rows, batch_size, config.d_model) for _ in range(config.n_layer)]

    def step(self, tokens: Tensor, memory: list[Tensor] | None, **settings: Any) -> Any:
        """Return Hugging Face's own output for tokens (B, S), with its next `mems` (M, B, D) cut to mem_len rows."""
        with _type_as_takes_dtype():
            output = self.model(tokens, mems=memory, return_dict=True, **settings)
        if output.mems is not None:
            output.mems = [rows[max(0, len(rows) - self.config.mem_len) :] for rows in output.mems]
        return output

    @torch.no_grad()
    def walk(self, segments: Iterable[tuple[Tensor, Tensor]]) -> list[OracleSegment]:
        """Walk one document in each row of the batch, segment after segment, with carried memory."""
        walked: list[OracleSegment] = []
        memory: list[Tensor] | None = None
        for tokens, targets in segments:
            output = self.step(tokens, memory if walked else self.first_memory(len(tokens)))
            memory = output.mems
            assert memory is not None
            by_batch = [rows.transpose(0, 1) for rows in memory]
            walked.append(OracleSegment(tokens, targets, output.prediction_scores, by_batch))
        return walked
