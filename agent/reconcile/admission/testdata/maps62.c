// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Uses 62 maps: alone it loads, and beside a chain's counters it leaves room for
// one more.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAP(NAME)                                 \
	struct {                                  \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1);           \
		__type(key, __u32);               \
		__type(value, __u64);             \
	} NAME SEC(".maps")

MAP(m00);
MAP(m01);
MAP(m02);
MAP(m03);
MAP(m04);
MAP(m05);
MAP(m06);
MAP(m07);
MAP(m08);
MAP(m09);
MAP(m10);
MAP(m11);
MAP(m12);
MAP(m13);
MAP(m14);
MAP(m15);
MAP(m16);
MAP(m17);
MAP(m18);
MAP(m19);
MAP(m20);
MAP(m21);
MAP(m22);
MAP(m23);
MAP(m24);
MAP(m25);
MAP(m26);
MAP(m27);
MAP(m28);
MAP(m29);
MAP(m30);
MAP(m31);
MAP(m32);
MAP(m33);
MAP(m34);
MAP(m35);
MAP(m36);
MAP(m37);
MAP(m38);
MAP(m39);
MAP(m40);
MAP(m41);
MAP(m42);
MAP(m43);
MAP(m44);
MAP(m45);
MAP(m46);
MAP(m47);
MAP(m48);
MAP(m49);
MAP(m50);
MAP(m51);
MAP(m52);
MAP(m53);
MAP(m54);
MAP(m55);
MAP(m56);
MAP(m57);
MAP(m58);
MAP(m59);
MAP(m60);
MAP(m61);

static __always_inline void touch(void *map)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(map, &key);

	if (value)
		*value += 1;
}

SEC("xdp")
int maps62(struct xdp_md *ctx)
{
	touch(&m00);
	touch(&m01);
	touch(&m02);
	touch(&m03);
	touch(&m04);
	touch(&m05);
	touch(&m06);
	touch(&m07);
	touch(&m08);
	touch(&m09);
	touch(&m10);
	touch(&m11);
	touch(&m12);
	touch(&m13);
	touch(&m14);
	touch(&m15);
	touch(&m16);
	touch(&m17);
	touch(&m18);
	touch(&m19);
	touch(&m20);
	touch(&m21);
	touch(&m22);
	touch(&m23);
	touch(&m24);
	touch(&m25);
	touch(&m26);
	touch(&m27);
	touch(&m28);
	touch(&m29);
	touch(&m30);
	touch(&m31);
	touch(&m32);
	touch(&m33);
	touch(&m34);
	touch(&m35);
	touch(&m36);
	touch(&m37);
	touch(&m38);
	touch(&m39);
	touch(&m40);
	touch(&m41);
	touch(&m42);
	touch(&m43);
	touch(&m44);
	touch(&m45);
	touch(&m46);
	touch(&m47);
	touch(&m48);
	touch(&m49);
	touch(&m50);
	touch(&m51);
	touch(&m52);
	touch(&m53);
	touch(&m54);
	touch(&m55);
	touch(&m56);
	touch(&m57);
	touch(&m58);
	touch(&m59);
	touch(&m60);
	touch(&m61);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
