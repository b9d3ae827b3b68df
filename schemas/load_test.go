package schemas_test

import (
	"testing"

	"github.com/skep-dev/skep/schemas"
)

func TestSmoke(t *testing.T) {
	d, err := schemas.Load(t.Context(), schemas.Options{Root: "/tmp/smoke"})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range d.Applications {
		t.Log(a.Source, a.Application.Identity(), a.Application.Body().Variables)
	}
	for _, p := range d.Problems {
		t.Log(p.Error())
	}
}
