package migrate

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/convert"
)

// options has images read where the command is to.
func (c *command) options(ctx context.Context) (convert.Options, error) {
	if !c.readImages {
		return convert.Options{}, nil
	}
	client, err := c.registries.Client()
	if err != nil {
		return convert.Options{}, err
	}
	return convert.Options{
		Variables: func(reference string, raw map[string][]byte) (map[string]apiextensionsv1.JSON, map[string]error, error) {
			ctx, cancel := context.WithTimeout(ctx, imageTimeout)
			defer cancel()
			resolved, err := client.Resolve(ctx, reference)
			if err != nil {
				return nil, nil, fmt.Errorf("read image: %w", err)
			}
			pulled, err := client.Pull(ctx, resolved)
			if err != nil {
				return nil, nil, fmt.Errorf("read image: %w", err)
			}
			return convert.Values(pulled.Object, raw)
		},
	}, nil
}
