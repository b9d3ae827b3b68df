package images

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/jargon"
)

func TestADamagedObjectIsNamedInPlainWords(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	whole := programs.Object("xdp_variables")
	btf := bytes.Index(whole, []byte{0x9f, 0xeb, 0x01})
	for sentence, c := range map[string]struct {
		object []byte
		want   string
	}{
		"a download that was cut": {whole[:len(whole)/2], "the file ends before the header of section 0"},
		"a header that was cut":   {whole[:30], "the file ends before its header does"},
		"BTF of another kind":     {slices.Concat(whole[:btf], []byte{0, 0}, whole[btf+2:]), "read BTF"},
		"types that are none":     {slices.Concat(whole[:btf+24], make([]byte, 200), whole[btf+224:]), "a type is of no kind that BTF has"},
	} {
		file := filepath.Join(t.TempDir(), "counter.o")
		if err := os.WriteFile(file, c.object, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := NewImage()
		cmd.SetArgs([]string{"build", "-f", file, "oci:" + t.TempDir()})
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		err := cmd.ExecuteContext(t.Context())
		if err == nil {
			t.Fatalf("%s: it is packed", sentence)
		}
		// The folder has the name of the test.
		text := strings.ReplaceAll(err.Error(), file, "counter.o")
		if !strings.Contains(text, "read counter.o: ") || !strings.Contains(text, c.want) || jargon.In(text) != "" {
			t.Errorf("%s: %q, want %q, and no %q", sentence, text, c.want, jargon.In(text))
		}
	}
}
