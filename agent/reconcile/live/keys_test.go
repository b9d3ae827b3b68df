package live_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// TestAKeyThatIsRememberedIsThatOfTheAttachment asks for the keys of attachments that differ in a field, of which each has few values.
func TestAKeyThatIsRememberedIsThatOfTheAttachment(t *testing.T) {
	look := (&live.Set{}).Look()
	random := rand.New(rand.NewPCG(1, 2))
	var a plan.Attachment
	all := fields(reflect.ValueOf(&a).Elem())
	for range 200 * len(all) {
		switch one := all[random.IntN(len(all))]; one.Kind() {
		case reflect.String:
			one.SetString([]string{"", "a", "b"}[random.IntN(3)])
		case reflect.Bool:
			one.SetBool(random.IntN(2) == 1)
		case reflect.Uint32, reflect.Uint64:
			one.SetUint(random.Uint64N(3))
		default:
			one.SetInt(random.Int64N(3))
		}
		if got, want := look.KeyOf(&a), a.Key(); got != want {
			t.Fatalf("the key of %+v is %s, want %s", a, got, want)
		}
	}
}

// fields are those of a struct and of the structs in it.
func fields(of reflect.Value) (all []reflect.Value) {
	for i := range of.NumField() {
		if f := of.Field(i); f.Kind() == reflect.Struct {
			all = append(all, fields(f)...)
		} else {
			all = append(all, f)
		}
	}
	return all
}
