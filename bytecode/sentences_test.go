package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/jargon"
)

// complaint is what a user reads of an object; empty where it is fine.
func complaint(object []byte) string {
	if _, err := Inspect(bytes.NewReader(object), Options{CPUs: testCPUs}); err != nil {
		return err.Error()
	}
	return ""
}

// sectionAt is where the contents of a section are in its file.
func sectionAt(t *testing.T, object []byte, name string) (from, to uint64) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil || f.Section(name) == nil {
		t.Fatalf("no section %s: %v", name, err)
	}
	s := f.Section(name)
	return s.Offset, s.Offset + s.FileSize
}

func TestDamagedObjectsAreNamedInPlainWords(t *testing.T) {
	good := programs.Object("xdp_variables")
	btf, end := sectionAt(t, good, ".BTF")
	for sentence, c := range map[string]struct {
		damage func(object []byte) []byte
		want   string
	}{
		"nothing":                   {func([]byte) []byte { return nil }, "it is no ELF file; give the object"},
		"a few bytes":               {func(b []byte) []byte { return b[:40] }, "the file ends before its header does; copy or build it again"},
		"a text":                    {func([]byte) []byte { return bytes.Repeat([]byte("SEC(xdp)\n"), 20) }, "it is no ELF file; give the object"},
		"a download that was ended": {func(b []byte) []byte { return b[:len(b)/2] }, "copy or build it again"},
		"BTF of another kind":       {func(b []byte) []byte { b[btf] ^= 0xff; return b }, "read BTF"},
		"BTF that is cut":           {func(b []byte) []byte { clear(b[btf+24 : end]); return b }, "read BTF"},
	} {
		text := complaint(c.damage(slices.Clone(good)))
		if !strings.Contains(text, c.want) || jargon.In(text) != "" {
			t.Errorf("%s: %q, want %q, and no %q", sentence, text, c.want, jargon.In(text))
		}
	}
}

// TestNoDamageShowsWordsOfTheLibraries changes each number of a file that says where and what things are.
func TestNoDamageShowsWordsOfTheLibraries(t *testing.T) {
	good := programs.Object("xdp_variables")
	places := [][2]uint64{{0, 64}, {binary.LittleEndian.Uint64(good[40:]), uint64(len(good))}}
	for _, section := range []string{".BTF", ".BTF.ext", ".symtab"} {
		from, to := sectionAt(t, good, section)
		if section == ".BTF" {
			// The names in it are the object's own.
			to = from + uint64(binary.LittleEndian.Uint32(good[from+4:])+binary.LittleEndian.Uint32(good[from+16:]))
		}
		places = append(places, [2]uint64{from, to})
	}
	seen := map[string]bool{}
	for _, place := range places {
		for at := place[0]; at < place[1]; at++ {
			for _, change := range []byte{0x10, 0xff} {
				object := slices.Clone(good)
				object[at] ^= change
				text := complaint(object)
				if word := jargon.In(text); word != "" && !seen[word] {
					seen[word] = true
					t.Errorf("byte %d ^ %#x: %q: %q", at, change, word, text)
				}
			}
		}
	}
}

// TestARegisterThatIsNoneIsRejected: what follows values through registers has a place for eleven.
func TestARegisterThatIsNoneIsRejected(t *testing.T) {
	for _, registers := range []byte{0x0b, 0xf0} {
		object := programs.Object("xdp_count")
		at, _ := sectionAt(t, object, "xdp")
		object[at+1] = registers
		if r := refusal(t, object); r.Rule != "bytecode/no-such-register" || !strings.Contains(r.Reason, "the last is 10") {
			t.Errorf("%#x: %v", registers, r)
		}
	}
}
