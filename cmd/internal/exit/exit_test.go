package exit

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

func TestEndings(t *testing.T) {
	leaves := &Stopped{Leaves: "2 programs of 1 application stay loaded and attached"}
	for name, test := range map[string]struct {
		err  error
		by   syscall.Signal
		code int
		line string
	}{
		"it went well":                   {nil, 0, 0, ""},
		"the answer is no":               {ErrDenied, 0, 1, ""},
		"something differs":              {ErrDiffers, 0, 1, ""},
		"it could not be determined":     {errors.New("away"), 0, 2, "away"},
		"interrupted":                    {errors.New("took longer than 2m0s"), syscall.SIGINT, 130, "interrupted"},
		"interrupted at the end":         {nil, syscall.SIGINT, 130, "interrupted"},
		"run is interrupted":             {errors.Join(leaves, nil), syscall.SIGINT, 130, "interrupted; " + leaves.Leaves},
		"run is stopped by its manager":  {leaves, syscall.SIGTERM, 0, "stopped; " + leaves.Leaves},
		"it is told to end":              {context.Canceled, syscall.SIGTERM, 143, "terminated"},
		"it is told to end when it does": {nil, syscall.SIGTERM, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if code, line := Of(test.err, test.by); code != test.code || line != test.line {
				t.Errorf("exit code %d, line %q; want %d, %q", code, line, test.code, test.line)
			}
		})
	}
}
