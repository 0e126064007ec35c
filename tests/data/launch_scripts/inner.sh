#!/bin/bash
TP=${TP:-8}; PP=${PP:-1}
torchrun --nnodes ${SLURM_NNODES} --nproc-per-node 8 pretrain_gpt.py \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/hf/Llama-3.1-8B --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer
