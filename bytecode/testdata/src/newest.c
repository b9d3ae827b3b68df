// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Atomics, a loop, and instructions of -mcpu=v4, spelled out because objects are
// built for v3; each needs a kernel of its own.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

__u64 total;

SEC("socket")
int adds(void *ctx)
{
	__sync_fetch_and_add(&total, 1);
	return 0;
}

SEC("socket")
int fetches(void *ctx)
{
	return __sync_fetch_and_or(&total, 1);
}

SEC("socket")
int divides(void *ctx)
{
	asm volatile(".byte 0x37, 0, 1, 0, 3, 0, 0, 0"); /* r0 s/= 3 */
	return 0;
}

SEC("socket")
int extends(void *ctx)
{
	asm volatile(".byte 0x91, 0x10, 0, 0, 0, 0, 0, 0"); /* r0 = *(s8 *)(r1 + 0) */
	return 0;
}

SEC("socket")
int swaps(void *ctx)
{
	asm volatile(".byte 0xd7, 0, 0, 0, 16, 0, 0, 0"); /* r0 = bswap16 r0 */
	return 0;
}

SEC("socket")
int jumps_far(void *ctx)
{
	asm volatile(".byte 0x06, 0, 0, 0, 0, 0, 0, 0"); /* gotol +0 */
	return 0;
}

SEC("socket")
int releases(void *ctx)
{
	asm volatile(".byte 0xdb, 0x01, 0, 0, 0x10, 0x01, 0, 0"); /* store_release(r1, r0) */
	return 0;
}

SEC("socket")
int loops(void *ctx)
{
	volatile int i;

	for (i = 0; i < 8; i++)
		;
	return i;
}

SEC("socket")
int may_go(void *ctx)
{
	asm volatile(".byte 0xe5, 0, 0, 0, 0, 0, 0, 0"); /* may_goto +0 */
	return 0;
}

char _license[] SEC("license") = "GPL v2";
