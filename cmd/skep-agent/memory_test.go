package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestMapsLeaveTheAgentMemoryOfItsOwn(t *testing.T) {
	for sentence, c := range map[string]struct {
		asked string
		limit int64
		want  int64
		warns bool
	}{
		"no limit is none":                         {"", 0, 0, false},
		"of a limit the agent has a gibibyte":      {"", 4 << 30, 3 << 30, false},
		"of a small one it has half":               {"", 1 << 30, 512 << 20, false},
		"less may be asked for":                    {"512Mi", 4 << 30, 512 << 20, false},
		"all that is left may be":                  {"3Gi", 4 << 30, 3 << 30, false},
		"what the limit does not hold is not had":  {"4Gi", 4 << 30, 3 << 30, true},
		"without a limit what is asked for is had": {"4Gi", 0, 4 << 30, false},
		"maps may have no limit on purpose":        {"0", 4 << 30, 0, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			var asked *resource.Quantity
			if c.asked != "" {
				q := resource.MustParse(c.asked)
				asked = &q
			}
			var out bytes.Buffer
			got := mapMemory(slog.New(slog.NewTextHandler(&out, nil)), asked, c.limit)
			if got != c.want || strings.Contains(out.String(), "--map-memory") != c.warns {
				t.Errorf("maps have %d, want %d: %s", got, c.want, out.String())
			}
		})
	}
}
