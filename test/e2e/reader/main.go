// Command reader is the container of the Pods that read maps. It waits until it has to end; with the argument look it says,
// as JSON, what it is answered for each map of the volume at /maps.
//
// It has no right of its own, and owns nothing.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/skepmap"
)

// dir is where the volume is.
const dir = "/maps"

// look is what a reader is answered. An error is its text, and an answer that came is "yes".
type look struct {
	Generation uint64
	// Sum is the value of the map's first entry, of all CPUs together, by whatever way there is.
	Sum map[string]uint64
	// Lookup and Put are by whatever way, and Pin and WritePin open the pin.
	Lookup, Put, Pin, WritePin map[string]string
	// Update, Freeze and ByID are by the pin's descriptor.
	Update, Freeze, ByID map[string]string
}

func main() {
	if len(os.Args) > 1 {
		if err := json.NewEncoder(os.Stdout).Encode(looked()); err != nil {
			os.Exit(1)
		}
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}

func looked() look {
	l := look{Sum: map[string]uint64{}, Lookup: map[string]string{}, Put: map[string]string{}, Pin: map[string]string{}, WritePin: map[string]string{},
		Update: map[string]string{}, Freeze: map[string]string{}, ByID: map[string]string{}}
	all, err := skepmap.Open(dir)
	if err != nil {
		l.Lookup["maps.json"] = err.Error()
		return l
	}
	defer all.Close()
	l.Generation = all.Listing().Generation
	// What the program counts.
	if _, err := unix.Getpgid(0); err != nil {
		l.Lookup["getpgid"] = err.Error()
	}
	for name := range all.Listing().Maps {
		m, err := all.Map(name)
		if err != nil {
			l.Lookup[name] = err.Error()
			continue
		}
		var each []uint64
		l.Lookup[name] = answer(m.Lookup(uint32(0), &each))
		for _, one := range each {
			l.Sum[name] += one
		}
		if l.Lookup[name] == answer(nil) {
			l.Put[name] = answer(m.Put(uint32(0), each))
		}
		l.pin(name, each)
	}
	return l
}

// pin does with the pin what a reader must not do.
func (l look) pin(name string, each []uint64) {
	wide, err := ebpf.LoadPinnedMap(dir+"/"+name, nil)
	l.WritePin[name] = answer(err)
	if err == nil {
		_ = wide.Close()
	}
	m, err := ebpf.LoadPinnedMap(dir+"/"+name, &ebpf.LoadPinOptions{ReadOnly: true})
	l.Pin[name] = answer(err)
	if err != nil {
		return
	}
	defer m.Close()
	l.Update[name], l.Freeze[name] = answer(m.Put(uint32(0), each)), answer(m.Freeze())
	id := ebpf.MapID(1)
	if info, err := m.Info(); err == nil {
		id, _ = info.ID()
	}
	other, err := ebpf.NewMapFromID(id)
	l.ByID[name] = answer(err)
	if err == nil {
		_ = other.Close()
	}
}

func answer(err error) string {
	if err == nil {
		return "yes"
	}
	return fmt.Sprint(err)
}
