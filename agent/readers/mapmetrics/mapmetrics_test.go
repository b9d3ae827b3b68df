package mapmetrics_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mapmetrics"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/onehash"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// collection loads the object whose maps are read. Sizes of maps that differ are by name.
func collection(t testing.TB, sizes map[string]uint32) *ebpf.Collection {
	t.Helper()
	need.Kernel(t)
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object("xdp_series")))
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		spec.Maps[name].MaxEntries = size
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// collector is a Collector that a registry gathers, and what it logs.
func collector(t testing.TB) (*mapmetrics.Collector, *prometheus.Registry, *log) {
	t.Helper()
	l := &log{}
	c, r := mapmetrics.New(slog.New(slog.NewTextHandler(l, nil))), prometheus.NewRegistry()
	r.MustRegister(c)
	t.Cleanup(c.Close)
	return c, r, l
}

// source is a map of an application of a namespace.
func source(namespace string, m *ebpf.Map, name string, metrics v1alpha1.MapMetrics) mapmetrics.Source {
	return mapmetrics.Source{Owner: namespace, Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: "app"},
		Map: name, Metrics: &metrics, Held: m}
}

// counter are metrics with labels of fields, given as name=field or name=field:decoder.
func counter(name string, labels ...string) v1alpha1.MapMetrics {
	m := v1alpha1.MapMetrics{Name: name, Type: v1alpha1.MapCounter, Help: "Help."}
	for _, l := range labels {
		label, field, _ := strings.Cut(l, "=")
		field, decoder, _ := strings.Cut(field, ":")
		m.Labels = append(m.Labels, v1alpha1.MapLabel{Name: label, Field: field, Decoder: v1alpha1.MapDecoder(decoder)})
	}
	return m
}

// of are the series of definitions once all maps that are published were read, or could not be: a busy machine takes longer for
// that than a scrape waits.
func of(t testing.TB, r *prometheus.Registry) (all map[string]float64) {
	t.Helper()
	await.True(t, "all maps to be read", time.Minute, func() bool {
		var known float64
		var published int
		all = map[string]float64{}
		for name, value := range series.Of(t, r) {
			switch {
			case strings.HasPrefix(name, "skep_map_"):
				all[name] = value
			case strings.HasPrefix(name, "skep_agent_map_unreadable"):
				published, known = published+1, known+value
			case strings.HasPrefix(name, "skep_agent_map_scan_age_seconds"):
				known++
			}
		}
		return int(known) == published
	})
	return all
}

// render writes labels.
func render(labels map[string]string) string {
	var all []string
	for name, value := range labels {
		all = append(all, fmt.Sprintf("%s=%q", name, value))
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ",") + "}"
}

// frame is a packet with these protocols, source and ports.
func frame(from net.IP, protocol byte, port uint16) []byte {
	b := make([]byte, 14)
	if from.To4() != nil {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, protocol
		copy(ip[12:], from.To4())
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		ip := make([]byte, 40)
		ip[0], ip[6] = 0x60, protocol
		copy(ip[8:], from)
		b = append(b, ip...)
	}
	b = binary.BigEndian.AppendUint16(b, 9)
	return append(binary.BigEndian.AppendUint16(b, port), make([]byte, 28)...)
}

// receive has the program count packets.
func receive(t testing.TB, c *ebpf.Collection) {
	t.Helper()
	for i, packet := range [][]byte{
		frame(net.IPv4(192, 0, 2, 1), 1, 0), frame(net.IPv4(192, 0, 2, 1), 1, 0), frame(net.IPv4(10, 0, 0, 7), 1, 0),
		frame(net.ParseIP("2001:db8::1"), 58, 0), frame(net.ParseIP("fe80::7"), 58, 0),
		frame(net.IPv4(10, 0, 0, 7), 17, 53), frame(net.IPv4(10, 0, 0, 8), 6, 443), frame(net.ParseIP("2001:db8::1"), 6, 443),
	} {
		if _, err := c.Programs["xdp_series"].Run(&ebpf.RunOptions{Data: packet, Repeat: uint32(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
}

// exported is a label by the rules of ebpf_exporter: so many bytes of the key, bytes that are skipped, and decoders in a row.
type exported struct {
	name          string
	size, padding int
	decode        func([]byte) string
}

func uintDecoder(b []byte) string {
	return strconv.FormatUint(binary.LittleEndian.Uint64(append(slices.Clone(b), make([]byte, 8-len(b))...)), 10)
}

func inetDecoder(b []byte) string { return net.IP(b).String() }

func ifnameDecoder(b []byte) string {
	i, err := net.InterfaceByIndex(int(binary.LittleEndian.Uint32(b)))
	if err != nil {
		return "unknown"
	}
	return i.Name
}

func staticMap(names map[string]string) func([]byte) string {
	return func(b []byte) string {
		if name, known := names[uintDecoder(b)]; known {
			return name
		}
		return "unknown:" + uintDecoder(b)
	}
}

// exporter are the series that ebpf_exporter makes of a map by its rules: it adds up the values of all processors, unless the last
// label is called cpu.
func exporter(t *testing.T, m *ebpf.Map, name string, labels []exported) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	cpus, stride := 1, int(m.ValueSize())
	if strings.Contains(m.Type().String(), "CPU") {
		cpus = ebpf.MustPossibleCPU()
	}
	var key any
	for {
		next, err := m.NextKeyBytes(key)
		if err != nil || next == nil {
			return all
		}
		key = next
		values := make([]uint64, cpus)
		if cpus == 1 {
			b, err := m.LookupBytes(key)
			if err != nil || len(b) != stride {
				t.Fatal(err)
			}
			values[0] = binary.LittleEndian.Uint64(b)
		} else if err := m.Lookup(key, &values); err != nil {
			t.Fatal(err)
		}
		for cpu, value := range values {
			at, texts := 0, map[string]string{}
			for _, l := range labels {
				if l.name == "cpu" {
					texts["cpu"] = strconv.Itoa(cpu)
					continue
				}
				texts[l.name] = l.decode(next[at : at+l.size])
				at += l.size + l.padding
			}
			all[name+render(texts)] += float64(value)
		}
	}
}

// TestSeriesAreThoseOfEbpfExporter reads maps of the shapes of four of its examples: icmp-ip, kfree_skb, inet-frags and
// percpu-softirq.
func TestSeriesAreThoseOfEbpfExporter(t *testing.T) {
	c := collection(t, nil)
	receive(t, c)
	protocols := staticMap(map[string]string{"1": "icmp", "6": "tcp", "17": "udp", "58": "icmp6_"})
	for example, tc := range map[string]struct {
		maps   string
		labels []exported
		ours   []string
		most   int
	}{
		"icmp-ip, addresses of 4 bytes":  {"icmp4", []exported{{"source_addr", 4, 0, inetDecoder}}, []string{"source_addr=addr:InetIP"}, 2},
		"icmp-ip, addresses of 16 bytes": {"icmp6", []exported{{"source_addr", 16, 0, inetDecoder}}, []string{"source_addr=addr:InetIP"}, 2},
		"kfree_skb": {"drops", []exported{
			{"eth_proto", 4, 0, staticMap(map[string]string{"2048": "ipv4", "34525": "ipv6"})}, {"ip_proto", 4, 0, protocols}, {"port", 2, 2, uintDecoder},
		}, []string{"eth_proto=eth_proto", "ip_proto=ip_proto", "port=port"}, 5},
		"inet-frags": {"frags", []exported{{"interface", 4, 0, ifnameDecoder}, {"ip_version", 1, 3, uintDecoder}},
			[]string{"interface=ifindex:Ifname", "ip_version=version"}, 2},
		"percpu-softirq": {"frags", []exported{{"index", 4, 0, uintDecoder}, {"ip_version", 1, 3, uintDecoder}, {"cpu", 2, 0, nil}},
			[]string{"index=ifindex", "ip_version=version", "cpu=:CPU"}, 2 * ebpf.MustPossibleCPU()},
	} {
		t.Run(example, func(t *testing.T) {
			collector, registry, _ := collector(t)
			collector.Publish([]mapmetrics.Source{source("shop", c.Maps[tc.maps], tc.maps, counter("x_total", tc.ours...))})
			want := map[string]float64{}
			for name, value := range exporter(t, c.Maps[tc.maps], "ebpf_exporter_x_total", tc.labels) {
				want[strings.Replace(name, "ebpf_exporter_", "skep_map_", 1)] = value
			}
			got := map[string]float64{}
			for name, value := range of(t, registry) {
				for _, always := range []string{`application="app",`, `kind="BpfApplication",`, `namespace="shop",`} {
					name = strings.Replace(name, always, "", 1)
				}
				for _, last := range []string{`,kind="BpfApplication"`, `,namespace="shop"`} {
					name = strings.Replace(name, last, "", 1)
				}
				got[name] = value
			}
			if len(want) != tc.most {
				t.Errorf("ebpf_exporter has %d series: %v", len(want), want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("series (-ebpf_exporter +skep):\n%s", diff)
			}
		})
	}
}

// TestAValueOfSeveralNumbersIsSeveralSeries also of arrays, whose entries are all there, with and without values of processors.
func TestAValueOfSeveralNumbersIsSeveralSeries(t *testing.T) {
	c := collection(t, map[string]uint32{"lengths": 2, "levels": 2})
	each := make([][2]uint64, ebpf.MustPossibleCPU())
	for cpu := range each {
		each[cpu] = [2]uint64{uint64(cpu) + 1, 10}
	}
	cpus := float64(len(each))
	for _, err := range []error{c.Maps["sizes"].Put(uint32(0x800), [2]uint64{19, 1254}), c.Maps["sizes"].Put(uint32(0x86dd), [2]uint64{17, 1462}),
		c.Maps["lengths"].Put(uint32(0), each), c.Maps["lengths"].Put(uint32(1), each)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Maps["levels"].Put(uint32(1), int32(-5)); err != nil {
		t.Fatal(err)
	}
	if err := c.Maps["routes"].Put([]byte{24, 0, 0, 0, 10, 1, 2, 0}, uint64(7)); err != nil {
		t.Fatal(err)
	}
	collector, registry, _ := collector(t)
	both := func(name string, labels ...string) v1alpha1.MapMetrics {
		m := counter(name, labels...)
		m.Values = map[string]v1alpha1.MapField{"packets_total": "packets", "bytes_total": "bytes"}
		return m
	}
	level := counter("level", "slot=")
	level.Type = v1alpha1.MapGauge
	collector.Publish([]mapmetrics.Source{
		source("shop", c.Maps["sizes"], "sizes", both("size", "proto=:Hex")), source("shop", c.Maps["lengths"], "lengths", both("length")),
		source("shop", c.Maps["levels"], "levels", level), source("shop", c.Maps["routes"], "routes", counter("routes_total", "net=to", "bits=prefixlen")),
	})
	always := `application="app",%skind="BpfApplication",namespace="shop"%s`
	want := map[string]float64{
		"skep_map_size_packets_total{" + fmt.Sprintf(always, "", `,proto="0x800"`) + "}":                                     19,
		"skep_map_size_packets_total{" + fmt.Sprintf(always, "", `,proto="0x86dd"`) + "}":                                    17,
		"skep_map_size_bytes_total{" + fmt.Sprintf(always, "", `,proto="0x800"`) + "}":                                       1254,
		"skep_map_size_bytes_total{" + fmt.Sprintf(always, "", `,proto="0x86dd"`) + "}":                                      1462,
		"skep_map_length_packets_total{" + fmt.Sprintf(always, "", "") + "}":                                                 cpus * (cpus + 1),
		"skep_map_length_bytes_total{" + fmt.Sprintf(always, "", "") + "}":                                                   2 * 10 * cpus,
		"skep_map_level{" + fmt.Sprintf(always, "", `,slot="0"`) + "}":                                                       0,
		"skep_map_level{" + fmt.Sprintf(always, "", `,slot="1"`) + "}":                                                       -5,
		"skep_map_routes_total{" + `application="app",bits="24",kind="BpfApplication",namespace="shop",net="10.1.2.0"` + "}": 7,
	}
	if diff := cmp.Diff(want, of(t, registry)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// fill puts entries into a map whose keys are numbers of 4 bytes; sizes has two numbers as values.
func fill(t testing.TB, m *ebpf.Map, n int) {
	t.Helper()
	const chunk = 10_000
	for from := 0; from < n; from += chunk {
		count := min(chunk, n-from)
		keys, values := make([]uint32, count), make([][2]uint64, count)
		for i := range keys {
			keys[i], values[i] = uint32(from+i), [2]uint64{1, 100}
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeysOfOneHashTakeNoMemory has a map whose entries are all in one bucket, which the kernel copies at once or not at all. Its author may
// ask for a hash without a seed, and choose such keys.
func TestKeysOfOneHashTakeNoMemory(t *testing.T) {
	need.Kernel(t)
	const entries, size = 512, 64 << 10
	number := &btf.Int{Name: "unsigned int", Size: 4}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "same", Type: ebpf.Hash, KeySize: 4, ValueSize: size, MaxEntries: entries,
		Flags: unix.BPF_F_ZERO_SEED | unix.BPF_F_NO_PREALLOC, Key: number,
		Value: &btf.Struct{Name: "value", Size: size, Members: []btf.Member{{Name: "packets", Type: number}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	value, n := make([]byte, size), 0
	for key := range onehash.Keys(entries) {
		if n++; n > entries {
			break
		}
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	collector, registry, log := collector(t)
	metrics := counter("packets_total", "key=")
	metrics.Value = "packets"
	collector.Publish([]mapmetrics.Source{source("greedy", m, "same", metrics)})
	await.True(t, "the map to be given up", time.Minute, func() bool { return said(t, registry, "unreadable", "greedy", "same") == 1 })
	if log.count("keys of one hash") != 1 {
		t.Errorf("it is logged as %s", log.text.String())
	}
}

// packets are metrics of the map sizes.
func packets() v1alpha1.MapMetrics {
	m := counter("packets_total", "key=")
	m.Value = "packets"
	return m
}

// rescan waits until a map of a namespace was read again.
func rescan(t testing.TB, r *prometheus.Registry, namespace, name string) {
	t.Helper()
	age := func() float64 { return said(t, r, "scan_age_seconds", namespace, name) }
	last := age()
	await.True(t, "the next scan", time.Minute, func() bool {
		now := age()
		defer func() { last = now }()
		return now < last
	})
}

// said is what is said of a map of a namespace.
func said(t testing.TB, r *prometheus.Registry, what, namespace, name string) float64 {
	t.Helper()
	return series.Of(t, r)["skep_agent_map_"+what+render(map[string]string{
		"kind": v1alpha1.KindBpfApplication, "namespace": namespace, "application": "app", "map": name})]
}

// TestEntriesBeyondTheBoundAreLeftOutAndCounted, and that is logged once.
func TestEntriesBeyondTheBoundAreLeftOutAndCounted(t *testing.T) {
	c := collection(t, map[string]uint32{"sizes": 20_000})
	fill(t, c.Maps["sizes"], 15_000)
	collector, registry, log := collector(t)
	collector.Publish([]mapmetrics.Source{source("shop", c.Maps["sizes"], "sizes", packets())})
	for i := range 2 {
		await.True(t, "a scan", time.Minute, func() bool { return len(of(t, registry)) == mapmetrics.MapSeries })
		if left := said(t, registry, "entries_left_out", "shop", "sizes"); left != 5_000 {
			t.Errorf("%d: %v entries are left out", i, left)
		}
		rescan(t, registry, "shop", "sizes")
	}
	if n := log.count("left out"); n != 1 {
		t.Errorf("it is logged %d times: %s", n, log.text.String())
	}
}

// TestNoOwnerTakesTheSeriesOfAnother: one has more entries than a node has series.
func TestNoOwnerTakesTheSeriesOfAnother(t *testing.T) {
	full := collection(t, map[string]uint32{"sizes": 10_000})
	fill(t, full.Maps["sizes"], 10_000)
	collector, registry, _ := collector(t)
	var all []mapmetrics.Source
	for i := range 12 {
		s := source("greedy", full.Maps["sizes"], "sizes", packets())
		s.Application.Name = fmt.Sprintf("app%d", i)
		all = append(all, s)
	}
	all = append(all, source("zoo", full.Maps["sizes"], "sizes", packets()))
	collector.Publish(all)
	counts := func() map[string]int {
		counts := map[string]int{}
		for name := range of(t, registry) {
			_, rest, _ := strings.Cut(name, `namespace="`)
			namespace, _, _ := strings.Cut(rest, `"`)
			counts[namespace]++
		}
		return counts
	}
	await.True(t, "all scans", time.Minute, func() bool { return counts()["zoo"] > 0 && counts()["greedy"] > 20_000 })
	for range 2 {
		if n := counts(); n["zoo"] != 10_000 || n["greedy"] > mapmetrics.NodeSeries/2 || n["greedy"] < mapmetrics.NodeSeries*4/10 {
			t.Errorf("series: %v", n)
		}
		rescan(t, registry, "zoo", "sizes")
	}
}

// TestKeysOfAnybodysMakeValidSeries: bytes that are no text, that break lines or end labels, addresses of the kernel, and keys whose
// labels are the same.
func TestKeysOfAnybodysMakeValidSeries(t *testing.T) {
	c := collection(t, nil)
	for key, value := range map[string]uint64{
		"\xff\xff\xff\xff": 1, "\xff\xc0": 2, "a\"} 1\nup 1\n": 4, "\x1b]0;x\x07": 8, "": 16, "\x00hidden": 32, strings.Repeat("\xf0", 16): 64,
	} {
		var b [16]byte
		copy(b[:], key)
		if err := c.Maps["names"].Put(b, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []uint64{0xffffffff81000000, 0xffff888100000000, 7} {
		if err := c.Maps["addresses"].Put(address, uint64(1)); err != nil {
			t.Fatal(err)
		}
	}
	collector, registry, _ := collector(t)
	collector.Publish([]mapmetrics.Source{source("shop", c.Maps["names"], "names", counter("names_total", "zname=name")),
		source("shop", c.Maps["addresses"], "addresses", counter("addresses_total", "zaddress=address"))})
	always := `application="app",kind="BpfApplication",namespace="shop",`
	want := map[string]float64{}
	for label, value := range map[string]float64{
		`zname="����"`: 1, `zname="��"`: 2, `zname="a\"} 1�up 1�"`: 4, `zname="�]0;x�"`: 8, `zname=""`: 16 + 32, `zname="` + strings.Repeat("�", 16) + `"`: 64,
	} {
		want["skep_map_names_total{"+always+label+"}"] = value
	}
	for label, value := range map[string]float64{`zaddress="kernel-address"`: 2, `zaddress="7"`: 1} {
		want["skep_map_addresses_total{"+always+label+"}"] = value
	}
	if diff := cmp.Diff(want, of(t, registry)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// helpOf is the text of a name.
func helpOf(t testing.TB, r *prometheus.Registry, name string) string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetHelp()
		}
	}
	return ""
}

// TestSeriesFollowWhatIsPublished: a map that is replaced, metrics that change, that do not fit what is loaded, that two applications
// explain in two ways, and that are withdrawn.
func TestSeriesFollowWhatIsPublished(t *testing.T) {
	old, next := collection(t, nil), collection(t, nil)
	fill(t, old.Maps["sizes"], 1)
	fill(t, next.Maps["sizes"], 3)
	collector, registry, log := collector(t)
	count := func() int { return len(of(t, registry)) }
	publish := func(m *ebpf.Map, metrics v1alpha1.MapMetrics, more ...mapmetrics.Source) {
		collector.Publish(append(more, source("shop", m, "sizes", metrics)))
	}
	publish(old.Maps["sizes"], packets())
	if n := count(); n != 1 {
		t.Errorf("%d series", n)
	}
	publish(next.Maps["sizes"], packets())
	if n := count(); n != 3 {
		t.Errorf("%d series of the map that replaced it", n)
	}
	misfit := packets()
	misfit.Value = "frames"
	publish(next.Maps["sizes"], misfit)
	if n := count(); n != 0 || said(t, registry, "unreadable", "shop", "sizes") != 1 || log.count(`no member`) != 1 {
		t.Errorf("%d series of a member that is not there: %s", n, log.text.String())
	}
	other := packets()
	other.Help = "Something else."
	publish(next.Maps["sizes"], packets(), source("zoo", next.Maps["sizes"], "sizes", other))
	if n := count(); n != 6 {
		t.Errorf("%d series of two applications", n)
	}
	if help := helpOf(t, registry, "skep_map_packets_total"); strings.Contains(help, "else") || strings.Contains(help, "Help.") {
		t.Errorf("one application explains the series of another: %s", help)
	}
	publish(next.Maps["sizes"], packets(), source("shop", old.Maps["sizes"], "twice", packets()))
	if n := count(); n != 3 {
		t.Errorf("%d series of two maps with one name", n)
	}
	publish(next.Maps["sizes"], packets())
	next.Close()
	if n := count(); n != 3 {
		t.Errorf("%d series after the loop closed its descriptor", n)
	}
	collector.Publish(nil)
	if n := len(series.Of(t, registry)); n != 0 {
		t.Errorf("%d series after they were withdrawn: %v", n, series.Of(t, registry))
	}
}

// isWhole reports whether a map of a namespace was read in whole.
func isWhole(all map[string]float64, namespace string) bool {
	_, whole := all["skep_agent_map_scan_age_seconds"+render(map[string]string{
		"kind": v1alpha1.KindBpfApplication, "namespace": namespace, "application": "app", "map": "sizes"})]
	return whole
}

// TestALargeMapDelaysNoOther: a small map has its turn before the large one is read in whole, again and again, and others publish meanwhile.
func TestALargeMapDelaysNoOther(t *testing.T) {
	c, small := collection(t, map[string]uint32{"sizes": 1 << 20}), collection(t, nil)
	fill(t, c.Maps["sizes"], 1<<20)
	collector, registry, _ := collector(t)
	large := source("greedy", c.Maps["sizes"], "sizes", packets())
	for i := range 8 {
		s := source("shop", small.Maps["sizes"], "sizes", packets())
		s.Metrics.Help = fmt.Sprint(i)
		fill(t, small.Maps["sizes"], i+1)
		collector.Publish([]mapmetrics.Source{large, s})
		await.True(t, "the small map to be read", time.Minute, func() bool {
			all := series.Of(t, registry)
			if i == 0 && isWhole(all, "greedy") && !isWhole(all, "shop") {
				t.Error("the large map was read in whole before the small one")
			}
			return isWhole(all, "shop")
		})
	}
	await.True(t, "the large map", 2*time.Minute, func() bool {
		return said(t, registry, "entries_left_out", "greedy", "sizes") == 1<<20-mapmetrics.MapSeries
	})
}
