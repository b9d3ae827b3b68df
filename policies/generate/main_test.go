package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reflect"
)

func TestWhatIsPublishedIsWhatIsGenerated(t *testing.T) {
	for file, generate := range map[string]func() ([]byte, error){"capabilities.json": capabilities, "input.schema.json": schema} {
		want, err := generate()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go generate ./policies makes of it", file)
		}
	}
}

func TestRunWritesBoth(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := run(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"capabilities.json", "input.schema.json"} {
		if body, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(body, []byte("{\n")) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestDescribeRefusesWhatItCannotSay(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"a channel":                   {make(chan int), "no schema for chan int"},
		"a field without a JSON name": {struct{ A int }{}, "A has no name in JSON"},
		"a field that is a function": {struct {
			F func() `json:"f"`
		}{}, "F: no schema for func()"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := describe(reflect.TypeOf(test.value)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestDescribeLeavesOutWhatIsNotInJSON(t *testing.T) {
	got, err := describe(reflect.TypeFor[struct {
		A int `json:"a"`
		B int `json:"-"`
	}]())
	if err != nil {
		t.Fatal(err)
	}
	if all, ok := got["properties"].(map[string]any); !ok || len(all) != 1 || all["a"] == nil {
		t.Errorf("%v", got)
	}
}
