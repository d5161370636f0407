#!/bin/sh
# Builds the PTX files that lie beside this script, into the folder given (default: here), with Debian's clang-19 or the one that CLANG
# names. No CUDA toolkit takes part. Each file has the lowest ISA version that its kernels allow, so that old drivers can load it.
# With PTXAS naming NVIDIA's assembler each file is also assembled for real cards, and a kernel that spills registers is an error.
set -eu
cd "$(dirname "$0")"
out=${1:-.}
build() { # name target isa
	upper=$(echo "$1" | tr a-z A-Z)
	"${CLANG:-clang-19}" -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch="sm_$2" -Xclang -target-feature -Xclang "+ptx$3" \
		-D"$upper" -O3 -S bench.cu -o "$out/$1.ptx.new"
	# LLVM's comments are half of the text and say nothing
	sed -e 's|[[:space:]]*//.*$||' -e '/^[[:space:]]*$/d' "$out/$1.ptx.new" >"$out/$1.ptx"
	rm "$out/$1.ptx.new"
	if [ -n "${PTXAS:-}" ]; then
		for card in $4; do
			"$PTXAS" -v --gpu-name "sm_$card" "$out/$1.ptx" -o /dev/null 2>"$out/ptxas.log" || { cat "$out/ptxas.log"; exit 1; }
			if grep -E '[1-9][0-9]* bytes spill' "$out/ptxas.log"; then echo "build: $1 spills on sm_$card" >&2; exit 1; fi
			rm "$out/ptxas.log"
		done
	fi
}
build base 75 65 "75 80 86 89 90"
build main 80 70 "80 86 89 90"
build fp8 89 84 "89 90"
