package archives

import (
	archivetar "archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/harness/need"
)

// packed is an archive of entries, of which Size is that of content.
func packed(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := archivetar.NewWriter(&out)
	for _, e := range entries {
		h := e.Header
		h.Name, h.Size, h.Mode = e.name, int64(len(e.content)), 0o644
		if h.Typeflag == archivetar.TypeXGlobalHeader {
			h = archivetar.Header{Typeflag: h.Typeflag, PAXRecords: map[string]string{"comment": "a commit"}}
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// entry is one of an archive.
type entry struct {
	archivetar.Header

	name, content string
}

// zipped compresses an archive.
func zipped(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(bytes.Join(parts, nil)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// kind is an entry of a type of tar.
func kind(flag byte, name, target string) entry {
	return entry{Header: archivetar.Header{Typeflag: flag, Linkname: target}, name: name}
}

// unpacked are the files that an archive comes to, by name.
func unpacked(t *testing.T, archive []byte) (map[string]string, error) {
	t.Helper()
	dir := t.TempDir()
	if err := Unpack(t.Context(), bytes.NewReader(archive), dir); err != nil {
		return nil, err
	}
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, dir+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, nil
}

// TestAnArchiveThatIsNotWholeIsRefused: what a part of it lacks, Flux would prune.
func TestAnArchiveThatIsNotWholeIsRefused(t *testing.T) {
	one, two := entry{name: "one.yaml", content: "kind: x\n"}, entry{name: "two.yaml", content: strings.Repeat("kind: y\n", 200)}
	both := packed(t, one, two)
	const ends = 1024 // The two blocks of zeros that end an archive.
	for why, c := range map[string]struct {
		archive []byte
		says    string
	}{
		"a hard link":                   {zipped(t, packed(t, one, kind(archivetar.TypeLink, "two.yaml", "one.yaml"))), "two.yaml is a hard link to one.yaml"},
		"a hard link to nothing":        {zipped(t, packed(t, kind(archivetar.TypeLink, "a/two.yaml", "none"))), "a/two.yaml is a hard link to none"},
		"a symbolic link":               {zipped(t, packed(t, one, kind(archivetar.TypeSymlink, "two.yaml", "one.yaml"))), "two.yaml is a symbolic link"},
		"a device":                      {zipped(t, packed(t, kind(archivetar.TypeChar, "two.yaml", ""))), "two.yaml is neither a file nor a folder"},
		"a pipe":                        {zipped(t, packed(t, kind(archivetar.TypeFifo, "two.yaml", ""))), "two.yaml is neither a file nor a folder"},
		"a file of several volumes":     {zipped(t, ofType(t, 'M')), "two.yaml is neither a file nor a folder"},
		"a file twice":                  {zipped(t, packed(t, one, entry{name: "./one.yaml"})), "./one.yaml is in the archive twice"},
		"no end":                        {zipped(t, both[:len(both)-ends]), "it was cut off"},
		"half an end":                   {zipped(t, both[:len(both)-ends/2]), "it was cut off"},
		"cut between two files":         {zipped(t, both[:1024]), "it was cut off"},
		"cut within a file":             {zipped(t, both[:2048]), "unexpected EOF"},
		"cut within a header":           {zipped(t, both[:1100]), "unexpected EOF"},
		"cut as it is compressed":       {zipped(t, both)[:80], "unexpected EOF"},
		"a wrong checksum":              {changed(zipped(t, both), -5), "checksum"},
		"two archives":                  {zipped(t, both, packed(t, entry{name: "three.yaml"})), "follows the end of the archive"},
		"two archives, each compressed": {append(zipped(t, both), zipped(t, packed(t, entry{name: "three.yaml"}))...), "follows the end of the archive"},
		"not compressed":                {both, "not compressed by gzip"},
	} {
		if files, err := unpacked(t, c.archive); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v; want an error that says %q", why, files, err, c.says)
		}
	}
}

// ofType is an archive of a file whose type Go writes none of.
func ofType(t *testing.T, flag byte) []byte {
	t.Helper()
	archive := packed(t, entry{name: "two.yaml", content: "kind: y\n"})
	const typeflag, checksum = 156, 148
	archive[typeflag] = flag
	copy(archive[checksum:], "        ")
	sum := 0
	for _, b := range archive[:512] {
		sum += int(b)
	}
	for i := 5; i >= 0; i-- {
		archive[checksum+i] = byte('0' + sum&7)
		sum >>= 3
	}
	archive[checksum+6] = 0
	return archive
}

// changed changes one byte, counted from the end where at is negative.
func changed(data []byte, at int) []byte {
	data[len(data)+at] ^= 0xff
	return data
}

func TestAWholeArchiveIsUnpackedWhole(t *testing.T) {
	long := strings.Repeat("d/", 60) + strings.Repeat("n", 200) + ".yaml"
	all := packed(t,
		kind(archivetar.TypeXGlobalHeader, "pax_global_header", ""),
		kind(archivetar.TypeDir, "./", ""), kind(archivetar.TypeDir, "d/", ""), kind(archivetar.TypeDir, "d/", ""),
		entry{name: "./one.yaml", content: "kind: x\n"}, entry{name: long, content: "kind: l\n"},
		entry{Header: archivetar.Header{Format: archivetar.FormatGNU}, name: "gnu/" + long[10:], content: "kind: g\n"},
		entry{name: "empty.yaml"})
	files, err := unpacked(t, zipped(t, all, make([]byte, 9<<10)))
	want := map[string]string{
		"one.yaml": "kind: x\n", long: "kind: l\n", "gnu/" + long[10:]: "kind: g\n", "empty.yaml": "",
	}
	if diff := cmp.Diff(want, files); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestATarOfHardLinksIsPackedAsTheMessageSays, by GNU tar.
func TestATarOfHardLinksIsPackedAsTheMessageSays(t *testing.T) {
	need.Program(t, "tar", "tar")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one.yaml"), []byte("kind: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two.yaml")); err != nil {
		t.Fatal(err)
	}
	pack := func(options ...string) []byte {
		archive, err := exec.CommandContext(t.Context(), "tar", append(options, "-C", dir, "-czf", "-", "one.yaml", "two.yaml")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return archive
	}
	_, err := unpacked(t, pack())
	if err == nil || !strings.Contains(err.Error(), "(tar --hard-dereference)") {
		t.Fatalf("a hard link: %v", err)
	}
	files, err := unpacked(t, pack("--hard-dereference"))
	if err != nil || files["two.yaml"] != "kind: x\n" {
		t.Errorf("%v, %v", files, err)
	}
}
