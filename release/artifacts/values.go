package artifacts

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"
)

// withImages is values with the repositories and digests of images. Nothing else of the
// text changes. Every image of the values has to be given, and no other.
func withImages(values []byte, images map[string]name.Digest) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, err
	}
	lines := strings.Split(string(values), "\n")
	left := maps.Clone(images)
	root := document.Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := root.Content[i].Value
		image := field(root.Content[i+1], "image")
		if image == nil {
			continue
		}
		digest, ok := images[key]
		if !ok {
			return nil, fmt.Errorf("%s.image is not given: give the image of every component, or of none", key)
		}
		delete(left, key)
		for name, value := range map[string]string{"repository": digest.Context().Name(), "digest": digest.DigestStr()} {
			if err := replace(lines, field(image, name), value); err != nil {
				return nil, fmt.Errorf("set %s.image.%s: %w", key, name, err)
			}
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("the values have no image of %s", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	return []byte(strings.Join(lines, "\n")), nil
}

// field is the value of a mapping's key, or nil.
func field(of *yaml.Node, key string) *yaml.Node {
	if of.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(of.Content); i += 2 {
		if of.Content[i].Value == key {
			return of.Content[i+1]
		}
	}
	return nil
}

// replace writes a value in the place of a scalar, which ends with its line.
func replace(lines []string, scalar *yaml.Node, value string) error {
	if scalar == nil || scalar.Kind != yaml.ScalarNode || scalar.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return errors.New("it is no value in one line")
	}
	line := lines[scalar.Line-1][:scalar.Column-1] + value
	if scalar.LineComment != "" {
		line += " " + scalar.LineComment
	}
	lines[scalar.Line-1] = line
	return nil
}
