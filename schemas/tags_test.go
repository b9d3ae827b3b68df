package schemas_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/skep-dev/skep/schemas"
)

func TestTagsOfAPackage(t *testing.T) {
	root := source(t, `
-- cue.mod/module.cue --
module: "example.com/fleet"
language: version: "v0.14.0"
-- shared/shared.cue --
package shared

#Region: *"eu" | "us" @tag(region)
-- app/app.cue --
package app

import "example.com/fleet/shared"

// Environment that the application is for.
// It is part of its name.
env: *"dev" | "prod" @tag(env,short=prod|staging)
ports: int | *(443) @tag(port, type=int)
token: string @tag(token)
fixed: "x" @tag(fixed)
again: string @tag(env)
region: shared.#Region
computed: "a" + "b" @tag(computed)
nested: deep: bool @tag(deep,type=bool)
other: 1 @json(other)
-- app/data.yaml --
a: 1
`)
	got, problems, err := schemas.Tags(t.Context(), schemas.Options{Root: root, Path: "app"})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	want := []schemas.Tag{
		{Name: "computed", Type: "string"},
		{Name: "deep", Type: "bool"},
		{Name: "env", Type: "string", Shorthands: []string{"prod", "staging"}, Default: "dev", Doc: "Environment that the application is for."},
		{Name: "fixed", Type: "string", Default: "x"},
		{Name: "port", Type: "int", Default: "443"},
		{Name: "token", Type: "string"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(schemas.Tag{}, "Source")); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	if at := got[2].Source.String(); at != "app/app.cue:7:22" {
		t.Errorf("env is at %s", at)
	}
}

func TestTagsOfWhatCannotBeRead(t *testing.T) {
	_, problems, err := schemas.Tags(t.Context(), schemas.Options{Root: source(t, "-- a.cue --\npackage a\nenv: string @tag(env\n")})
	if err != nil || len(problems) == 0 || problems[0].Source.File != "a.cue" {
		t.Fatalf("%v, %v", problems, err)
	}
}

func TestSoManyTagsAreToldAndNoMore(t *testing.T) {
	var b strings.Builder
	b.WriteString("-- a.cue --\npackage a\n")
	for i := range 1100 {
		b.WriteString("f" + strings.Repeat("x", i) + ": string @tag(t" + strings.Repeat("x", i) + ")\n")
	}
	got, problems, err := schemas.Tags(t.Context(), schemas.Options{Root: source(t, b.String())})
	if err != nil || len(got) != 1000 || len(problems) != 1 || !strings.Contains(problems[0].Message, "more than 1000 tags") {
		t.Fatalf("%d tags, %v, %v", len(got), problems, err)
	}
}
