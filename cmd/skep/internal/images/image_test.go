package images

import (
	"strings"
	"testing"
)

func TestAnImageHasPrograms(t *testing.T) {
	const without = "../../../../bytecode/testdata/no_programs.o"
	for name, files := range map[string][]string{
		"an image":       {without},
		"one of several": {"linux/amd64=../../../../test/fixture/programs/xdp_pass.o", "linux/arm64=" + without},
		"an artifact":    {without},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pack(files, name == "an artifact")
			if err == nil || !strings.Contains(err.Error(), "the object has no programs") || !strings.Contains(err.Error(), without) {
				t.Errorf("pack = %v", err)
			}
		})
	}
	if _, err := pack([]string{"../../../../test/fixture/programs/xdp_pass.o"}, false); err != nil {
		t.Error(err)
	}
}
