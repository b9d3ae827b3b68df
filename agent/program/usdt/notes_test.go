package usdt

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/fixture/userbinary"
)

func read(t testing.TB, body []byte) *elf.File {
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// functions have a probe with two places, and one with a semaphore.
func functions() []userbinary.Function {
	return []userbinary.Function{
		{Name: "f", Code: []byte{0x90, 0x90}, Probes: []userbinary.Probe{
			{Provider: "p", Name: "two", Args: "8@%rax", At: 1}, {Provider: "p", Name: "guarded", Guarded: true},
		}},
		{Name: "g", Probes: []userbinary.Probe{{Provider: "p", Name: "two"}}},
	}
}

func TestThePlacesOfAProbeAreFoundHoweverTheBinaryIsLinked(t *testing.T) {
	at := func(i int) uint64 { return userbinary.Offset(functions(), i) }
	code := func(instructions string) string {
		return instructions + strings.Repeat("\x00", maxInstruction-len(instructions))
	}
	two := []Site{{Offset: at(0) + 1, Arguments: "8@%rax", Code: code("\x90\xc3\xc3")}, {Offset: at(1), Code: code("\xc3")}}
	guarded := []Site{{Offset: at(0), Semaphore: 0x1000, Code: code("\x90\x90\xc3\xc3")}}
	for sentence, o := range map[string]userbinary.Options{
		"at fixed addresses": {}, "position-independent": {Bias: 0x400000}, "moved up": {Prelinked: 0x10000},
		"moved down": {Prelinked: ^uint64(0xffff), Bias: 0x200000},
	} {
		file := read(t, userbinary.Make(functions(), o))
		for name, want := range map[string][]Site{"two": two, "guarded": guarded} {
			got, err := Sites(file, "p", name)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %s is at (-want +got):\n%s%v", sentence, name, diff, err)
			}
		}
	}
}

// patch returns a binary of functions after a change in its notes.
func patch(change func(notes []byte)) []byte {
	body := userbinary.Make(functions(), userbinary.Options{})
	change(body[bytes.Index(body, []byte("stapsdt\x00"))-12:])
	return body
}

func TestNotesThatAreBrokenAreErrors(t *testing.T) {
	put := func(at int, n uint32) []byte {
		return patch(func(notes []byte) { binary.LittleEndian.PutUint32(notes[at:], n) })
	}
	many := []userbinary.Function{{Name: "f", Code: make([]byte, maxSites+1)}}
	for i := range many[0].Code {
		many[0].Probes = append(many[0].Probes, userbinary.Probe{Provider: "p", Name: "two", At: i})
	}
	for sentence, c := range map[string]struct {
		body []byte
		want string
	}{
		"an owner without end":      {put(0, 1<<31), "broken"},
		"a description without end": {put(4, 1<<31), "broken"},
		"a description too short":   {put(4, 8), "broken"},
		"texts without end": {patch(func(n []byte) {
			for i, c := range n[20+24 : 20+24+20] {
				if c == 0 {
					n[20+24+i] = 'x'
				}
			}
		}), "broken"},
		"an address outside":          {put(20, 1), "is no instruction"},
		"an address of data":          {put(20, 0x600000), "is no instruction"},
		"another type of note":        {put(8, 4), ""},
		"more places than are looked": {userbinary.Make(many, userbinary.Options{}), "more than 256 places"},
		"no notes":                    {userbinary.Make(nil, userbinary.Options{}), "has no probe p:two"},
	} {
		_, err := Sites(read(t, c.body), "p", "two")
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", sentence, err, c.want)
		}
	}
	file := read(t, userbinary.Make(functions(), userbinary.Options{}))
	if _, err := Sites(file, "p", "tow"); err == nil || !strings.Contains(err.Error(), "near it are p:two") {
		t.Errorf("a probe that is not there: %v", err)
	}
	file.Section(noteSection).Size = maxNoteBytes + 1
	if _, err := Sites(file, "p", "two"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("notes beyond the bound: %v", err)
	}
}

// FuzzSites reads notes that may be anything.
func FuzzSites(f *testing.F) {
	file := read(f, userbinary.Make(functions(), userbinary.Options{}))
	notes, err := file.Section(noteSection).Data()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(notes)
	f.Fuzz(func(t *testing.T, notes []byte) {
		for rest := notes; len(rest) > 0; {
			one, after, err := nextNote(file, rest)
			if err != nil {
				return
			}
			if len(after) >= len(rest) {
				t.Fatal("a note takes no bytes")
			}
			_, _ = one.site(file)
			rest = after
		}
	})
}
