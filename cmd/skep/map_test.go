package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestAContextIsNoHost: what names a cluster never shows the maps of this host.
func TestAContextIsNoHost(t *testing.T) {
	root := newRoot(streams{out: &bytes.Buffer{}, err: &bytes.Buffer{}})
	root.SetArgs([]string{"map", "list", "guard", "--context", "elsewhere"})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "name it by --node") {
		t.Errorf("%v, want that a node is named", err)
	}
}
