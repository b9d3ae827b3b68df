// Command generate writes what is published beside the policies:
// capabilities.json from OPA's own declarations, and input.schema.json from the
// Go types. It is run by go generate in package policies.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	for file, make := range map[string]func() ([]byte, error){
		"capabilities.json": capabilities,
		"input.schema.json": schema,
	} {
		body, err := make()
		if err != nil {
			return fmt.Errorf("generate %s: %w", file, err)
		}
		if err := os.WriteFile(file, body, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}
	return nil
}
