#!/usr/bin/env bash
# One GPU, under 8 minutes: real device kernels beside real communication, profiled and analysed; parity with torch's DDP;
# NCCL at world size 1. Everything it leaves lies under $OUT (traces of a few MiB).
#
#   OUT=gpu-smoke PYTHON=.venv/bin/python benchmarks/gpu_smoke.sh
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-gpu-smoke}
python=${PYTHON:-python3}
mkdir -p "$out"

"$python" -c 'import torch; assert torch.cuda.is_available(), "no GPU here"; print(torch.__version__, torch.cuda.get_device_name())'

for wrapper in torch bucketed; do
  echo "== two gloo ranks on one GPU, $wrapper"
  "$python" -m advisor run gpt --preset small --nproc 2 --backend gloo --device cuda --wrapper "$wrapper" --steps 4 \
    --out "$out/gloo-$wrapper"
  "$python" -m advisor analyze "$out/gloo-$wrapper"
done

echo "== NCCL at world size 1"
"$python" -m advisor run gpt --preset small --nproc 1 --backend nccl --device cuda --wrapper bucketed --steps 4 \
  --out "$out/nccl-1"
"$python" -m advisor analyze "$out/nccl-1"

echo "== parity with torch's DDP on the GPU"
"$python" -m pytest -q -rs tests/ddp/test_cuda.py

du -sh "$out"
