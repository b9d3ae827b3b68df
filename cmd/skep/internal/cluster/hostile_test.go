package cluster

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/nodes"
)

// hostile is text that a terminal obeys: it clears the screen, sets the title, turns the direction of writing, and looks like another row.
const hostile = "x\x1b[2J\x1b]0;t\x07\u202e\tcell\nrow"

// fill has each text in a value be hostile, each number one, and each list and pointer have one member.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Time]() {
			v.Set(reflect.ValueOf(metav1.Now()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	default:
	}
}

func TestNoFieldOfWhatAClusterAnswersReachesTheTerminalAsItIs(t *testing.T) {
	var (
		n view.NodeView
		e Explanation
		s Status
	)
	for _, v := range []any{&n, &e, &s} {
		fill(reflect.ValueOf(v).Elem())
	}
	sequence := n.Interfaces[0]
	xdp := sequence
	xdp.Hook = "xdp"
	for name, show := range map[string]func(w io.Writer) error{
		"status":    func(w io.Writer) error { return PrintStatus(w, "wide", s) },
		"explain":   func(w io.Writer) error { return PrintExplanation(w, "text", e) },
		"chain":     func(w io.Writer) error { return nodes.PrintChains(w, w, "text", n, []view.Interface{sequence, xdp}) },
		"inventory": func(w io.Writer) error { return nodes.PrintPrograms(w, true, n.Programs, n.Interfaces) },
		"history":   func(w io.Writer) error { return nodes.PrintHistory(w, true, e.Status.History) },
	} {
		var out bytes.Buffer
		if err := show(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for line := range strings.Lines(out.String()) {
			if strings.ContainsAny(line, "\x1b\x07\u202e") {
				t.Errorf("%s: %q", name, line)
			}
		}
		if lines := strings.Count(out.String(), "\n"); (name == "inventory" || name == "history") && lines != 2 {
			t.Errorf("%s: a row is %d lines:\n%s", name, lines-1, out.String())
		}
	}
}
