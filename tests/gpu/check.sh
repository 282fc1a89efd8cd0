#!/usr/bin/env bash
# Checks on a machine with a CUDA device: longer training of the zoo, the tests marked gpu, a throughput table.
# Run from the repository's root in an environment where latentbench[test] is installed:
#   bash tests/gpu/check.sh
# OUT      folder for results (default: results/gpu)
# TOKENS   training tokens of the zoo (default: 5,000,000); 0 leaves training out
# SECONDS_FOR_TRAINING   most seconds for training (default: 240); it goes on from its checkpoint the next time
# PYTHON   interpreter (default: python)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out="${OUT:-results/gpu}"
tokens="${TOKENS:-5000000}"
python="${PYTHON:-python}"
limit="${SECONDS_FOR_TRAINING:-240}"
mkdir -p "$out"
failed=0

"$python" -c 'import sys, torch
if not torch.cuda.is_available():
    sys.exit("check.sh: PyTorch sees no CUDA device; these checks need one")
print(torch.cuda.get_device_name(0), "torch", torch.__version__)' | tee "$out/device.txt" || exit 2

assets=yes
for name in smollm2-135m-q4 probe-texts; do
    "$python" -m latentbench.cli assets verify "$name" >/dev/null 2>&1 || assets=no
done

if [ "$assets" = yes ] && [ "$tokens" != 0 ]; then
    echo "== training ($tokens tokens)"
    recipe="$out/zoo-smollm2-long.toml"
    sed -e "s/^tokens = .*/tokens = $tokens/" -e 's/^name = "zoo-smollm2"/name = "zoo-smollm2-long"/' \
        -e 's/^rows = .*/rows = 64/' bench/latentbench/train/recipes/zoo-smollm2.toml >"$recipe"
    timeout "$limit" "$python" -m latentbench.cli train "$recipe" --device cuda --out "$out/zoo" --json \
        >"$out/training.json" 2>"$out/training.log"
    code=$?
    tail -n 2 "$out/training.log"
    if [ "$code" = 124 ]; then
        echo "training was stopped after $limit s; run this again to go on"
    elif [ "$code" != 0 ]; then
        failed=1
    fi
fi

echo "== tests"
"$python" -m pytest -m gpu tests/gpu -p no:cacheprovider 2>&1 | tee "$out/tests.txt" || failed=1

if [ "$assets" = yes ]; then
    for dtype in float32 bfloat16; do
        echo "== throughput, $dtype"
        "$python" tests/perf/run.py --device cuda --dtype "$dtype" --measure watching --measure core \
            --measure steering --measure training >"$out/throughput-$dtype.json" || failed=1
    done
else
    echo "the model or the texts are missing: no throughput table (latentbench assets pull smollm2-135m probe-texts)"
fi
exit "$failed"
