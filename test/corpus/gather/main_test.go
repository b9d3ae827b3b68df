package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/skep-dev/skep/test/corpus"
)

func TestObjectsInsideOfABinaryAreFound(t *testing.T) {
	var want [][]byte
	for _, name := range []string{"kprobe", "variables", "usdt"} {
		body, err := corpus.Objects.ReadFile("testdata/" + name + ".o")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, body)
	}
	binary := slices.Concat([]byte("\x7fELF\x02\x01 no header"), want[0], []byte{0}, want[1], want[2], []byte("\x7fELF"), want[0][:len(want[0])-1])
	if got := inside(binary); !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%d objects are found, want %d", len(got), len(want))
	}
}
