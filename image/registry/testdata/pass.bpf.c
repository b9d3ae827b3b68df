// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
// The smallest object worth an image. Rebuild with:
//   clang -O2 -target bpfel -c pass.bpf.c -o pass_bpfel.o
//   clang -O2 -target bpfeb -c pass.bpf.c -o pass_bpfeb.o
#define SEC(name) __attribute__((section(name), used))

SEC("xdp") int pass(void *ctx)
{
	return 2; // XDP_PASS
}

SEC("license") char _license[] = "GPL";
