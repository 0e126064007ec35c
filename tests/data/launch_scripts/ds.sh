#!/bin/bash
# after Megatron-DeepSpeed's examples: the config is written by the script
GLOBAL_BATCH=512
MICRO_BATCH=2
DS_CONFIG=ds_config.json
cat <<EOT > $DS_CONFIG
{
  "train_batch_size": $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": true}
}
EOT
deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 \
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size $MICRO_BATCH --global-batch-size $GLOBAL_BATCH --bf16 --vocab-size 32000 --zero-stage 1 \
  --deepspeed --deepspeed_config $DS_CONFIG --checkpoint-activations
