// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Global variables of every kind that C has. The statics cannot be set.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct config {
	__u32 rate;
	char name[16];
};

enum mode { OFF, ON };

typedef struct {
	int x;
} anonymous;

const volatile __u32 sampling = 1;
const volatile struct config config = {};
const volatile enum mode mode = ON;
const volatile char *const volatile label;
volatile anonymous position;
volatile __u64 counters[4][2];
volatile _Bool enabled = 1;
__u16 ports[8] SEC(".data.ports");
__attribute__((weak)) volatile long weak_one;
static volatile int hidden_static;
__attribute__((visibility("hidden"))) volatile int hidden;

SEC("socket")
int reads_all(void *ctx)
{
	hidden_static++;
	hidden++;
	counters[0][0] += sampling + config.rate + mode + position.x + enabled;
	return ports[0] + weak_one + (label != 0);
}

char _license[] SEC("license") = "GPL";
