#!/usr/bin/env python3
"""Writes the reference's position tables for tests/unit/model/position.c. Needs torch and transformers."""
import numpy as np, torch
from transformers.models.qwen3_vl import modeling_qwen3_vl as q
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig, Qwen3VLVisionConfig
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

rng = np.random.default_rng(7)
GRIDS = [(2, 2), (8, 8), (26, 26), (2, 160), (160, 2), (60, 42), (112, 160)]
table = rng.standard_normal((48 * 48,)).astype(np.float32)
np.save("table.npy", table)
np.save("grids.npy", np.array(GRIDS, np.int32))
grid = torch.tensor([[1, h, w] for h, w in GRIDS])
idx, weight = get_vision_interpolation_indices_and_weights(grid, num_grid_per_side=48, mode="bilinear",
                                                           align_corners=True, spatial_merge_size=2)
np.save("interpolated.npy", (torch.tensor(table)[idx] * weight).sum(1).numpy())

cfg = Qwen3VLVisionConfig(hidden_size=1024, num_heads=16)
small = torch.tensor([[1, 26, 26]])
cos, sin = q.Qwen3VLVisionRotaryEmbedding(cfg)(torch.zeros(1), get_vision_position_ids(small, 2))
np.save("vision_cos.npy", cos[:, :32].numpy()); np.save("vision_sin.npy", sin[:, :32].numpy())

text = Qwen3VLTextConfig(hidden_size=2048, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                         rope_parameters={"rope_type": "default", "rope_theta": 5000000.0,
                                          "mrope_section": [24, 20, 20], "mrope_interleaved": True})
pos = rng.integers(0, 6000, (64, 3)).astype(np.int32)
cos, sin = q.Qwen3VLTextRotaryEmbedding(text)(torch.zeros(1), torch.tensor(pos.T[:, None].copy()))
np.save("text_pos.npy", pos); np.save("text_cos.npy", cos[0, :, :64].numpy()); np.save("text_sin.npy", sin[0, :, :64].numpy())
