#!/usr/bin/env bash
# Builds, checks and times the CUDA backend on a machine that has a GPU, in one call of under ten minutes, and prints what it
# saw: tests/cuda/check.sh [device].  Exit status 0 when every check passed.
#
#   tests/cuda/check.sh pack     on a machine without a GPU: builds, and puts the programs and the shared libraries that they
#                                need into build/carried, which can travel with the sources to one without compilers
#
# Steps, each with a bound of its own: build, unless build/carried is there; the table's operations, the model
# and the engine against the CPU's; compute-sanitizer; timings; PyTorch's, where it is installed; runs of both services on
# the GPU, where python3 has pytest: with invariant kernels, then with the fastest, whose mismatch is printed; and where
# mpirun is, a trainer of several ranks: on the one GPU, whose arrays are copied through the host, and on two by NCCL,
# where there are two.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
out=build/cuda
carried=build/carried
failed=

say() { printf '\n== %s (at %d s)\n' "$1" "$SECONDS"; }

# The libraries: what a bare machine with a driver and CUDA lacks.  Not the ranks' programs: they want mpirun, and NCCL is large.
pack() {
  make -s -j"$(nproc)" cuda || return 1
  rm -rf $carried
  mkdir -p $carried/bin $carried/tests/cuda $carried/libraries
  for program in $out/bin/*r $out/tests/cuda/*; do
    strip -o "$carried/${program#"$out/"}" "$program"
    ldd "$program" | awk '$3 ~ /^\// { print $3 }'
  done | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda|libcublasLt)\.so' | xargs -I{} cp -L {} $carried/libraries/
  du -sh $carried
}

# step NAME SECONDS COMMAND...: runs it; what fails is remembered, and the next step begins.
step() {
  local name=$1 bound=$2 status
  shift 2
  say "$name"
  timeout "$bound" "$@"
  status=$?
  [ $status = 0 ] && return 0
  if [ $status = 124 ]; then echo "$name: not done within $bound s"; else echo "$name: exit status $status"; fi
  failed="$failed, $name"
  return $status
}

if [ "${1:-}" = pack ]; then pack; exit; fi
device=${1:-0}
say "the machine"
if ! nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader; then
  echo "there is no GPU here: nothing is checked"
  exit 1
fi
export CUDA_VISIBLE_DEVICES=$device
if [ -d $carried ]; then
  out=$carried
  cublas=$(find /usr/local/cuda*/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/python3* /usr/local/lib/python3* /opt -name 'libcublasLt.so.13*' 2>/dev/null | head -1)
  export LD_LIBRARY_PATH="$PWD/$out/libraries${cublas:+:$(dirname "$cublas")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  echo "$out is used as it was carried here; cuBLASLt: ${cublas:-not found}"
else
  step build 240 make -s -j"$(nproc)" cuda || exit 1
fi

for program in test_ops test_model test_engine; do step $program 60 $out/tests/cuda/$program; done
step timings 200 $out/tests/cuda/bench 0

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  step "memcheck of test_model" 60 "$sanitizer" --tool memcheck --error-exitcode 9 --print-limit 5 $out/tests/cuda/test_model
  LEASEHOLD_TEST_ONLY=test_gemm step "racecheck of the products" 60 "$sanitizer" --tool racecheck --error-exitcode 9 --print-limit 5 $out/tests/cuda/test_ops
else
  say "compute-sanitizer is not installed: no memory or race check"
fi

if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  step "the peer, PyTorch" 90 python3 tests/cuda/peer_torch.py
else
  say "PyTorch is not installed: no peer"
fi
if [ -x $out/bin/coordinator ] && python3 -c 'import pytest, yaml, jsonschema' 2>/dev/null; then
  step "both services on the GPU" 90 env LEASEHOLD_TEST_BIN="$PWD/$out/bin" LEASEHOLD_DEVICE=cuda \
    python3 -m pytest -q -p no:cacheprovider tests/e2e/test_services.py -k 'learns or plain_generation or gives_the_same_weights'
  step "the mismatch of the fastest kernels" 60 env LEASEHOLD_TEST_BIN="$PWD/$out/bin" LEASEHOLD_TEST_DEVICE_BIN="$PWD/$out/bin" \
    python3 -m pytest -q -s -p no:cacheprovider tests/e2e/test_device.py -k fastest
else
  say "no coordinator or no pytest: the services were not run"
fi
ranks() {
  env LEASEHOLD_TEST_BIN="$PWD/$out/bin" LEASEHOLD_TEST_DEVICE_BIN="$PWD/$out/bin" LEASEHOLD_TEST_RANKS_OVER="$1" \
    python3 -m pytest -q -p no:cacheprovider tests/e2e/test_device_ranks.py -k "$2"
}
if [ -x $out/bin/trainer-server-mpi ] && command -v mpirun >/dev/null && python3 -c 'import pytest, yaml, jsonschema' 2>/dev/null; then
  step "ranks that share the GPU" 120 ranks staged ""
  if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
    say "one GPU: nothing went by NCCL"
  elif [ ! -x $out/tests/ranks/check_nccl ]; then
    say "built without NCCL: two GPUs were not tried"
  else
    export CUDA_VISIBLE_DEVICES=0,1
    step "the comm over NCCL, two GPUs" 60 mpirun --allow-run-as-root -n 2 $out/tests/ranks/check_nccl
    step "two ranks over NCCL" 90 ranks nccl "process and 2 or killed"
  fi
else
  say "no trainer-server-mpi, no mpirun or no pytest: no ranks were run"
fi

say "result"
if [ -n "$failed" ]; then echo "failed: ${failed#, }"; exit 1; fi
echo "every check passed"
