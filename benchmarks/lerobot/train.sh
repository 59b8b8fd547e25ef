#!/usr/bin/env bash
# Train a small policy with lerobot-train on one thread of a CPU: train.sh PYTHON DATASET act|diffusion OUTPUT STEPS
set -euo pipefail
python=$1 dataset=$2 kind=$3 output=$4 steps=$5

act=(
  --policy.pretrained_backbone_weights=null --policy.dim_model=128 --policy.n_heads=4 --policy.dim_feedforward=512
  --policy.n_encoder_layers=2 --policy.use_vae=false --policy.dropout=0.0 --policy.chunk_size=16
  --policy.n_action_steps=8 --policy.optimizer_lr_backbone=3e-4
  --use_policy_training_preset=false --optimizer.type=adamw --optimizer.lr=3e-4 --optimizer.weight_decay=1e-4
  --scheduler.type=cosine_decay_with_warmup --scheduler.peak_lr=3e-4 --scheduler.decay_lr=3e-6
  --scheduler.num_warmup_steps=200 --scheduler.num_decay_steps="$steps"
)
diffusion=(
  --policy.down_dims='[128,256]' --policy.horizon=16 --policy.n_obs_steps=2 --policy.n_action_steps=8
  --policy.crop_shape='[60,60]' --policy.noise_scheduler_type=DDIM --policy.num_inference_steps=10
  --policy.optimizer_lr=3e-4 --policy.scheduler_warmup_steps=200
)
declare -n chosen=$kind

export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
exec "$python" -m lerobot.scripts.lerobot_train \
  --dataset.repo_id=arena/lift_object --dataset.root="$dataset" --dataset.use_imagenet_stats=false \
  --policy.type="$kind" --policy.device=cpu --policy.push_to_hub=false "${chosen[@]}" \
  --batch_size=16 --steps="$steps" --save_freq=1000 --log_freq=50 --eval_freq=0 --num_workers=0 --seed=1 \
  --wandb.enable=false --output_dir="$output"
