// Package hostile fills values with text that a terminal obeys, and checks that none of it is printed as it is. It knows no command.
package hostile

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Text clears the screen, sets the title by controls of one and of two bytes, turns the direction of writing, and looks like another row.
const Text = "x\x1b[2J\x1b]0;t\x07\u009b2J\u202e\tcell\nrow"

// commands are what of Text a terminal obeys, line ends and tabs left aside, and row is how its last line begins.
const commands, row = "\x1b\x07\u009b\u202e", "row"

// Fill has each text in what v points to be Text, each number one, and each list, map and pointer have one member.
func Fill(v any) { fill(reflect.ValueOf(v).Elem()) }

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(Text)
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
		switch v.Type() {
		case reflect.TypeFor[metav1.Time]():
			v.Set(reflect.ValueOf(metav1.Now()))
			return
		case reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Now()))
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

// Check fails for each line of what was printed that has a command for a terminal, or that only looks like a line of the command's own.
func Check(t *testing.T, what, printed string) {
	t.Helper()
	for line := range strings.Lines(printed) {
		if strings.ContainsAny(line, commands) || strings.HasPrefix(line, row) {
			t.Errorf("%s prints %q", what, line)
		}
	}
}
