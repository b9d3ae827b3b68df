package inventory_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/program/owner"
)

// shape is what skep inventory -o json prints: its keys are a contract.
const shape = `{
  "programs": [
    {
      "id": 7,
      "type": "XDP",
      "name": "count_packets",
      "tag": "0123456789abcdef",
      "attached": [
        {
          "hook": "xdp",
          "target": "eth0",
          "link": 3
        }
      ],
      "holders": [
        {
          "pid": 1,
          "name": "skep"
        }
      ],
      "pins": [
        "/sys/fs/bpf/skep/u/prog"
      ],
      "managed": true,
      "owner": {
        "app": "default/counter",
        "uid": "u",
        "revision": "r"
      },
      "loadedAt": "2026-01-02T03:04:05Z",
      "uid": 0,
      "maps": [
        9
      ],
      "jitedBytes": 100,
      "memlockBytes": 4096,
      "verifiedInstructions": 50,
      "runs": 2,
      "runTimeNs": 1500
    }
  ],
  "links": [
    {
      "id": 3,
      "type": "xdp",
      "program": 7,
      "place": {
        "hook": "xdp",
        "target": "eth0"
      },
      "holders": [],
      "pins": [],
      "managed": true
    }
  ],
  "maps": [
    {
      "id": 9,
      "type": "PerCPUArray",
      "name": "counts",
      "keySize": 4,
      "valueSize": 8,
      "maxEntries": 1,
      "flags": 0,
      "frozen": false,
      "memlockBytes": 64,
      "programs": [
        7
      ],
      "holders": [],
      "pins": [],
      "managed": true
    }
  ]
}`

func TestJSONKeepsItsShape(t *testing.T) {
	inv := inventory.Inventory{
		Programs: []inventory.Program{{
			ID: 7, Type: "XDP", Name: "count_packets", Tag: "0123456789abcdef",
			Attached: []inventory.Place{{Hook: "xdp", Target: "eth0", Link: 3}},
			Holders:  []inventory.Process{{PID: 1, Name: "skep"}}, Pins: []string{"/sys/fs/bpf/skep/u/prog"}, Managed: true,
			Owner:    &owner.Owner{App: "default/counter", UID: "u", Revision: "r"},
			LoadedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Maps: []uint32{9},
			JitedBytes: 100, MemlockBytes: 4096, VerifiedInstructions: 50, Runs: 2, RunTime: 1500,
		}},
		Links: []inventory.Link{{ID: 3, Type: "xdp", Program: 7, Place: inventory.Place{Hook: "xdp", Target: "eth0"},
			Holders: []inventory.Process{}, Pins: []string{}, Managed: true}},
		Maps: []inventory.Map{{ID: 9, Type: "PerCPUArray", Name: "counts", KeySize: 4, ValueSize: 8, MaxEntries: 1, MemlockBytes: 64,
			Programs: []uint32{7}, Holders: []inventory.Process{}, Pins: []string{}, Managed: true}},
	}
	got, err := json.MarshalIndent(inv, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(shape, string(got)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
}
