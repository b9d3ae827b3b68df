package image_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/test/fixture/images"
)

func TestBuildIsReproducible(t *testing.T) {
	objects := map[string][]byte{"linux/amd64": images.LittleEndian, "linux/s390x": images.BigEndian}
	build := func(o image.BuildOptions) string {
		b, err := image.BuildIndex(objects, o)
		if err != nil {
			t.Fatalf("BuildIndex: %v", err)
		}
		return b.Digest()
	}
	labels := map[string]string{"a": "1", "b": "2", "c": "3"}
	first := build(image.BuildOptions{Labels: labels})
	for range 5 {
		if again := build(image.BuildOptions{Labels: labels}); again != first {
			t.Fatalf("digest %s, then %s", first, again)
		}
	}
	if labelled := build(image.BuildOptions{}); labelled == first {
		t.Error("labels make no difference")
	}
	own := build(image.BuildOptions{Labels: labels, PlatformLabels: map[string]map[string]string{"linux/s390x": {"a": "9"}}})
	if own == first {
		t.Error("labels of one platform make no difference")
	}
	if labels["a"] != "1" {
		t.Error("BuildIndex changed the labels it was given")
	}
}

func TestBuildRefuses(t *testing.T) {
	x86 := append([]byte(nil), images.LittleEndian...)
	x86[18] = 62
	tests := map[string]struct {
		object  []byte
		options image.BuildOptions
		want    string
	}{
		"something that is not ELF":      {[]byte("#!/bin/sh"), image.BuildOptions{}, "it is not ELF"},
		"an ELF file for another CPU":    {x86, image.BuildOptions{}, "machine 62"},
		"an ELF file cut short":          {images.LittleEndian[:20], image.BuildOptions{}, "cut short"},
		"an artifact that is not ELF":    {[]byte("text"), image.BuildOptions{Artifact: true}, "it is not ELF"},
		"a file name with a folder":      {images.LittleEndian, image.BuildOptions{Filename: "a/b.o"}, "must have no folder"},
		"a file name that goes upwards":  {images.LittleEndian, image.BuildOptions{Filename: ".."}, "must have no folder"},
		"nothing at all":                 {nil, image.BuildOptions{}, "it is not ELF"},
		"an executable in place of a .o": {executable(), image.BuildOptions{}, "type 2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := image.Build(test.object, test.options)
			if !errors.Is(err, image.ErrMalformed) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrMalformed with %q", err, test.want)
			}
		})
	}
	for name, objects := range map[string]map[string][]byte{
		"no object":       nil,
		"a bad platform":  {"a/b/c/d": images.LittleEndian},
		"a broken object": {"linux/amd64": []byte("no")},
	} {
		if _, err := image.BuildIndex(objects, image.BuildOptions{}); !errors.Is(err, image.ErrMalformed) {
			t.Errorf("BuildIndex of %s: %v, want ErrMalformed", name, err)
		}
	}
}

func executable() []byte {
	object := append([]byte(nil), images.LittleEndian...)
	object[16] = 2
	return object
}
