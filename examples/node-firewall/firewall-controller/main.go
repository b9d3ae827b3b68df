// Command firewall-controller is the user space of the example node-firewall: it writes rules into the table of the program, says what they did, and
// takes an event for each packet that was dropped.
//
// It owns the other side of node_firewall.bpf.c. It needs no privilege, and loads and attaches nothing: that is the agent's part.
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

// Names of maps.
const (
	tableMap      = "ingress_node_firewall_table_map"
	statisticsMap = "ingress_node_firewall_statistics_map"
	eventsMap     = "ingress_node_firewall_events_map"
	debugMap      = "ingress_node_firewall_dbg_map"
)

// Seen is what the maps hold.
type Seen struct {
	// Generation is that of the listing: a higher one tells of other maps.
	Generation uint64 `json:"generation"`
	// Networks are how many have rules in the table, and Written the entries that this look changed.
	Networks int `json:"networks"`
	Written  int `json:"written"`
	// Rules are what each rule did, by its id, and Events are those that this process took.
	Rules  map[uint32]Did `json:"rules"`
	Events uint64         `json:"events"`
	// Errors are those of this look: of an agent that is being restarted, for one.
	Errors string `json:"errors,omitempty"`
}

// Did is what a rule did on all CPUs. Last is the sender of the last packet that it was for.
type Did struct {
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	Last    string `json:"last,omitempty"`
}

func main() {
	every := flag.Duration("every", 10*time.Second, "how long to wait between two looks")
	rules := flag.String("rules", "", "the file with the rules")
	flag.Parse()
	if flag.NArg() != 1 || *rules == "" {
		fmt.Fprintln(os.Stderr, "usage: firewall-controller -rules FILE [-every DURATION] FOLDER: keeps the rules of a file in the maps of a readers' folder")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := control(ctx, flag.Arg(0), *rules, *every, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "firewall-controller:", err)
		os.Exit(1)
	}
}

// control writes and looks again and again until the context ends, and prints a line for each time.
func control(ctx context.Context, folder, rules string, every time.Duration, out io.Writer) error {
	maps, err := skepmap.Open(folder)
	if err != nil {
		return err
	}
	defer maps.Close()
	var events atomic.Uint64
	go consume(ctx, maps, &events)
	for {
		s := Seen{Generation: maps.Listing().Generation, Rules: map[uint32]Did{}}
		if err := errors.Join(s.write(maps, rules), s.look(maps)); err != nil {
			s.Errors = err.Error()
		}
		s.Events = events.Load()
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

// consume takes events until the context ends. A new version of the program may have another ring buffer.
func consume(ctx context.Context, maps *skepmap.Maps, events *atomic.Uint64) {
	for ctx.Err() == nil {
		err := take(ctx, maps, events)
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

func take(ctx context.Context, maps *skepmap.Maps, events *atomic.Uint64) error {
	m, err := maps.Map(eventsMap)
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
		events.Add(1)
	}
}

// write has the table hold the rules of the file and no others: a table that a new version made anew is empty.
func (s *Seen) write(maps *skepmap.Maps, path string) error {
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	wanted, err := parse(string(body))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	table, err := maps.Map(tableMap)
	if err != nil {
		return err
	}
	there := map[network]rules{}
	var key network
	var value rules
	entries := table.Iterate()
	for entries.Next(&key, &value) {
		there[key] = value
	}
	all := []error{entries.Err()}
	for key, value := range wanted {
		if there[key] != value {
			s.Written++
			all = append(all, table.Put(key, value))
		}
	}
	for key := range there {
		if _, is := wanted[key]; !is {
			s.Written++
			all = append(all, table.Delete(key))
		}
	}
	s.Networks = len(wanted)
	return errors.Join(all...)
}

// look reads what the rules did.
func (s *Seen) look(maps *skepmap.Maps) error {
	counted, err := maps.Map(statisticsMap)
	if err != nil {
		return err
	}
	var id uint32
	var perCPU []statistics
	entries := counted.Iterate()
	for entries.Next(&id, &perCPU) {
		var did Did
		for _, one := range perCPU {
			did.Allowed += one.Allow.Packets
			did.Denied += one.Deny.Packets
		}
		if did != (Did{}) {
			s.Rules[id] = did
		}
	}
	if err := entries.Err(); err != nil {
		return err
	}
	last, err := maps.Map(debugMap)
	if err != nil {
		return err
	}
	for id, did := range s.Rules {
		var from network
		if err := last.Lookup(id, &from); err == nil {
			did.Last = netip.AddrFrom16(from.IP).Unmap().String()
			s.Rules[id] = did
		}
	}
	return nil
}
