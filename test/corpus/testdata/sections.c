// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Variables in sections of their own: those that begin as zero, and others.
#include "program.h"

#define private(name) SEC(".bss." #name) __hidden __attribute__((aligned(8)))

private(lock) struct bpf_spin_lock lock;
private(lock) __u64 counted;

__u32 seen[8] SEC(".bss.seen");
__u64 begun SEC(".data.begun") = 3;
const volatile __u32 most SEC(".rodata.most") = 4;

SEC("tc")
int counts(struct __sk_buff *skb)
{
	bpf_spin_lock(&lock);
	counted++;
	bpf_spin_unlock(&lock);
	if (begun++ >= 3 && most == 4)
		seen[1]++;
	ran++;
	return -1;
}

char _license[] SEC("license") = "GPL";
