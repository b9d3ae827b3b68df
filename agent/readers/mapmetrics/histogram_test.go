package mapmetrics_test

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
)

// histograms loads the object whose maps are histograms.
func histograms(t *testing.T) *ebpf.Collection {
	t.Helper()
	need.Kernel(t)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("xdp_histograms")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// histogram are metrics of buckets with labels as counter takes them.
func histogram(name string, b v1alpha1.MapBuckets, labels ...string) v1alpha1.MapMetrics {
	m := counter(name, labels...)
	m.Type, m.Buckets = v1alpha1.MapHistogram, &b
	return m
}

// flat are the histograms of a registry as a scrape writes them, without the labels that every series has.
func flat(t testing.TB, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			h, labels := m.GetHistogram(), map[string]string{}
			if h == nil {
				continue
			}
			for _, l := range m.GetLabel() {
				if !slices.Contains([]string{"kind", "namespace", "application"}, l.GetName()) {
					labels[l.GetName()] = l.GetValue()
				}
			}
			name := family.GetName()
			all[name+"_sum"+render(labels)], all[name+"_count"+render(labels)] = h.GetSampleSum(), float64(h.GetSampleCount())
			for _, b := range h.GetBucket() {
				le := maps.Clone(labels)
				le["le"] = strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
				all[name+"_bucket"+render(le)] = float64(b.GetCumulativeCount())
			}
		}
	}
	return all
}

// bucketed is a histogram by the rules of ebpf_exporter: the last label is the bucket, which is missing where it is zero, and what is
// behind the last bucket is the sum.
type bucketed struct {
	labels     []exported
	last       int
	bound      func(bucket float64) float64
	multiplier float64
}

// exporterHistograms are the series that ebpf_exporter makes of a map.
func exporterHistograms(t *testing.T, m *ebpf.Map, name string, of bucketed) map[string]float64 {
	t.Helper()
	read := map[string]map[float64]float64{}
	for series, value := range exporter(t, m, "", of.labels) {
		_, text, _ := strings.Cut(series, `bucket="`)
		text, _, _ = strings.Cut(text, `"`)
		bucket, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		rest := strings.Replace(series, fmt.Sprintf("bucket=%q", text), "", 1)
		rest = strings.NewReplacer("{,", "{", ",}", "}").Replace(rest)
		if read[rest] == nil {
			read[rest] = map[float64]float64{}
		}
		read[rest][bucket] += value
	}
	all := map[string]float64{}
	for rest, counts := range read {
		count := 0.
		for i := range of.last + 1 {
			count += counts[float64(i)]
			with := strings.TrimPrefix(strings.TrimSuffix(rest, "}"), "{")
			parts := append(strings.FieldsFunc(with, func(r rune) bool { return r == ',' }),
				fmt.Sprintf("le=%q", strconv.FormatFloat(of.bound(float64(i))*of.multiplier, 'g', -1, 64)))
			slices.Sort(parts)
			all[name+"_bucket{"+strings.Join(parts, ",")+"}"] = count
		}
		all[name+"_count"+rest], all[name+"_sum"+rest] = count, counts[float64(of.last+1)]*of.multiplier
	}
	return all
}

// TestHistogramsAreThoseOfEbpfExporter reads maps of the shapes of its examples biolatency, and of others with steps and with values of CPUs.
func TestHistogramsAreThoseOfEbpfExporter(t *testing.T) {
	c := histograms(t)
	for i, size := range []int{14, 60, 64, 65, 1500, 1500, 4000} {
		if _, err := c.Programs["xdp_histograms"].Run(&ebpf.RunOptions{Data: make([]byte, size), Repeat: uint32(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	type disk struct {
		Dev, Operation uint32
		Bucket         uint64
	}
	for key, value := range map[disk]uint64{{8, 0, 3}: 5, {8, 0, 0}: 1, {8, 0, 27}: 2, {8, 0, 28}: 123456, {8, 1, 9}: 4, {9, 2, 28}: 7, {9, 2, 90}: 100} {
		if err := c.Maps["bio_latency_seconds"].Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	linear := func(b float64) float64 { return b }
	number := func(name string, size, padding int) exported { return exported{name, size, padding, uintDecoder} }
	for name, tc := range map[string]struct {
		theirs bucketed
		ours   v1alpha1.MapMetrics
		series int
	}{
		"bio_latency_seconds": {
			bucketed{[]exported{number("device", 4, 0), {"operation", 4, 0, staticMap(map[string]string{"0": "read", "1": "write", "2": "flush"})},
				number("bucket", 8, 0)}, 27, math.Exp2, 0.000001},
			histogram("", v1alpha1.MapBuckets{Field: "bucket", Type: v1alpha1.BucketsExp2, Max: 27, Multiplier: "0.000001"}, "device=dev", "operation=operation"),
			3 * 30,
		},
		"packet_bytes": {
			bucketed{[]exported{number("index", 4, 0), number("bucket", 1, 3)}, 27, math.Exp2, 1},
			histogram("", v1alpha1.MapBuckets{Field: "bucket", Type: v1alpha1.BucketsExp2, Max: 27}, "index=ifindex"), 30,
		},
		"lengths": {
			bucketed{[]exported{number("bucket", 4, 0)}, 32, linear, 64},
			histogram("", v1alpha1.MapBuckets{Type: v1alpha1.BucketsLinear, Max: 32, Multiplier: "64"}), 35,
		},
	} {
		t.Run(name, func(t *testing.T) {
			collector, registry, _ := collector(t)
			tc.ours.Name = name
			collector.Publish([]mapmetrics.Source{source("shop", c.Maps[name], name, tc.ours)})
			want := map[string]float64{}
			for series, value := range exporterHistograms(t, c.Maps[name], "skep_histogram_"+name, tc.theirs) {
				want[strings.TrimSuffix(series, "{}")] = value
			}
			var got map[string]float64
			await.True(t, "the map to be read", time.Minute, func() bool { got = flat(t, registry); return len(got) > 0 })
			for series, value := range maps.Clone(got) {
				delete(got, series)
				got[strings.TrimSuffix(series, "{}")] = value
			}
			if len(want) != tc.series {
				t.Errorf("ebpf_exporter has %d series: %v", len(want), want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("series (-ebpf_exporter +skep):\n%s", diff)
			}
		})
	}
}

// TestAHistogramCountsForItsBuckets: each bucket is a series of the bounds, and a gauge of its name contradicts none.
func TestAHistogramCountsForItsBuckets(t *testing.T) {
	c := collection(t, map[string]uint32{"sizes": 2000})
	fill(t, c.Maps["sizes"], 2000)
	collector, registry, _ := collector(t)
	wide := histogram("packets", v1alpha1.MapBuckets{Type: v1alpha1.BucketsLinear, Max: 96}, "key=")
	wide.Value = "packets"
	gauge := packets()
	gauge.Name, gauge.Type = "packets", v1alpha1.MapGauge
	collector.Publish([]mapmetrics.Source{source("shop", c.Maps["sizes"], "sizes", wide), source("zoo", c.Maps["sizes"], "sizes", gauge)})
	var all map[string]float64
	await.True(t, "both maps", time.Minute, func() bool {
		all = flat(t, registry)
		return len(all) > 0 && len(of(t, registry)) == 2000
	})
	if sets := mapmetrics.MapSeries / 100; len(all) != sets*99 || said(t, registry, "entries_left_out", "shop", "sizes") != float64(2000-sets) {
		t.Errorf("%d series of %d sets of labels, %v are left out", len(all), sets, said(t, registry, "entries_left_out", "shop", "sizes"))
	}
	for key := range 97 {
		at, is := all[fmt.Sprintf(`skep_histogram_packets_bucket{key="%d",le="%d"}`, key, key)]
		if before := all[fmt.Sprintf(`skep_histogram_packets_bucket{key="%d",le="%d"}`, key, key-1)]; is && (at != 1 || before != 0) {
			t.Errorf("bucket %d has %v, and the one before %v", key, at, before)
		}
	}
}
