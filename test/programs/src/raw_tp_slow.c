// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Programs that the verifier takes long for: each walks a bounded loop of nearly
// the million instructions that it allows. They stand for a large program of one tenant,
// whose load must not delay what another tenant's programs need.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define SLOW(name)                                        \
	SEC("raw_tp/sys_enter")                           \
	int name(void *ctx)                               \
	{                                                 \
		__u64 sum = bpf_get_prandom_u32();        \
		_Pragma("clang loop unroll(disable)")     \
		for (__u32 i = 0; i < 180000; i++) {       \
			sum = (sum >> 1) ^ i;             \
			asm volatile("" : "+r"(sum));     \
		}                                         \
		return sum & 1;                           \
	}

SLOW(slow_1)
SLOW(slow_2)
SLOW(slow_3)
SLOW(slow_4)
SLOW(slow_5)
SLOW(slow_6)
SLOW(slow_7)
SLOW(slow_8)

char _license[] SEC("license") = "Dual BSD/GPL";
