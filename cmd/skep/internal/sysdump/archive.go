package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// The bounds of one file of an archive, and of all.
const (
	maxFile = 4 << 20
	maxAll  = 64 << 20
)

// readme says what each file is.
//
//go:embed readme.txt
var readme string

// archive writes files of bounded sizes, and a manifest of them.
type archive struct {
	folder string
	now    time.Time
	gzip   *gzip.Writer
	tar    *tar.Writer
	// left is how many bytes all files may still have.
	left     int
	manifest strings.Builder
	// files counts files, and missing what could not be read.
	files, missing int
	err            error
}

// newArchive begins an archive of a folder.
func newArchive(w io.Writer, folder string, now time.Time) *archive {
	a := &archive{folder: folder, now: now, gzip: gzip.NewWriter(w), left: maxAll}
	a.tar = tar.NewWriter(a.gzip)
	a.write("README.txt", []byte(readme))
	return a
}

// write writes a file.
func (a *archive) write(name string, body []byte) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{Name: a.folder + "/" + name, Mode: 0o600, Size: int64(len(body)), ModTime: a.now, Typeflag: tar.TypeReg})
	if a.err == nil {
		_, a.err = a.tar.Write(body)
	}
}

// tail adds the last lines of a text, as many as there is room for. scrub gets whole lines: a secret that is cut would not be known.
func (a *archive) tail(name string, body []byte, scrub func(string) string) {
	note := ""
	if most := min(maxFile, a.left); len(body) > most {
		all := len(body)
		body = body[all-most:]
		_, body, _ = bytes.Cut(body, []byte("\n"))
		note = fmt.Sprintf("the first %d bytes are left out: a file has at most %d, and all files %d", all-len(body), maxFile, maxAll)
	}
	text := scrub(string(body))
	// What stands for a secret may be longer.
	a.add(name, []byte(text[:min(len(text), maxFile, a.left)]), note)
}

// json adds a value as a file.
func (a *archive) json(name string, value any) {
	body, err := encode(value)
	if err == nil && len(body) > min(maxFile, a.left) {
		err = fmt.Errorf("it has %d bytes: a file has at most %d, and all files %d", len(body), maxFile, maxAll)
	}
	if err != nil {
		a.lack(name, err)
		return
	}
	a.add(name, body, "")
}

// encode writes JSON that a reader can search.
func encode(value any) ([]byte, error) {
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(value)
	return body.Bytes(), err
}

// add adds a file and its line of the manifest.
func (a *archive) add(name string, body []byte, note string) {
	a.write(name, body)
	a.left -= len(body)
	a.files++
	fmt.Fprintln(&a.manifest, strings.TrimSpace(fmt.Sprintf("%s  %d bytes  %s", name, len(body), note)))
}

// lack notes what could not be read.
func (a *archive) lack(name string, err error) {
	a.missing++
	fmt.Fprintf(&a.manifest, "%s  NOT READ: %s\n", name, withoutCredentials(strings.ReplaceAll(err.Error(), "\n", " ")))
}

// close ends the archive with its manifest.
func (a *archive) close() error {
	a.write("MANIFEST.txt", []byte(a.manifest.String()))
	return errors.Join(a.err, a.tar.Close(), a.gzip.Close())
}

// list collects objects for a file, as many as it may have.
type list struct {
	body  bytes.Buffer
	most  int
	count int
	over  bool
}

// newList is for a file of the archive.
func (a *archive) newList() *list { return &list{most: min(maxFile, a.left)} }

// put adds an object, and reports whether there was room for it.
func (l *list) put(object any) bool {
	one, err := encode(object)
	// A comma, and what begins and ends the list.
	if err != nil || l.body.Len()+len(one)+8 > l.most {
		l.over = true
		return false
	}
	if l.count > 0 {
		l.body.WriteString(",\n")
	}
	l.body.Write(bytes.TrimSpace(one))
	l.count++
	return true
}

// list adds the file of a list.
func (a *archive) list(name string, l *list) {
	note := fmt.Sprintf("%d objects", l.count)
	if l.over {
		note += fmt.Sprintf("; more are left out: a file has at most %d bytes, and all files %d", maxFile, maxAll)
	}
	a.add(name, append(append([]byte("[\n"), l.body.Bytes()...), "\n]\n"...), note)
}
