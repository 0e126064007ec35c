torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel \
  --num-layers 60 --hidden-size 6656 --num-attention-heads 52 --ffn-hidden-size 17920 --swiglu --disable-bias-linear --normalization RMSNorm \
  --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 32000 --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer \
  --optimizer-cpu-offload --optimizer-offload-fraction 0.25 --use-precision-aware-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
