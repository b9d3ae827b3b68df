// Command flow-reader follows the maps of the example flow-agent: it says what the programs counted, and takes the record of each new flow.
//
// It owns the reading side of flow_agent.bpf.c. It needs no privilege, and loads and attaches nothing: that is the agent's part.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skep-dev/skep/skepmap"
)

// The types of flow_agent.bpf.c. Their layout is compared with the BTF of the maps.
type (
	flowID struct {
		SrcIP, DstIP        [4]byte
		SrcPort, DstPort    uint16
		Protocol, Direction uint8
		_                   [2]byte
	}
	flowMetrics struct {
		Bytes, FirstSeen, LastSeen uint64
		Packets, IfIndex           uint32
	}
	dnsMetrics struct {
		Messages  uint64
		ID, Flags uint16
		_         [4]byte
	}
	filterKey struct {
		PrefixLen uint32
		IP        [4]byte
	}
)

// counters are the names of enum counter.
var counters = []string{"flowNotAdded", "flowNotReported", "filterAccept", "filterReject", "filterNoMatch"}

// Seen is what the maps hold.
type Seen struct {
	// Generation is that of the listing: a higher one tells of other maps.
	Generation uint64 `json:"generation"`
	Flows      int    `json:"flows"`
	Packets    uint64 `json:"packets"`
	// DNSMessages are those of all CPUs, and Records are those that this process took.
	DNSMessages uint64            `json:"dnsMessages"`
	Records     uint64            `json:"records"`
	Counters    map[string]uint64 `json:"counters"`
	// Filters are networks with what is done about their packets.
	Filters map[string]uint32 `json:"filters"`
	// Errors are those of this look: of an agent that is being restarted, for one.
	Errors string `json:"errors,omitempty"`
}

func main() {
	every := flag.Duration("every", 10*time.Second, "how long to wait between two looks")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: flow-reader [-every DURATION] FOLDER: follows the maps of a readers' folder")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := follow(ctx, flag.Arg(0), *every, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "flow-reader:", err)
		os.Exit(1)
	}
}

// follow looks again and again until the context ends, and prints a line for each look.
func follow(ctx context.Context, folder string, every time.Duration, out io.Writer) error {
	maps, err := skepmap.Open(folder)
	if err != nil {
		return err
	}
	defer maps.Close()
	var records atomic.Uint64
	go consume(ctx, maps, &records)
	for {
		s := look(maps)
		s.Records = records.Load()
		if err := json.NewEncoder(out).Encode(s); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// consume takes records until the context ends. A new version of the program may have another ring buffer.
func consume(ctx context.Context, maps *skepmap.Maps, records *atomic.Uint64) {
	for ctx.Err() == nil {
		err := take(ctx, maps, records)
		if ctx.Err() != nil || errors.Is(err, skepmap.ErrReplaced) {
			continue
		}
		fmt.Fprintln(os.Stderr, err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func take(ctx context.Context, maps *skepmap.Maps, records *atomic.Uint64) error {
	m, err := maps.Map("direct_flows")
	if err != nil {
		return err
	}
	r, err := m.Consume()
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		if _, err := r.Read(ctx); err != nil {
			return err
		}
		records.Add(1)
	}
}

// look reads all maps once.
func look(maps *skepmap.Maps) Seen {
	s := Seen{Generation: maps.Listing().Generation, Counters: map[string]uint64{}, Filters: map[string]uint32{}}
	err := errors.Join(
		each(maps, "aggregated_flows", func(_ flowID, m flowMetrics) { s.Flows++; s.Packets += uint64(m.Packets) }),
		each(maps, "aggregated_flows_dns", func(_ flowID, perCPU []dnsMetrics) {
			for _, m := range perCPU {
				s.DNSMessages += m.Messages
			}
		}),
		each(maps, "global_counters", func(counter uint32, perCPU []uint32) {
			for _, n := range perCPU {
				s.Counters[counters[counter]] += uint64(n)
			}
		}),
		each(maps, "filter_map", func(k filterKey, action uint32) {
			s.Filters[netip.PrefixFrom(netip.AddrFrom4(k.IP), int(k.PrefixLen)).String()] = action
		}),
	)
	if err != nil {
		s.Errors = err.Error()
	}
	return s
}

// each calls a function with all entries of a map, which come in batches.
func each[K, V any](maps *skepmap.Maps, name string, do func(K, V)) error {
	m, err := maps.Map(name)
	if err != nil {
		return err
	}
	var key K
	var value V
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		do(key, value)
	}
	return entries.Err()
}
