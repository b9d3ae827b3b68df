package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/plan"
)

// textSuffix is appended to a link's pin for the symlink whose text is the
// attachment: the kernel does not tell all of it.
const textSuffix = "+at"

// maxText is the longest text a symlink holds (PATH_MAX with its end).
const maxText = 4095

// Link is a pinned link, held open.
type Link struct {
	UID        string
	Attachment plan.Attachment
	// SpecID is the entry of a USDT probe's arguments in the map of its program.
	SpecID uint32
	Link   link.Link
	// Path is the pin.
	Path string
}

// Close lets the link go; it stays while it is pinned.
func (l *Link) Close() error { return l.Link.Close() }

// PinLink pins a new link under its attachment's key, in the place of the one
// that has been there. The text is written first: a pin without its text is
// never found. spec is the link's SpecID.
func (s *Store) PinLink(uid string, a plan.Attachment, spec uint32, l link.Link) (*Link, error) {
	dir := s.linksDir(uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make pin directory: %w", err)
	}
	pinned := &Link{UID: uid, Attachment: a, SpecID: spec, Link: l, Path: filepath.Join(dir, a.Key())}
	if err := s.Describe(pinned); err != nil {
		return nil, err
	}
	aside := filepath.Join(dir, newPrefix+a.Key())
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove leftover pin: %w", err)
	}
	if err := l.Pin(aside); err != nil {
		return nil, fmt.Errorf("pin link: %w", err)
	}
	if err := os.Rename(aside, pinned.Path); err != nil {
		return nil, fmt.Errorf("pin link: %w", err)
	}
	return pinned, nil
}

// linkText is what the text beside a link's pin says.
type linkText struct {
	plan.Attachment
	SpecID uint32 `json:"specId,omitempty"`
}

// Describe writes what a link is beside its pin, in the place of what was there.
func (s *Store) Describe(l *Link) error {
	a := l.Attachment
	text, err := json.Marshal(linkText{a, l.SpecID})
	if err != nil {
		return fmt.Errorf("describe link: %w", err)
	}
	if len(text) > maxText {
		return fmt.Errorf("describe link of %s to %s: its target takes %d bytes to write down, and a pin's text holds %d; shorten its paths", a.Program, a.Hook, len(text), maxText)
	}
	if err := replaceSymlink(string(text), filepath.Join(s.linksDir(l.UID), a.Key()+textSuffix)); err != nil {
		return fmt.Errorf("describe link: %w", err)
	}
	return nil
}

// replaceSymlink writes the text in one step.
func replaceSymlink(text, path string) error {
	dir, name := filepath.Split(path)
	aside := filepath.Join(dir, newPrefix+name)
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(text, aside); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

// Links opens the pinned links of an application. A text without a pin, or a
// pin without a text, is what a kill left, and is removed. Pins that cannot be
// read are left out and returned as strays.
func (s *Store) Links(uid string) ([]*Link, []Stray, error) {
	dir := s.linksDir(uid)
	found, err := list(dir, inLinks)
	if err != nil {
		return nil, nil, err
	}
	var links []*Link
	var strays []Stray
	for _, n := range found {
		path := filepath.Join(dir, n)
		if key, isText := strings.CutSuffix(n, textSuffix); isText {
			if missing(filepath.Join(dir, key)) {
				if err := remove(path, inLinks); err != nil {
					return nil, nil, errors.Join(err, closeLinks(links))
				}
			}
			continue
		}
		l, err := openLink(uid, path)
		if err != nil {
			stray, err := unreadable(uid, path, err)
			if err != nil {
				return nil, nil, errors.Join(err, closeLinks(links))
			}
			strays = append(strays, stray)
		}
		if l != nil {
			links = append(links, l)
		}
	}
	return links, strays, nil
}

// openLink opens one pin by its text, or removes the pin where its text does
// not say what it is.
func openLink(uid, path string) (*Link, error) {
	text, ok := readText(path)
	if !ok {
		return nil, remove(path, inLinks)
	}
	l, _, err := loadLink(path)
	if err != nil {
		return nil, err
	}
	return &Link{UID: uid, Attachment: text.Attachment, SpecID: text.SpecID, Link: l, Path: path}, nil
}

// ReadText reads the attachment that Describe wrote beside a link's pin. It is
// not ok where there is none, or where it is another link's.
func ReadText(path string) (a plan.Attachment, ok bool) {
	text, ok := readText(path)
	return text.Attachment, ok
}

func readText(path string) (text linkText, ok bool) {
	body, err := os.Readlink(path + textSuffix)
	if err != nil || json.Unmarshal([]byte(body), &text) != nil {
		return linkText{}, false
	}
	return text, text.Key() == filepath.Base(path)
}

// loadLink opens a pin, and asks the kernel about it.
func loadLink(path string) (link.Link, Facts, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, Facts{}, fmt.Errorf("open pinned link: %w", err)
	}
	facts, err := Inspect(l)
	if err != nil {
		return nil, Facts{}, errors.Join(err, l.Close())
	}
	return l, facts, nil
}

func closeLinks(links []*Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// RemoveLink unpins the link and closes it, which detaches it. Where a pin cannot
// be removed, the link stays open, so that the removal can be tried again.
func (s *Store) RemoveLink(l *Link) error {
	sever(l.Link)
	// The text goes first: a text without its pin is swept, a pin without its text
	// is nobody's.
	for _, path := range []string{l.Path + textSuffix, l.Path} {
		if err := remove(path, inLinks); err != nil {
			return fmt.Errorf("remove link of %s: %w", l.Attachment.Program, err)
		}
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("close link of %s: %w", l.Attachment.Program, err)
	}
	return nil
}

// sever detaches at once, where the kernel can: a link that is only closed may
// hold its hook a little longer. Some links cannot be detached, so an error does
// not matter: they end with their last descriptor and pin, see Remnant.
func sever(l link.Link) {
	_ = l.Detach()
}

// Remnant is a link that was unpinned and closed. It ends when nobody else holds
// it.
type Remnant struct {
	// Attachment says what it was.
	Attachment plan.Attachment `json:"attachment"`
	// Facts are its last.
	Facts Facts `json:"facts"`
}

// Runs reports whether the kernel still runs the link. It is an error where the
// kernel never told which one it is.
func (r Remnant) Runs() (bool, error) {
	if r.Facts.ID == 0 {
		return false, fmt.Errorf("look for the link of %s: the kernel did not tell its id before its pin was removed, so that it may run still; restart the node to be sure", r.Attachment.Program)
	}
	l, err := link.NewFromID(r.Facts.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for link %d: %w", r.Facts.ID, err)
	}
	facts, err := Inspect(l)
	if err := errors.Join(err, l.Close()); err != nil {
		return false, fmt.Errorf("look for link %d: %w", r.Facts.ID, err)
	}
	return facts.Program == r.Facts.Program && !facts.Severed, nil
}

// RepinLink makes again a pin that someone removed, and reports whether it did.
func (s *Store) RepinLink(l *Link) (bool, error) {
	pinGone, textGone := missing(l.Path), missing(l.Path+textSuffix)
	if !pinGone && !textGone {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return false, fmt.Errorf("make pin directory: %w", err)
	}
	if err := s.Describe(l); err != nil {
		return false, err
	}
	if pinGone {
		// The library takes the link for pinned still and would do nothing.
		if err := errors.Join(l.Link.Unpin(), l.Link.Pin(l.Path)); err != nil {
			return false, fmt.Errorf("pin link again: %w", err)
		}
	}
	return true, nil
}

// Facts is what the kernel tells about a link.
type Facts struct {
	ID      link.ID
	Program ebpf.ProgramID
	// Severed links have lost their target and run nothing.
	Severed bool
}

// Identify asks the kernel about a link by its descriptor, and where that fails by its
// pin.
func (l *Link) Identify() (Facts, error) {
	facts, err := Inspect(l.Link)
	if err == nil {
		return facts, nil
	}
	again, facts, pinErr := loadLink(l.Path)
	if pinErr != nil {
		return Facts{}, errors.Join(err, pinErr)
	}
	return facts, again.Close()
}

// Inspect asks the kernel about a link.
func Inspect(l link.Link) (Facts, error) {
	info, err := l.Info()
	if err != nil {
		return Facts{}, fmt.Errorf("read info of link: %w", err)
	}
	f := Facts{ID: info.ID, Program: info.Program}
	switch info.Type {
	case link.XDPType:
		if x := info.XDP(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.TCXType:
		if x := info.TCX(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.NetkitType:
		if x := info.Netkit(); x != nil {
			f.Severed = x.Ifindex == 0
		}
	case link.CgroupType:
		if x := info.Cgroup(); x != nil {
			f.Severed = x.CgroupId == 0
		}
	case link.NetNsType:
		if x := info.NetNs(); x != nil {
			f.Severed = x.NetnsInode == 0
		}
	}
	return f, nil
}

// MapsOf returns the kernel's ids of the maps that a program uses.
func MapsOf(id ebpf.ProgramID) ([]ebpf.MapID, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	info, err := program.Info()
	if err := errors.Join(err, program.Close()); err != nil {
		return nil, fmt.Errorf("read info of program %d: %w", id, err)
	}
	ids, ok := info.MapIDs()
	if !ok {
		return nil, fmt.Errorf("read info of program %d: the kernel tells no maps", id)
	}
	return ids, nil
}

// ProgramID returns the kernel's id of a program.
func ProgramID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("read info of program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("read info of program: the kernel tells no id")
	}
	return id, nil
}
