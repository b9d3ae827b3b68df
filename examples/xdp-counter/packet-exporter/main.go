// Command packet-exporter prints how many packets the program count_packets has counted, again and again.
//
// It owns the reading side of xdp_counter.bpf.c. It needs no privilege, and runs on a host and in a pod as it is.
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/skep-dev/skep/skepmap"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: packet-exporter FOLDER")
	}
	log.Fatal(export(os.Args[1]))
}

func export(folder string) error {
	maps, err := skepmap.Open(folder)
	if err != nil {
		return err
	}
	defer maps.Close()
	counts, err := maps.Map("counts")
	if err != nil {
		return err
	}
	for tick := time.Tick(time.Second); ; <-tick {
		var perCPU []uint64 // the map has a value for each CPU
		if err := counts.Lookup(uint32(0), &perCPU); err != nil {
			log.Print(err) // the agent is being restarted, or the grant was withdrawn
			continue
		}
		var packets uint64
		for _, n := range perCPU {
			packets += n
		}
		fmt.Println("packets", packets)
	}
}
