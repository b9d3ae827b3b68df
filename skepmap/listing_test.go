package skepmap_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/skepmap"
)

// written is the file as docs/user-space.md shows it.
const written = `{
  "application": {"kind": "BpfApplication", "namespace": "shop", "name": "dns"},
  "digest": "sha256:1d2c",
  "generation": 3,
  "maps": {"counts": {"type": "PerCPUHash", "keySize": 4, "valueSize": 8, "maxEntries": 1024, "flags": 0,
    "access": "Read", "group": "metrics", "generation": 2, "btf": "counts.btf", "keyTypeID": 1, "valueTypeID": 3}}
}`

func TestAListingIsReadAsItIsWritten(t *testing.T) {
	got, err := skepmap.ParseListing([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	want := skepmap.Listing{
		Application: skepmap.Application{Kind: "BpfApplication", Namespace: "shop", Name: "dns"}, Digest: "sha256:1d2c", Generation: 3,
		Maps: map[string]skepmap.MapInfo{"counts": {
			Type: "PerCPUHash", KeySize: 4, ValueSize: 8, MaxEntries: 1024, Access: skepmap.Read, Group: "metrics", Generation: 2,
			BTF: "counts.btf", KeyTypeID: 1, ValueTypeID: 3,
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	raw, err := got.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := skepmap.ParseListing(raw); err != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("after Encode: %+v, %v", again, err)
	}
	if kind, known := got.Maps["counts"].MapType(); kind != ebpf.PerCPUHash || !known || !got.Maps["counts"].IsPerCPU() {
		t.Errorf("type %v, known: %v", kind, known)
	}
}

func TestAListingOfANewerAgentIsRead(t *testing.T) {
	newer := strings.Replace(written, `"generation": 3`, `"generation": 3, "colour": "red"`, 1)
	newer = strings.Replace(newer, `"PerCPUHash"`, `"SomeNewMap"`, 1)
	l, err := skepmap.ParseListing([]byte(newer))
	if err != nil {
		t.Fatal(err)
	}
	if _, known := l.Maps["counts"].MapType(); known {
		t.Error("a type that does not exist is known")
	}
}

func TestAListingThatBreaksARuleIsRejected(t *testing.T) {
	many := map[string]skepmap.MapInfo{}
	for i := range skepmap.MaxMaps + 1 {
		many[fmt.Sprint("m", i)] = skepmap.MapInfo{Type: "Hash", Access: skepmap.Read, Generation: 1}
	}
	tooMany, err := json.Marshal(skepmap.Listing{Application: skepmap.Application{Kind: "BpfApplication", Name: "a"}, Generation: 1, Maps: many})
	if err != nil {
		t.Fatal(err)
	}
	change := func(from, to string) string { return strings.Replace(written, from, to, 1) }
	for name, c := range map[string]struct{ raw, want string }{
		"nothing":                       {"", "EOF"},
		"no JSON":                       {"maps", "invalid character"},
		"more after the object":         {written + "{}", "more after"},
		"no application":                {change(`"name": "dns"`, `"name": ""`), "no kind or no name"},
		"generation 0":                  {change(`"generation": 3`, `"generation": 0`), "generation is 0"},
		"a negative generation":         {change(`"generation": 3`, `"generation": -1`), "cannot unmarshal"},
		"a map from the future":         {change(`"generation": 2`, `"generation": 4`), "generation is 4; the listing has 3"},
		"a size beyond 32 bits":         {change(`"keySize": 4`, `"keySize": 4294967296`), "cannot unmarshal"},
		"an access that does not exist": {change(`"Read"`, `"Own"`), `access is "Own"`},
		"no type":                       {change(`"PerCPUHash"`, `""`), "type is missing"},
		"a name with a folder":          {change(`"counts":`, `"../counts":`), "no name of a map"},
		"the parent folder":             {change(`"counts":`, `"..":`), "no name of a map"},
		"the name of the socket":        {change(`"counts":`, `"socket":`), "rename the map"},
		"the name of a type file":       {change(`"counts":`, `"a.btf":`), "rename the map"},
		"a group with a folder":         {change(`"metrics"`, `"../a"`), "no name and no number of a group"},
		"BTF elsewhere":                 {change(`"counts.btf"`, `"../../etc/passwd"`), "it can be counts.btf alone"},
		"types without BTF":             {change(`"btf": "counts.btf", `, ``), "names no BTF"},
		"too many maps":                 {string(tooMany), "at most 1024"},
		"too many bytes":                {written + strings.Repeat(" ", skepmap.MaxListing), "more than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if l, err := skepmap.ParseListing([]byte(c.raw)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v; want %q", l, err, c.want)
			}
		})
	}
}

func TestAListingThatCannotBeReadBackIsNotWritten(t *testing.T) {
	l := skepmap.Listing{Application: skepmap.Application{Kind: "BpfApplication", Name: "a"}, Generation: 1,
		Maps: map[string]skepmap.MapInfo{"maps": {Type: "Hash", Access: skepmap.Read, Generation: 1}}}
	if raw, err := l.Encode(); err == nil || !strings.Contains(err.Error(), "rename the map") {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestAListingOnDiskIsBounded(t *testing.T) {
	dir := t.TempDir()
	if _, err := skepmap.ReadListing(dir); !os.IsNotExist(err) {
		t.Errorf("an empty folder: %v", err)
	}
	file := filepath.Join(dir, skepmap.ListingFile)
	if err := os.WriteFile(file, []byte(written+strings.Repeat("\n", skepmap.MaxListing)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := skepmap.ReadListing(dir); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := skepmap.ReadListing(dir); err != nil {
		t.Error(err)
	}
}

func FuzzParseListing(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(`{"application":{"kind":"ClusterBpfApplication","name":"a"},"generation":1,"maps":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := skepmap.ParseListing(raw)
		if err != nil {
			return
		}
		out, err := l.Encode()
		if len(raw) > skepmap.MaxListing/4 && err != nil {
			return // indentation made it too long
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := skepmap.ParseListing(out); err != nil || again.Generation != l.Generation || len(again.Maps) != len(l.Maps) {
			t.Errorf("%s: %v", out, err)
		}
	})
}
