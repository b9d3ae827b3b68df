package values_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/bytecode/values"
	"github.com/skep-dev/skep/test/fixture/programs"
)

func TestBytesBecomeValuesOfTheObjectsTypes(t *testing.T) {
	for name, c := range map[string]struct {
		object, variable string
		bytes            []byte
		want, rejected   string
	}{
		"an integer":                   {"xdp_count", "sampling", []byte{0x0d, 0x0c, 0x0b, 0x0a}, "168496141", ""},
		"too few bytes":                {"xdp_count", "sampling", []byte{1}, "", "its type takes 4 bytes, and 1 are given"},
		"no bytes":                     {"xdp_count", "sampling", nil, "", "its type takes 4 bytes, and 0 are given"},
		"a variable that is not there": {"xdp_count", "other", []byte{1}, "", ""},
		"a union":                      {"xdp_nested", "an_address", make([]byte, 16), "", "values of its type (*btf.Union) are not read from bytes"},
		"bit fields":                   {"xdp_nested", "some_flags", make([]byte, 8), "", "is a bit field"},
	} {
		t.Run(name, func(t *testing.T) {
			known, rejected, err := values.Decode(programs.Object(c.object), map[string][]byte{c.variable: c.bytes})
			if err != nil {
				t.Fatal(err)
			}
			if got := string(known[c.variable].Raw); got != c.want {
				t.Errorf("value %s, want %s", got, c.want)
			}
			if err := rejected[c.variable]; (err != nil) != (c.rejected != "") || err != nil && !strings.Contains(err.Error(), c.rejected) {
				t.Errorf("rejected: %v, want %q", err, c.rejected)
			}
		})
	}
	if _, _, err := values.Decode([]byte("no object"), nil); err == nil {
		t.Error("no error for what is no object")
	}
}
