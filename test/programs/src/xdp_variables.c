// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has a variable of every kind that can be set, and some that cannot.
#include <stdbool.h>
#include "counter.h"

enum mode { OBSERVE, ENFORCE, OFF = 7 };
enum wide { SMALL = 1, LARGE = 0x100000000ULL };

struct point {
	__s16 x;
	__u32 y;
};

struct config {
	struct point from;
	struct point to[2];
	char name[8];
	enum mode mode;
	bool on;
};

struct bits {
	__u32 low : 4;
	__u32 high : 4;
};

const volatile bool a_bool = false;
const volatile __u8 a_u8 = 8;
const volatile __s8 an_s8 = -8;
const volatile __u16 a_u16 = 16;
const volatile __s16 an_s16 = -16;
const volatile __u32 a_u32 = 32;
const volatile __s32 an_s32 = -32;
const volatile __u64 a_u64 = 64;
const volatile __s64 an_s64 = -64;
const volatile enum mode a_mode = OBSERVE;
const volatile enum wide a_wide = SMALL;
const volatile char a_name[16] = "skep";
const volatile __u16 ports[4] = { 80, 443 };
const volatile __u32 grid[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
const volatile struct config a_config = { .name = "one", .mode = ENFORCE };
const volatile struct bits a_bits = { .low = 1, .high = 2 };

/* In .data and .bss. */
volatile __u32 in_data = 1;
volatile __u64 in_bss;
volatile struct config data_config = { .on = true };

/* In sections of their own. */
const volatile __u32 in_own_rodata SEC(".rodata.own") = 5;
volatile __u32 in_own_data SEC(".data.own") = 6;

/* Not to be set: the linker does not name it to others. */
static volatile __u32 a_static = 3;

SEC("xdp")
int xdp_variables(struct xdp_md *ctx)
{
	__u64 sum = a_bool + a_u8 + an_s8 + a_u16 + an_s16 + a_u32 + an_s32 + a_u64 + an_s64;

	sum += a_mode + a_wide + a_name[0] + ports[1] + grid[1][2] + a_config.from.y + a_bits.low;
	sum += in_data + data_config.on + a_static + in_own_rodata + in_own_data;
	in_bss = sum;
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
