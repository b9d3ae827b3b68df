// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Socket filters, as tools have them that look at packets: they read by the instruction for that
// (BPF_LD_ABS) or by helpers, call functions and other programs, and return how many bytes to keep.
#include "program.h"

unsigned long long load_half(void *skb, unsigned long long at) asm("llvm.bpf.load.half");

/* Behind the end of every packet: such a load ends the program with 0. */
#define NOWHERE 0xfffff

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} lengths SEC(".maps");

static __noinline int protocol_of(struct __sk_buff *skb)
{
	__be16 protocol = 0;

	bpf_skb_load_bytes(skb, 12, &protocol, sizeof(protocol));
	return protocol;
}

SEC("socket")
int keeps_all(struct __sk_buff *skb)
{
	__u32 len = skb->len;

	if (protocol_of(skb) != 0)
		bpf_ringbuf_output(&lengths, &len, sizeof(len), 0);
	ran++;
	return len;
}

SEC("socket")
int reads_too_far(struct __sk_buff *skb)
{
	ran++;
	return load_half(skb, 12) + load_half(skb, NOWHERE);
}

SEC("socket")
int tail_called(struct __sk_buff *skb)
{
	ran++;
	return 2;
}

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int (struct __sk_buff *));
} jumps SEC(".maps") = {.values = {tail_called}};

SEC("socket1")
int tail_calls(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &jumps, 0);
	return 2;
}

char _license[] SEC("license") = "GPL";
