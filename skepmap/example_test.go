package skepmap_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/skep-dev/skep/skepmap"
)

// The values of a per-CPU hash of an application on this host.
func ExampleMaps() {
	maps, err := skepmap.Open("/run/skep/maps/shop/dns")
	if err != nil {
		log.Print(err)
		return
	}
	defer maps.Close()
	counts, err := maps.Map("counts")
	if err != nil {
		log.Print(err)
		return
	}
	var key uint32
	var perCPU []uint64 // the map has a value for each CPU
	entries := counts.Iterate()
	for entries.Next(&key, &perCPU) {
		fmt.Println(key, perCPU)
	}
	if err := entries.Err(); err != nil {
		log.Print(err)
	}
}

// A reader of a ring buffer that continues with each new version of the program.
func ExampleMap_Consume() {
	maps, err := skepmap.Open("/run/skep/maps/exec-snoop")
	if err != nil {
		log.Print(err)
		return
	}
	defer maps.Close()
	events, err := maps.Map("events")
	if err != nil {
		log.Print(err)
		return
	}
	for {
		records, err := events.Consume()
		if err != nil {
			log.Print(err)
			return
		}
		for err == nil {
			var record []byte
			if record, err = records.Read(context.Background()); err == nil {
				fmt.Printf("% x\n", record)
			}
		}
		if !errors.Is(err, skepmap.ErrReplaced) {
			log.Print(err)
			return
		}
	}
}
