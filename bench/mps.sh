# To be sourced: NVIDIA's MPS, where it can be started, so that the kernels of several processes run at the same time. It ends with the shell.
if command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d 2>/dev/null; then
  trap 'echo quit | timeout 10 nvidia-cuda-mps-control' EXIT
  if ! timeout 40 python3 -c "import torch; torch.ones(1, device='cuda')" >/dev/null 2>&1; then
    echo "MPS does not serve here: without it"
    echo quit | timeout 10 nvidia-cuda-mps-control
  fi
fi
